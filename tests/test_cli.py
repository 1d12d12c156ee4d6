"""The commands as a user types them: a run from start to end in processes of its own, then what goes wrong."""
import json
import os
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import test_net
import train_net
from config import MODALITIES, RETURN_PATTERNS, load_cfg
from config.cli import run
from datasets import SPLITS, read_splits
from modeling import make_model
from tools import export_features, profile_flops

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "Synthetic" / "DeMo_SDTPS.yml"
BASELINE = ROOT / "configs" / "Synthetic" / "Baseline.yml"
SMALL = ("INPUT.SIZE_TRAIN", "[32,16]", "INPUT.SIZE_TEST", "[32,16]", "MODEL.PATCH_SIZE", "4", "MODEL.STRIDE_SIZE", "[4,4]",
         "SOLVER.IMS_PER_BATCH", "8", "DATALOADER.NUM_INSTANCE", "2", "SOLVER.MAX_EPOCHS", "2", "SOLVER.EVAL_PERIOD", "1",
         "DATALOADER.NUM_WORKERS", "0", "MODEL.DEVICE", "cpu")
COLUMNS = ["mAP", "Rank-1", "Rank-5", "Rank-10"]
TRUNK_WIDTH = 64
SCRIPTS = ("train_net.py", "test_net.py", "tools/export_features.py", "tools/profile_flops.py", "tools/draw_curves.py",
           "tools/draw_ranks.py", "tools/draw_tokens.py", "tools/report.py")
ONE_LINE = "error: "


def words_for(root, *more, config=CONFIG, small=SMALL):
    return ["--config_file", str(config), "DATASETS.ROOT_DIR", str(root), *small, *map(str, more)]


def processes(folder, *commands):
    """Run (script, word, …) commands in `folder`, two at a time; all must succeed. → their completed processes."""
    def one(command):
        script, *words = map(str, command)
        done = subprocess.run([sys.executable, str(ROOT / script), *words], cwd=folder, capture_output=True, text=True,
                              env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, commands))


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def records_of(folder):
    return json.loads((folder / "metrics.json").read_text())


def without_seconds(records):
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


@pytest.fixture(scope="module")
def trained(tiny_root, tmp_path_factory):
    """One training in a process of its own, with another beside it that loads in two processes: → their OUTPUT_DIRs."""
    folder = tmp_path_factory.mktemp("runs")
    first, second = folder / "first", folder / "second"
    processes(folder, ["train_net.py", *words_for(tiny_root, "OUTPUT_DIR", first)],
              ["train_net.py", *words_for(tiny_root, "OUTPUT_DIR", second, "DATALOADER.NUM_WORKERS", "2")])
    return first, second


@pytest.fixture
def command(monkeypatch, capsys):
    """Call a command's `main` in this process as the shell would: → (exit code, stdout, stderr)."""
    def call(main, *words):
        monkeypatch.setattr(sys, "argv", ["command", *map(str, words)])
        capsys.readouterr()
        code = 0
        try:
            run(main)
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    return call


# A run

@pytest.mark.slow
def test_a_run_leaves_its_files(trained):
    for name in ("config.yml", "metrics.json", "last.pth", "best.pth", "log.txt"):
        assert (trained[0] / name).stat().st_size > 0
    left = {path.name for path in trained[0].iterdir() if not path.name.startswith("events.out.tfevents.")}
    assert left == {"config.yml", "metrics.json", "last.pth", "best.pth", "log.txt"}


@pytest.mark.slow
def test_metrics_hold_every_evaluation(trained):
    records = records_of(trained[0])
    assert [record["epoch"] for record in records] == [0, 1, 2]
    for record in records:
        assert list(record["patterns"]) == ["1", "2", "3"]
        for values in record["patterns"].values():
            assert list(values) == COLUMNS
            assert all(0 <= value <= 1 for value in values.values())
            assert values["mAP"] > 0 and values["Rank-1"] <= values["Rank-5"] <= values["Rank-10"]
    assert set(records[0]) == {"epoch", "patterns"}
    for record in records[1:]:
        assert record["loss"] > 0 and record["lr"] > 0 and record["seconds"] > 0 and 0 <= record["accuracy"] <= 1
    assert records[0]["patterns"] != records[2]["patterns"]


