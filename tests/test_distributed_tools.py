"""Commands after training by several processes that torchrun starts, on one machine and on two: as by one."""
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from commands import CONFIG, KEEP_ALL, QUERIES, SMALL, assert_same_hits, checkpoint_file, cli_args_for, near
from launch import (
    children_of,
    kill_one_of_two,
    on_two_machines,
    start_on_one_machine,
    start_on_two_machines,
    torchrun,
    wait_for,
)
from seps_tiny import cfg_for as seps_cfg_for
from test_search_command import rows_of

from demo_sdtps import test_net
from demo_sdtps.config import load_cfg
from demo_sdtps.engine.checkpoint import save_checkpoint
from demo_sdtps.engine.search.store import LOCK
from demo_sdtps.seps.model import make_seps
from demo_sdtps.tools import make_synthetic_captions, search

REFUSED = "error: "


@pytest.fixture(scope="module")
def weights(tiny_root, tmp_path_factory):
    cfg = load_cfg(CONFIG, [*cli_args_for(tiny_root)[2:], *KEEP_ALL, "TEST.AMP", "off"])
    return checkpoint_file(tmp_path_factory.mktemp("trained") / "last.pth", cfg)


def opened(folder):
    return sorted(path.name for path in folder.glob("opened by *"))


@pytest.fixture
def evaluated(command, weights, tmp_path):
    """Words of an evaluation but for the file that it writes, and what one process writes."""
    words = ("--weight", weights, "TEST.MISS", "all", "--json")
    code, _, stderr = command(test_net.main, *words, tmp_path / "alone.json")
    assert code == 0, stderr
    return words, json.loads((tmp_path / "alone.json").read_text())


def check_same(evaluated, path, stdout):
    found, alone = json.loads(path.read_text()), evaluated[1]
    assert found["caption"] == alone["caption"] and [*found["cases"]] == [*alone["cases"]]
    for case, record in alone["cases"].items():
        assert found["cases"][case] == near(record)
    assert stdout.count("return pattern") == 1


@pytest.mark.slow
@pytest.mark.soak
def test_two_processes_evaluate_like_one(evaluated, weights, tmp_path):
    """One of them reads the weights, writes and prints."""
    done = torchrun("tests/opened_by.py", tmp_path, weights, "test_net", *evaluated[0], tmp_path / "x.json")
    assert done.returncode == 0 and opened(tmp_path) == ["opened by rank 0"], done.stderr
    check_same(evaluated, tmp_path / "x.json", done.stdout)


@pytest.mark.slow
def test_two_machines_evaluate_like_one_process(evaluated, weights, tmp_path):
    """One process of each reads the weights, one of all writes and prints."""
    done = on_two_machines("tests/opened_by.py", tmp_path, weights, "test_net", *evaluated[0], tmp_path / "x.json")
    assert [one.returncode for one in done] == [0, 0] and opened(tmp_path) == ["opened by rank 0", "opened by rank 1"], done
    check_same(evaluated, tmp_path / "x.json", "".join(one.stdout for one in done))


def without_weights(own_root):
    return ["--weight", "none.pth"], "do not exist; give a checkpoint"


def with_an_unknown_flag(own_root):
    return ["--bogus"], "unrecognized arguments: --bogus"


def with_weights_that_are_not_finite(own_root):
    """All processes find them, after the features have been exchanged."""
    cfg = load_cfg(CONFIG, [*cli_args_for(own_root)[2:], "TEST.AMP", "off"])
    path = checkpoint_file(own_root / "nan.pth", cfg)
    content = torch.load(path, weights_only=True)
    next(tensor for name, tensor in content["model"].items() if name.endswith("pos_embed")).fill_(torch.nan)
    torch.save(content, path)
    return ["--weight", path], "not finite"


def with_an_empty_image(own_root):
    """Of the last triplet, which is in the share of the second process; it reads it on the way."""
    sorted((own_root / "RGBNT201" / "test" / "NI").iterdir())[-1].write_bytes(b"")
    return ["DATASETS.CACHE", "no"], "cannot be read (it is empty)"


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("mistake", [without_weights, with_an_unknown_flag, with_weights_that_are_not_finite,
                                     with_an_empty_image])
def test_a_mistake_is_one_sentence_of_all_processes(own_root, weights, tmp_path, mistake):
    words, said = mistake(own_root)
    done = torchrun("test_net.py", "--weight", weights, "DATASETS.ROOT_DIR", own_root, "--json", tmp_path / "x.json", *words)
    assert done.returncode == 1 and done.stderr.count(REFUSED) == done.stderr.count(said) == 1, done.stderr
    assert "test_net.py\", line" not in done.stderr and "exitcode  : 2" in done.stderr
    assert not (tmp_path / "x.json").exists() and not done.stdout


@pytest.fixture
def folders(own_root):
    """Words of a search among the images of `own_root`, and a file in the share of the second process."""
    gallery, query = (own_root / "RGBNT201" / split for split in ("test", "train_171"))
    return ["--gallery", gallery, "--query", query, "--top", "5"], sorted((gallery / "NI").iterdir())[-1]


