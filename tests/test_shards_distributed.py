"""Export of features by several processes of torchrun, on one node and on two: the features of one process."""
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import CONFIG, FEATURES, ONE_LINE, ROOT, SMALL, checkpoint_file, cli_args_for, contents
from interrupted import call
from launch import children_of, free_port, wait_for
from numeric import assert_close

from demo_sdtps.config import load_cfg
from demo_sdtps.engine.shards import open_shards
from demo_sdtps.tools import export_features

pytestmark = pytest.mark.slow
LARGE = (*SMALL, "INPUT.SIZE_TRAIN", "[128,64]", "INPUT.SIZE_TEST", "[128,64]")
"""Images that take their time."""
ONE_NODE = [("--standalone", "--nproc_per_node=2")]


def two_nodes():
    port = free_port()
    return [("--nnodes=2", f"--node_rank={rank}", "--master_addr=127.0.0.1", f"--master_port={port}", "--nproc_per_node=1")
            for rank in (0, 1)]


@pytest.fixture(scope="module")
def words(tiny_root, tmp_path_factory):
    weights = checkpoint_file(tmp_path_factory.mktemp("weights") / "last.pth",
                              load_cfg(CONFIG, ["DATASETS.ROOT_DIR", str(tiny_root), *LARGE]))
    return cli_args_for(tiny_root, "--weight", weights, small=LARGE)


@pytest.fixture
def started():
    """Start the nodes' torchrun: → their processes, which end with the test."""
    found = []

    def start(nodes, words, folders=(None, None)):
        for node, folder in zip(nodes, folders, strict=False):
            line = [sys.executable, "-m", "torch.distributed.run", *node, str(ROOT / "tools" / "export_features.py")]
            found.append(subprocess.Popen([*line, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                          cwd=folder))
        return found[-len(nodes):]

    yield start
    for process in found:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def alone(words, tmp_path_factory):
    """The folder of what one process writes."""
    folder = tmp_path_factory.mktemp("alone")
    assert call([*words, "--output", folder / "x", "--shards", "5"], export_features.main) == 0
    assert call([*words, "--output", folder / "x.npz"], export_features.main) == 0
    return folder


def features_of(place):
    if place.suffix == ".npz":
        return np.load(place)["features"]
    shards = open_shards(place, check=True)
    return np.concatenate([shards.features(number) for number in range(len(shards.starts) - 1)])


@pytest.mark.parametrize("nodes", [pytest.param(lambda: ONE_NODE, marks=pytest.mark.soak), two_nodes],
                         ids=["one node", "two nodes"])
@pytest.mark.parametrize("output", [("x.npz",), pytest.param(("x", "--shards", "5"), marks=pytest.mark.soak)],
                         ids=["file", "shards"])
def test_several_processes_export_what_one_does(started, words, alone, tmp_path, nodes, output):
    """Seven shards, which two processes cannot share equally."""
    name, *more = output
    said = [process.communicate(timeout=120) for process in started(nodes(), [*words, "--output", tmp_path / name, *more])]
    assert "".join(stdout for stdout, _ in said).count("Wrote ") == 1, said
    assert_close(features_of(tmp_path / name), features_of(alone / name), *FEATURES, *FEATURES)
    assert {path.name for path in tmp_path.rglob("*")} == ({path.name for path in (alone / "x").iterdir()} | {"x"}
                                                           if more else {"x.npz"})


@pytest.mark.soak
@pytest.mark.parametrize("nodes", [pytest.param(lambda: ONE_NODE, marks=pytest.mark.soak), two_nodes],
                         ids=["one node", "two nodes"])
def test_a_process_that_dies_ends_all_and_its_shards_alone_are_missing(started, words, tmp_path, nodes):
    folder = tmp_path / "x"
    nodes, words = nodes(), [*words, "--output", folder, "--shards", "2"]
    starters = started(nodes, words)
    wait_for(starters[0], folder / "shard-00001.json")
    workers = [worker for starter in starters for worker in children_of(starter.pid)]
    os.kill(workers[-1], signal.SIGKILL)
    began = time.monotonic()
    assert all(starter.wait(60) != 0 for starter in starters) and time.monotonic() - began < 60
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers) and not (folder / "manifest.json").exists()
    complete = {path.stem[-5:] for path in folder.glob("shard-*.json")}
    assert "00001" in complete and len(complete) < 16
    before = {name: data for name, data in contents(folder).items() if name[-10:-5] in complete or name[-9:-4] in complete}
    times = {name: (folder / name).stat().st_mtime_ns for name in before}
    assert len(before) == 4 * len(complete)
    (stdout, stderr), *_ = [starter.communicate(timeout=120) for starter in started(nodes, words)]
    assert f"Wrote {16 - len(complete)} shards" in stdout, stderr
    assert {name: (folder / name).stat().st_mtime_ns for name in before} == times
    assert len(open_shards(folder, check=True)) == 32 and not list(folder.glob(".*"))


@pytest.mark.soak
def test_an_error_of_one_process_is_reported_once(started, own_root, words, tmp_path):
    """An image of the second process's share cannot be read; what the first has written stays."""
    sorted((own_root / "RGBNT201" / "test" / "NI").iterdir())[-1].write_bytes(b"")
    own = [*words, "DATASETS.ROOT_DIR", own_root, "--output", tmp_path / "x", "--shards", "16"]
    (starter,) = started(ONE_NODE, own)
    _, stderr = starter.communicate(timeout=120)
    assert starter.returncode == 1 and stderr.count(ONE_LINE) == stderr.count("cannot be read (it is empty)") == 1
    assert "export_features.py\", line" not in stderr
    assert not [name for name in contents(tmp_path / "x") if "00001" in name or name == "manifest.json"]


@pytest.mark.soak
def test_a_refused_output_is_reported_once(started, words, alone, tmp_path):
    shutil.copytree(alone / "x", tmp_path / "x")
    (starter,) = started(ONE_NODE, [*words, "--output", tmp_path / "x", "--shards", "5", "--return_pattern", "1"])
    _, stderr = starter.communicate(timeout=120)
    assert starter.returncode == 1 and stderr.count(ONE_LINE) == stderr.count("has shards of another return pattern") == 1
    assert contents(tmp_path / "x") == contents(alone / "x")