@pytest.mark.slow
def test_checkpoints_load_without_running_code(trained, tiny_root):
    cfg = load_cfg(trained[0] / "config.yml")
    scores = {record["epoch"]: record["patterns"]["3"]["mAP"] for record in records_of(trained[0])[1:]}
    for name in ("last.pth", "best.pth"):
        content = torch.load(trained[0] / name, weights_only=True)
        assert (content["num_class"], content["camera_num"], content["dataset"]) == (6, 4, "RGBNT201")
        model = make_model(cfg, 6, 4)
        model.load_state_dict(content["model"])
        assert content["epoch"] == (2 if name == "last.pth" else max(scores, key=scores.get))
        assert content["config"] == (trained[0] / "config.yml").read_text()


@pytest.mark.slow
def test_the_configuration_of_a_run_loads_back(trained, tiny_root):
    cfg = load_cfg(trained[0] / "config.yml")
    assert cfg == load_cfg(CONFIG, words_for(tiny_root, "OUTPUT_DIR", trained[0])[2:])
    assert str(tiny_root) == cfg.DATASETS.ROOT_DIR


@pytest.mark.slow
def test_log_and_tensorboard_tell_what_metrics_tell(trained):
    log = (trained[0] / "log.txt").read_text()
    assert "48 train" in log and "RANDOM" in log and "epoch 0 (untrained)" in log and "epoch 2" in log
    board = EventAccumulator(str(trained[0]))
    board.Reload()
    last = records_of(trained[0])[-1]
    for pattern, values in last["patterns"].items():
        for name, value in values.items():
            event = board.Scalars(f"pattern_{pattern}/{name}")[-1]
            assert (event.step, event.value) == (2, pytest.approx(value, abs=1e-6))
    assert board.Scalars("train/loss")[-1].value == pytest.approx(last["loss"], rel=1e-5)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers_whatever_the_processes(trained):
    first, second = map(records_of, trained)
    assert without_seconds(first) == without_seconds(second)
    weights = [torch.load(folder / "last.pth", weights_only=True)["model"] for folder in trained]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.fixture(scope="module")
def drawn(trained, tiny_root, tmp_path_factory):
    """Everything one does with a finished run, each in a process of its own: name → (stdout, what it wrote)."""
    folder = tmp_path_factory.mktemp("drawn")
    weight = trained[0] / "last.pth"
    shutil.copytree(trained[0], folder / "report")
    own = ["--config_file", trained[0] / "config.yml", "--weight", weight]
    commands = {
        "table": ["test_net.py", *words_for(tiny_root, "TEST.WEIGHT", weight)],
        "export": ["tools/export_features.py", *own, "--return_pattern", "3", "--split", "gallery", "--output", "x.npz",
                   "DATALOADER.NUM_WORKERS", "2"],
        "curves": ["tools/draw_curves.py", "--run", trained[0], "--output", folder / "curves.png"],
        "ranks": ["tools/draw_ranks.py", *own, "--output", "new/ranks.png", "--queries", "2"],
        "tokens": ["tools/draw_tokens.py", *own, "--output", folder / "tokens.png", "--samples", "2"],
        "report": ["tools/report.py", "--config_file", trained[0] / "config.yml", "OUTPUT_DIR", folder / "report"],
    }
    done = dict(zip(commands, processes(folder, *commands.values()), strict=True))
    return folder, {name: process.stdout for name, process in done.items()}


def table_of(text):
    """The numbers of a printed table by pattern."""
    lines = [line.split() for line in text.splitlines() if line[:2] in ("1 ", "2 ", "3 ")]
    return {line[0]: [float(number) for number in line[2:]] for line in lines}


@pytest.mark.slow
def test_the_test_command_prints_the_last_record(trained, drawn):
    table = table_of(drawn[1]["table"])
    for pattern, values in records_of(trained[0])[-1]["patterns"].items():
        assert table[pattern] == [pytest.approx(100 * values[column], abs=0.0501) for column in COLUMNS]
    assert drawn[1]["table"].splitlines()[0].split() == ["return", "pattern", *COLUMNS]


@pytest.mark.slow
def test_the_runs_own_configuration_tests_the_same(trained, drawn, command):
    code, stdout, _ = command(test_net.main, "--config_file", trained[0] / "config.yml", "--weight", trained[0] / "last.pth")
    assert code == 0 and stdout == drawn[1]["table"]