@pytest.mark.slow
def test_two_processes_search_like_one(command, weights, folders, tmp_path):
    words = ["--weight", weights, *folders[0]]
    code, stdout, stderr = command(search.main, *words, "--index", tmp_path / "1", "--csv", tmp_path / "1.csv")
    assert code == 0, stderr
    done = torchrun("tools/search.py", *words, "--index", tmp_path / "2", "--csv", tmp_path / "2.csv")
    assert done.returncode == 0 and done.stdout.count("\n") == stdout.count("\n") == 2, done.stderr
    assert_same_hits(*(rows_of(tmp_path / f"{number}.csv")[1:] for number in (2, 1)))


@pytest.mark.slow
@pytest.mark.soak
def test_an_image_that_one_process_cannot_read_is_one_sentence_and_the_index_has_the_others(weights, folders, tmp_path):
    words, bad = folders
    words = ["--weight", weights, *words, "--index", tmp_path / "index", "--csv", tmp_path / "x.csv"]
    pixels = bad.read_bytes()
    bad.write_bytes(b"")
    done = torchrun("tools/search.py", *words)
    assert done.returncode == 1 and done.stderr.count(REFUSED) == 1 and not (tmp_path / "x.csv").exists()
    assert f"cannot be read: 1, namely {bad} (it is empty)" in done.stderr
    bad.write_bytes(pixels)
    done = torchrun("tools/search.py", *words)
    assert done.returncode == 0 and done.stdout.splitlines()[0].endswith(f"{QUERIES} triplets (1 new)"), done.stderr


@pytest.mark.soak
@pytest.mark.slow
def test_a_process_that_dies_ends_the_search_and_leaves_no_half_file(command, weights, folders, tmp_path):
    words = ["--weight", weights, *folders[0], "--index", tmp_path / "index", "--csv", tmp_path / "x.csv"]
    kill_one_of_two(tmp_path / "index" / LOCK, "tools/search.py", *words)
    assert not (tmp_path / "x.csv").exists()
    code, stdout, stderr = command(search.main, *words)
    assert code == 0 and f"{QUERIES} triplets" in stdout and (tmp_path / "x.csv").exists(), stderr


COPIES, LARGE = 24, (*SMALL, "INPUT.SIZE_TRAIN", "[256,128]", "INPUT.SIZE_TEST", "[256,128]", "TEST.IMS_PER_BATCH", "512")
"""So many and large images that a process on one core takes minutes for its share, which is less than a batch."""


@pytest.fixture(scope="module")
def many(tiny_root, tmp_path_factory):
    """A data set with a large test split, and words with weights for it."""
    root = tmp_path_factory.mktemp("many")
    shutil.copytree(tiny_root, root, dirs_exist_ok=True)
    for path in list((root / "RGBNT201" / "test").glob("*/*.jpg")):
        for number in range(1, COPIES):
            os.link(path, path.with_name(f"{path.stem}{number:02}.jpg"))
    return root, checkpoint_file(root / "last.pth", load_cfg(CONFIG, cli_args_for(root, "TEST.AMP", "off", small=LARGE)[2:]))


@pytest.fixture(scope="module")
def many_captions(tmp_path_factory):
    """As `many`, of images with captions."""
    root = tmp_path_factory.mktemp("captions")
    make_synthetic_captions.main(["--root", str(root), "--images", "2", "--dev_images", "2", "--test_images", "300",
                                  "--captions", "2", "--size", "32"])
    cfg = seps_cfg_for(root, "INPUT.SIZE", "[256,256]")
    save_checkpoint(root / "last.pth", cfg, make_seps(cfg, pretrained=False)[0], 1)
    return root, root / "last.pth"


def evaluation(root, output):
    return "test_net", "--json", output / "x.json"


def search_in(root, output):
    test = root / "RGBNT201" / "test"
    return ("tools.search", "--gallery", test, "--query", sorted((test / "RGB").iterdir())[0], "--index", output / "index",
            "--csv", output / "x.csv")


def export(root, output):
    return "tools.export_features", "--output", output / "x.npz"


def evaluation_of_captions(root, output):
    return "test_seps", "--json", output / "x.json"


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("data", "words", "start"), [
    ("many", evaluation, start_on_two_machines), ("many", search_in, start_on_two_machines),
    ("many", export, start_on_one_machine), ("many", export, start_on_two_machines),
    ("many_captions", evaluation_of_captions, start_on_one_machine),
    ("many_captions", evaluation_of_captions, start_on_two_machines)])
def test_processes_notice_within_a_minute_that_another_has_died(request, tmp_path, data, words, start):
    """On one machine and on two; no half file is left."""
    root, weights = request.getfixturevalue(data)
    module, *more = words(root, tmp_path / "out")
    starters = start("tests/opened_by.py", tmp_path, weights, module, "--weight", weights, *more)
    try:
        for number, starter in enumerate(starters):
            wait_for(starter, tmp_path / f"opened by rank {number}")
        time.sleep(8)  # extraction has begun
        workers = [worker for starter in starters for worker in children_of(starter.pid)]
        assert len(workers) == 2
        os.kill(workers[1], signal.SIGKILL)
        began = time.monotonic()
        assert all(starter.wait(180) != 0 for starter in starters) and time.monotonic() - began < 60
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    finally:
        for starter in starters:
            starter.kill()
            starter.communicate()
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.startswith("x.") or "part" in path.name]
