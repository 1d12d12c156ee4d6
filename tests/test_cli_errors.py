"""What goes wrong at the commands: one sentence, exit code 2, nothing left behind.

Data and checkpoints from elsewhere, and words that mean nothing: tests/test_hostile_*.py.
"""
import os
import subprocess
import sys

import pytest
from commands import BASELINE, CONFIG, ONE_LINE, ROOT, cli_args_for, table_of, weights_file

from demo_sdtps import test_net, train_net
from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.tools import draw_curves, export_features, profile_flops, report


@pytest.fixture
def fails(command, monkeypatch, tmp_path):
    """Call a command that must end with one line on stderr and leave nothing behind: → that line."""
    output = tmp_path / "output"

    def call(main, *words, leaves=()):
        (tmp_path / "cwd").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "cwd")
        code, stdout, stderr = command(main, *words, *([] if "OUTPUT_DIR" in words else ["OUTPUT_DIR", output]))
        assert code == 2, stderr
        # A progress bar that is wiped away leaves a carriage return and blanks before the line.
        said = [line for line in stderr.replace("\r", "\n").splitlines() if line.strip() and "reading images" not in line
                and "verifying images" not in line and "extracting features" not in line]
        assert said[0].startswith(ONE_LINE) and "Traceback" not in stderr and not stdout
        assert list((tmp_path / "cwd").iterdir()) == []
        assert not output.exists()
        return said[0] if len(said) == 1 else "\n".join(said)

    return call


@pytest.mark.parametrize("opts", [["DATASETS.VERIFY", "True", "DATASETS.CACHE", "no"], ["DATASETS.CACHE", "yes"],
                                  ["DATASETS.VERIFY", "True"]], ids=" ".join)
@pytest.mark.parametrize("split", ["train_171", "test"])
def test_fails_for_an_empty_image_before_anything_is_written(fails, own_root, opts, split):
    empty = sorted((own_root / "RGBNT201" / split / "NI").iterdir())[5]
    empty.write_bytes(b"")
    said = fails(train_net.main, *cli_args_for(own_root, *opts))
    assert str(empty) in said and "it is empty" in said


def test_fails_for_an_empty_image_that_is_met_on_the_way(own_root, tmp_path):
    """Without cache and check it is found when it is its turn, by a loading process: one line as well."""
    for empty in (own_root / "RGBNT201" / "test" / "NI").iterdir():
        empty.write_bytes(b"")
    words = cli_args_for(own_root, "DATASETS.CACHE", "no", "DATALOADER.NUM_WORKERS", "2", "OUTPUT_DIR", tmp_path / "output")
    done = subprocess.run([sys.executable, str(ROOT / "train_net.py"), *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    last = done.stderr.replace("\r", "\n").strip().splitlines()[-1]
    assert last.startswith("error: The image ") and "it is empty" in last


def test_fails_for_too_few_identities(fails, tiny_root):
    said = fails(train_net.main, *cli_args_for(tiny_root, "SOLVER.IMS_PER_BATCH", "16"))
    assert "has 6 identities" in said and "lower SOLVER.IMS_PER_BATCH to at most 12" in said


@pytest.mark.parametrize("opts", [["MODEL.DEVICE", "cuda:99"], ["MODEL.DEVICE", "cuda", "MODEL.DEVICE_ID", "99"]],
                         ids=["device", "its number"])
def test_fails_for_a_gpu_that_is_not_there(fails, tiny_root, opts):
    said = fails(train_net.main, *cli_args_for(tiny_root, *opts))
    assert "The GPU cuda:99" in said and "CUDA devices that torch can use" in said and "set MODEL.DEVICE to 'cpu'" in said


def test_fails_for_pretrained_weights_of_something_else(fails, tiny_root, small_weights):
    words = cli_args_for(tiny_root, "MODEL.PATCH_SIZE", "0", "MODEL.PRETRAIN_PATH_T", small_weights)
    assert "holds no weights of test_vit" in fails(train_net.main, *words)


def test_fails_for_an_output_that_is_a_file(fails, tiny_root, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert str(tmp_path / "file") in fails(train_net.main, *cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


@pytest.fixture
def small_weights(tiny_root, tmp_path):
    return weights_file(tmp_path / "weights.pth", load_cfg(CONFIG, cli_args_for(tiny_root)[2:]))


def test_weights_without_a_run_are_tested(command, tiny_root, small_weights):
    code, stdout, _ = command(test_net.main, *cli_args_for(tiny_root, "--weight", small_weights))
    assert code == 0 and list(table_of(stdout)) == ["1", "2", "3"]


def test_fails_for_weights_of_another_configuration(fails, tiny_root, small_weights):
    small_weights = str(small_weights)
    said = fails(test_net.main, *cli_args_for(tiny_root, "--weight", small_weights, config=BASELINE))
    assert small_weights in said and "do not fit" in said and "config.yml" in said
    assert said.count("is not part of the model") == 3 and "sdtps" in said and "and 36 more" in said
    said = fails(test_net.main, *cli_args_for(tiny_root, "--weight", small_weights, "INPUT.SIZE_TRAIN", "[64,16]",
                                           "INPUT.SIZE_TEST", "[64,16]"))
    assert "backbone.vit.pos_embed has the shape (1, 33, 64), not (1, 65, 64)" in said


def test_fails_for_weights_of_a_smaller_configuration(fails, tiny_root, tmp_path):
    path = weights_file(tmp_path / "baseline.pth", load_cfg(BASELINE, cli_args_for(tiny_root)[2:]))
    said = fails(test_net.main, *cli_args_for(tiny_root, "--weight", path))
    assert said.count("is missing") == 3 and "sdtps." in said


def test_a_failed_export_leaves_no_file(fails, own_root, small_weights, tmp_path):
    empty = own_root / "RGBNT201" / "test" / "RGB" / sorted(os.listdir(own_root / "RGBNT201" / "test" / "RGB"))[3]
    empty.write_bytes(b"")
    said = fails(export_features.main, *cli_args_for(own_root, "--weight", small_weights), "--output", tmp_path / "x.npz")
    assert str(empty) in said
    assert not list(tmp_path.glob("x.npz*"))


@pytest.mark.parametrize(("flag", "value"), [("--num_class", "0"), ("--camera_num", "-5"), ("--num_class", "many"),
                                             ("--camera_num", "99999999999")])
def test_profile_refuses_what_is_no_count(command, flag, value):
    code, stdout, stderr = command(profile_flops.main, "--config_file", CONFIG, f"{flag}={value}")
    assert code == 2 and not stdout and flag in stderr and value in stderr and "Traceback" not in stderr


@pytest.mark.parametrize("tool", [draw_curves, report], ids=["draw_curves", "report"])
@pytest.mark.parametrize("content", ["[]", "{}", "[1", '[{"epoch": 1}]'])
def test_fails_for_a_run_without_evaluated_epochs(command, tmp_path, content, tool):
    (tmp_path / "metrics.json").write_text(content)
    code, _, stderr = command(tool.main, "--run", tmp_path)
    assert code == 2 and stderr.startswith(ONE_LINE) and "metrics.json" in stderr and stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]


def test_fails_without_a_match_for_any_query(fails, own_root, small_weights):
    for modality in MODALITIES:
        for path in (own_root / "RGBNT201" / "test" / modality).iterdir():
            if "_cam1_" not in path.name:
                path.unlink()
    assert "has a match in the gallery" in fails(test_net.main, *cli_args_for(own_root, "--weight", small_weights))