@pytest.mark.slow
def test_other_loading_tests_the_same(trained, drawn, command):
    code, stdout, _ = command(test_net.main, "--config_file", trained[0] / "config.yml", "--weight", trained[0] / "last.pth",
                              "DATALOADER.NUM_WORKERS", "2", "DATASETS.CACHE", "no", "TEST.IMS_PER_BATCH", "7")
    assert code == 0 and stdout == drawn[1]["table"]


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("pattern", RETURN_PATTERNS)
def test_exported_features(trained, tiny_root, tmp_path, command, pattern, split):
    output = tmp_path / "features.npz"
    code, stdout, stderr = command(
        export_features.main, "--config_file", trained[0] / "config.yml", "--weight", trained[0] / "last.pth",
        "--return_pattern", pattern, "--split", split, "--output", output)
    assert code == 0, stderr
    samples = read_splits(load_cfg(trained[0] / "config.yml"), (split,))[split]
    width = {1: 3, 2: 3, 3: 6}[pattern] * TRUNK_WIDTH
    assert str(len(samples)) in stdout and str(width) in stdout and str(output) in stdout
    with np.load(output) as found:
        assert set(found.files) == {"features", "ids", "cams", "paths"}
        assert found["features"].dtype == np.float32 and found["features"].shape == (len(samples), width)
        assert np.isfinite(found["features"]).all() and found["features"].std(axis=0).min() > 0
        assert found["ids"].tolist() == [sample.identity for sample in samples]
        assert found["cams"].tolist() == [sample.camera for sample in samples]
        assert found["paths"].tolist() == [list(sample.paths) for sample in samples]
    assert os.listdir(tmp_path) == ["features.npz"]


@pytest.mark.slow
def test_exports_agree_with_each_other(trained, drawn, tmp_path, command):
    """Pattern 3 is 1 beside 2; loading in two processes and another process change nothing."""
    features = []
    for pattern in RETURN_PATTERNS:
        words = ["--config_file", trained[0] / "config.yml", "--weight", trained[0] / "last.pth"]
        assert command(export_features.main, *words, "--return_pattern", pattern, "--output", tmp_path / "x.npz")[0] == 0
        with np.load(tmp_path / "x.npz") as found:
            features.append(found["features"])
    assert np.array_equal(np.concatenate(features[:2], axis=1), features[2])
    with np.load(drawn[0] / "x.npz") as found:
        assert np.allclose(found["features"], features[2], atol=1e-6)
    assert command(export_features.main, *words, "--normalise", "--output", tmp_path / "x.npz")[0] == 0
    with np.load(tmp_path / "x.npz") as found:
        lengths = np.linalg.norm(features[2], axis=1, keepdims=True)
        assert np.allclose(found["features"], features[2] / lengths, atol=1e-6) and np.ptp(lengths) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rows"), [("curves.png", 0), ("new/ranks.png", 2), ("tokens.png", 2),
                                            ("report/curves.png", 0), ("report/ranks.png", 4), ("report/tokens.png", 8)])
def test_pictures_are_drawn(drawn, name, rows):
    with Image.open(drawn[0] / name) as picture:
        assert picture.format == "PNG"
        pixels = np.asarray(picture.convert("L"), dtype=np.float32)
        assert picture.convert("RGB").getcolors(100) is None  # more than a hundred colours
    assert min(pixels.shape) > 100
    assert pixels.std() > 10
    if rows:  # something is to be seen in every row
        parts = np.array_split(pixels, rows)
        assert min(part.std() for part in parts) > 10
    assert not list(drawn[0].rglob("*.part"))


@pytest.mark.slow
def test_commands_print_where_they_wrote(drawn):
    folder, said = drawn
    assert said["curves"].strip() == str(folder / "curves.png") and said["ranks"].strip() == "new/ranks.png"
    assert said["tokens"].strip() == str(folder / "tokens.png")
    for name in ("curves.png", "ranks.png", "tokens.png"):
        assert str(folder / "report" / name) in said["report"]


@pytest.mark.slow
def test_the_report_sets_the_run_beside_the_untrained_model(trained, drawn):
    records = records_of(trained[0])
    table = table_of(drawn[1]["report"])
    for pattern, values in records[-1]["patterns"].items():
        expected = [*(values[column] for column in COLUMNS), records[0]["patterns"][pattern]["mAP"]]
        assert table[pattern] == [pytest.approx(100 * value, abs=0.0501) for value in expected]
    assert "32 queries" in drawn[1]["report"]


@pytest.mark.slow
def test_an_earlier_run_is_not_replaced_unless_asked(trained, tiny_root, tmp_path, command):
    output = tmp_path / "run"
    shutil.copytree(trained[0], output)
    before = contents(output)
    words = words_for(tiny_root, "OUTPUT_DIR", output, "SOLVER.MAX_EPOCHS", "1")
    code, _, stderr = command(train_net.main, *words)
    assert code == 2 and stderr.startswith(ONE_LINE) and stderr.count("\n") == 1
    assert str(output) in stderr and "--overwrite" in stderr
    assert contents(output) == before

    code, _, stderr = command(train_net.main, "--overwrite", *words)
    assert code == 0, stderr
    assert [record["epoch"] for record in records_of(output)] == [0, 1]
    after = contents(output)
    assert not [name for name, data in after.items() if before.get(name) == data]
    assert sum(name.startswith("events.") for name in after) == 1


# Parameters and operations

@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameters", "gmacs"), [("Baseline", 87_988_224, 34.28), ("DeMo_SDTPS", 88_617_573, 34.33)])
def test_profile_of_the_published_models(command, name, parameters, gmacs):
    code, stdout, _ = command(profile_flops.main, "--config_file", ROOT / "configs" / "RGBNT201" / f"{name}.yml")
    total = stdout.splitlines()[-1].split()
    assert code == 0 and total[0] == "total"
    assert int(total[1].replace(",", "")) == parameters
    assert float(total[2]) == pytest.approx(gmacs, rel=0.005)
    parts = [line.split()[-2:] for line in stdout.splitlines()[2:-1]]
    assert sum(int(count.replace(",", "")) for count, _ in parts) == parameters
    assert sum(float(macs) for _, macs in parts) == pytest.approx(float(total[2]), abs=5e-4)


class Attention(torch.nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.fused = fused

    def forward(self, query, key, value):
        if self.fused:
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=1.0)
        return (query @ key.transpose(-2, -1)).softmax(dim=-1) @ value


def test_fused_attention_counts_its_matrix_products():
    """(…, L, E)·(…, S, E) and weights·(…, S, V): the plain form counted by fvcore's own rules says the same."""
    from fvcore.nn import FlopCountAnalysis

    shapes = (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)
    inputs = tuple(torch.randn(*shape) for shape in shapes)
    fused = FlopCountAnalysis(Attention(True), inputs)
    fused.set_op_handle("aten::scaled_dot_product_attention", profile_flops.attention_macs)
    plain = FlopCountAnalysis(Attention(False), inputs).unsupported_ops_warnings(False)
    assert fused.total() == plain.total() == 2 * 3 * (5 * 7 * 8 + 5 * 7 * 6)


def test_fused_attention_keeps_its_matrix_products_in_the_count():
    """Of the plain form's count only the softmax and the scaling of the queries are lost."""
    cfg = load_cfg(CONFIG, SMALL)
    model = make_model(cfg, 6, 4).eval()
    blocks = model.trunk.vit.blocks
    counts = {}
    for fused, plain_on in ((False, ("cpu",)), (True, ())):
        model.trunk.plain_attention_on = plain_on
        counts[fused] = profile_flops.count_macs(cfg, model)[""]
        assert all(block.attn.fused_attn is fused for block in blocks)
    tokens = 1 + 8 * 4
    softmax, scaling = blocks[0].attn.num_heads * tokens * tokens, tokens * TRUNK_WIDTH
    assert counts[False] - counts[True] == len(MODALITIES) * len(blocks) * (softmax + scaling)


def test_profile_needs_no_data_and_names_its_input(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, stdout, _ = command(profile_flops.main, *words_for("nowhere"), "--num_class", "9", "--camera_num", "3")
    assert code == 0 and "32×16" in stdout and "9 classes, 3 cameras" in stdout
    model = make_model(load_cfg(CONFIG, SMALL), 9, 3)
    expected = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert f"{expected:,}" in stdout.splitlines()[-1]
    assert not list(tmp_path.iterdir())


# Help

@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    monkeypatch.syspath_prepend(ROOT / "tools")  # as the interpreter does for a script
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    shown = capsys.readouterr()
    assert ended.value.code == 0 and not shown.err
    assert ("--run" if script == "tools/draw_curves.py" else "--config_file") in shown.out
    flags = {"train_net.py": "--overwrite", "test_net.py": "--weight", "tools/export_features.py": "--split",
             "tools/profile_flops.py": "--num_class", "tools/draw_ranks.py": "--queries", "tools/draw_tokens.py": "--samples"}
    assert flags.get(script, "--help") in shown.out


@pytest.mark.parametrize(("words", "names", "not_names"), [
    (["--keys", "SDTPS"], ["MODEL.USE_SDTPS = False", "MODEL.SDTPS_BETA = 0.25"], ["SOLVER.SEED"]),
    (["--keys", "sdtps"], ["MODEL.USE_SDTPS = False"], ["SOLVER.SEED"]),
    (["--keys"], ["MODEL.USE_SDTPS = False", "SOLVER.SEED = 1111", "OUTPUT_DIR = ''"], []),
])
def test_keys_are_printed(command, words, names, not_names):
    code, stdout, stderr = command(train_net.main, *words)
    assert code == 0 and not stderr
    assert all(name in stdout for name in names) and not any(name in stdout for name in not_names)


def test_keys_that_do_not_exist_are_told(command):
    code, stdout, stderr = command(train_net.main, "--keys", "BANANA")
    assert code == 2 and not stdout and stderr.startswith(ONE_LINE) and "BANANA" in stderr


def test_negative_values_pass_the_command_line(command, tmp_path):
    for value in ("-1", "-0.5", "-1e-4"):
        _, _, stderr = command(train_net.main, *words_for(tmp_path, "SOLVER.BASE_LR", value))
        assert stderr.startswith(ONE_LINE + "SOLVER.BASE_LR") and "greater than 0" in stderr


# What goes wrong

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
        said = [line for line in stderr.replace("\r", "\n").splitlines() if line.strip() and "reading pictures" not in line
                and "verifying pictures" not in line and "extracting features" not in line]
        assert said[0].startswith(ONE_LINE) and "Traceback" not in stderr and not stdout
        assert list((tmp_path / "cwd").iterdir()) == []
        assert not output.exists()
        return said[0] if len(said) == 1 else "\n".join(said)

    return call


def test_fails_without_data(fails, tmp_path):
    said = fails(train_net.main, *words_for(tmp_path / "none"))
    assert str(tmp_path / "none" / "RGBNT201") in said and "make demo" in said and "\n" not in said
    assert "RGBNT201/{train_171,test}/{RGB,NI,TI}/000001_cam1_0_00.jpg" in said


def test_fails_for_a_missing_picture(fails, own_root):
    missing = own_root / "RGBNT201" / "train_171" / "TI" / "000001_cam1_0_00.jpg"
    missing.unlink()
    assert f"{missing} is missing" in fails(train_net.main, *words_for(own_root))


@pytest.mark.parametrize("opts", [["DATASETS.VERIFY", "True", "DATASETS.CACHE", "no"], ["DATASETS.CACHE", "yes"],
                                  ["DATASETS.VERIFY", "True"]], ids=" ".join)
@pytest.mark.parametrize("split", ["train_171", "test"])
def test_fails_for_an_empty_picture_before_anything_is_written(fails, own_root, opts, split):
    empty = sorted((own_root / "RGBNT201" / split / "NI").iterdir())[5]
    empty.write_bytes(b"")
    said = fails(train_net.main, *words_for(own_root, *opts))
    assert str(empty) in said and "it is empty" in said


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_fails_for_an_empty_picture_that_is_met_on_the_way(own_root, tmp_path, workers):
    """Without cache and check it is found when it is its turn: one line as well."""
    for empty in (own_root / "RGBNT201" / "test" / "NI").iterdir():
        empty.write_bytes(b"")
    words = words_for(own_root, "DATASETS.CACHE", "no", "DATALOADER.NUM_WORKERS", workers, "OUTPUT_DIR", tmp_path / "output")
    done = subprocess.run([sys.executable, str(ROOT / "train_net.py"), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    last = done.stderr.replace("\r", "\n").strip().splitlines()[-1]
    assert last.startswith("error: The picture ") and "it is empty" in last


def test_fails_for_an_empty_split(fails, own_root):
    for modality in MODALITIES:
        for path in (own_root / "RGBNT201" / "test" / modality).iterdir():
            path.unlink()
    assert "query split of RGBNT201" in (said := fails(train_net.main, *words_for(own_root))) and "is empty" in said


def test_fails_for_too_few_identities(fails, tiny_root):
    said = fails(train_net.main, *words_for(tiny_root, "SOLVER.IMS_PER_BATCH", "16"))
    assert "has 6 identities" in said and "lower SOLVER.IMS_PER_BATCH to at most 12" in said


def test_fails_for_a_gpu_that_is_not_there(fails, tiny_root):
    said = fails(train_net.main, *words_for(tiny_root, "MODEL.DEVICE", "cuda:9"))
    assert "MODEL.DEVICE is 'cuda:9'" in said and "'auto' or 'cpu'" in said


def test_fails_for_an_output_that_is_a_file(fails, tiny_root, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert str(tmp_path / "file") in fails(train_net.main, *words_for(tiny_root, "OUTPUT_DIR", tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


def test_fails_for_a_seed_that_torch_cannot_take(fails, tiny_root):
    assert "SOLVER.SEED" in fails(train_net.main, *words_for(tiny_root, "SOLVER.SEED", str(10**30)))


def weights_file(path, cfg, dataset="RGBNT201"):
    torch.manual_seed(0)
    torch.save({"model": make_model(cfg, 6, 4).state_dict(), "dataset": dataset, "camera_num": 4}, path)
    return path


@pytest.fixture
def small_weights(tiny_root, tmp_path):
    return weights_file(tmp_path / "weights.pth", load_cfg(CONFIG, words_for(tiny_root)[2:]))


def test_weights_without_a_run_are_tested(command, tiny_root, small_weights):
    code, stdout, _ = command(test_net.main, *words_for(tiny_root, "--weight", small_weights))
    assert code == 0 and list(table_of(stdout)) == ["1", "2", "3"]


def test_fails_without_weights(fails, tiny_root):
    said = fails(test_net.main, *words_for(tiny_root))
    assert "TEST.WEIGHT" in said and "--weight" in said


def test_fails_for_weights_that_do_not_exist(fails, tiny_root, tmp_path):
    said = fails(test_net.main, *words_for(tiny_root, "--weight", tmp_path / "none.pth"))
    assert str(tmp_path / "none.pth") in said and "do not exist" in said


@pytest.mark.parametrize("content", [b"", b"these are no weights", bytes(range(256)) * 40, b"PK\x03\x04 cut short"])
def test_fails_for_a_file_that_holds_no_weights(fails, tiny_root, tmp_path, content):
    path = tmp_path / "random.pth"
    path.write_bytes(content)
    assert str(path) in (said := fails(test_net.main, *words_for(tiny_root, "--weight", path))) and "cannot be read" in said


def test_fails_for_weights_that_are_cut_short(fails, tiny_root, small_weights):
    small_weights.write_bytes(small_weights.read_bytes()[:-1000])
    assert "cut short" in fails(test_net.main, *words_for(tiny_root, "--weight", small_weights))


@pytest.mark.parametrize("content", [{"a": torch.zeros(3)}, {"model": {"a": 3}}, [1, 2], {"model": [1]}, 3], ids=repr)
def test_fails_for_other_things_that_torch_loads(fails, tiny_root, tmp_path, content):
    path = tmp_path / "other.pth"
    torch.save(content, path)
    said = fails(test_net.main, *words_for(tiny_root, "--weight", path))
    assert str(path) in said and "no weights of this model" in said


def test_fails_for_weights_of_another_configuration(fails, tiny_root, small_weights):
    small_weights = str(small_weights)
    said = fails(test_net.main, *words_for(tiny_root, "--weight", small_weights, config=BASELINE))
    assert small_weights in said and "do not fit" in said and "config.yml" in said
    assert said.count("is not part of the model") == 3 and "sdtps" in said and "and 36 more" in said
    said = fails(test_net.main, *words_for(tiny_root, "--weight", small_weights, "INPUT.SIZE_TRAIN", "[64,16]",
                                           "INPUT.SIZE_TEST", "[64,16]"))
    assert "trunk.vit.pos_embed has the shape (1, 33, 64), not (1, 65, 64)" in said


def test_fails_for_weights_of_a_smaller_configuration(fails, tiny_root, tmp_path):
    path = weights_file(tmp_path / "baseline.pth", load_cfg(BASELINE, words_for(tiny_root)[2:]))
    said = fails(test_net.main, *words_for(tiny_root, "--weight", path))
    assert said.count("is missing") == 3 and "sdtps." in said


def test_fails_for_weights_of_another_data_set(fails, tiny_root, tmp_path):
    path = weights_file(tmp_path / "other.pth", load_cfg(CONFIG, words_for(tiny_root)[2:]), dataset="MSVR310")
    said = fails(test_net.main, *words_for(tiny_root, "--weight", path))
    assert "trained on MSVR310" in said and "is for RGBNT201" in said


def test_fails_for_fewer_cameras_than_the_data_has(fails, tiny_root, tmp_path):
    cfg = load_cfg(CONFIG, words_for(tiny_root)[2:])
    torch.save({"model": make_model(cfg, 6, 2).state_dict()}, tmp_path / "two.pth")
    assert "camera" in fails(test_net.main, *words_for(tiny_root, "--weight", tmp_path / "two.pth"))


@pytest.mark.parametrize("name", ["x.txt", "x", "folder.npz", "file/x.npz"])
def test_fails_for_an_export_that_cannot_be_written(fails, tiny_root, small_weights, tmp_path, name):
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "file").touch()
    before = contents(tmp_path)
    said = fails(export_features.main, *words_for(tiny_root, "--weight", small_weights), "--output", tmp_path / name)
    assert str(tmp_path / name) in said and "must be a file ending in .npz" in said
    assert contents(tmp_path) == before


def test_a_failed_export_leaves_no_file(fails, own_root, small_weights, tmp_path):
    empty = own_root / "RGBNT201" / "test" / "RGB" / sorted(os.listdir(own_root / "RGBNT201" / "test" / "RGB"))[3]
    empty.write_bytes(b"")
    said = fails(export_features.main, *words_for(own_root, "--weight", small_weights), "--output", tmp_path / "x.npz")
    assert str(empty) in said
    assert not list(tmp_path.glob("x.npz*"))


@pytest.mark.parametrize(("flag", "value"), [("--num_class", "0"), ("--camera_num", "-5"), ("--num_class", "many"),
                                             ("--camera_num", "99999999999")])
def test_profile_refuses_what_is_no_count(command, flag, value):
    code, stdout, stderr = command(profile_flops.main, "--config_file", CONFIG, f"{flag}={value}")
    assert code == 2 and not stdout and flag in stderr and value in stderr and "Traceback" not in stderr


def test_fails_for_weights_that_are_not_finite(fails, tiny_root, small_weights, tmp_path):
    content = torch.load(small_weights, weights_only=True)
    content["model"]["trunk.vit.norm.weight"].fill_(torch.nan)
    torch.save(content, tmp_path / "nan.pth")
    assert "not finite" in fails(test_net.main, *words_for(tiny_root, "--weight", tmp_path / "nan.pth"))


@pytest.mark.parametrize("content", ["[]", "{}", '[{"epoch": 1}]', '[{"epoch": 1, "patterns": {"1": {"mAP": 0.5}}}]', "[1",
                                     "3"])
def test_fails_for_a_run_whose_records_are_damaged(command, tmp_path, content):
    from tools import draw_curves

    (tmp_path / "metrics.json").write_text(content)
    code, _, stderr = command(draw_curves.main, "--run", tmp_path)
    assert code == 2 and stderr.startswith(ONE_LINE) and "metrics.json" in stderr and stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]


def test_a_training_without_matches_ends_before_it_begins(fails, own_root):
    for modality in MODALITIES:
        for path in (own_root / "RGBNT201" / "test" / modality).iterdir():
            if "_cam1_" not in path.name:
                path.unlink()
    assert "has a match in the gallery" in fails(train_net.main, *words_for(own_root))


def test_fails_without_a_match_for_any_query(fails, own_root, small_weights):
    for modality in MODALITIES:
        for path in (own_root / "RGBNT201" / "test" / modality).iterdir():
            if "_cam1_" not in path.name:
                path.unlink()
    assert "has a match in the gallery" in fails(test_net.main, *words_for(own_root, "--weight", small_weights))
