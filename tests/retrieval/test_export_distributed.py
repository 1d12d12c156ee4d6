"""Export of features by two processes of torchrun, on one node and on two: the features of one process."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
from commands import CONFIG, ROOT, SMALL, checkpoint_file, cli_args_for
from feature_stores import read_all
from forked import run_two
from interrupted import call
from launch import child_processes, free_port, wait_for
from numeric import assert_close
from pyarrow import parquet as pq
from tiny import MODEL

from demo_sdtps.commands.export import features as export_features
from demo_sdtps.config import load_cfg
from demo_sdtps.retrieval.ranking import open_features
from demo_sdtps.retrieval.table import open_table

pytestmark = [pytest.mark.slow, pytest.mark.soak]
LARGE = (*SMALL, "INPUT.SIZE_TRAIN", "[128,64]", "INPUT.SIZE_TEST", "[128,64]")
"""Images that take their time."""
ONE_NODE = [("--standalone", "--nproc_per_node=2")]


def two_nodes():
    shared = f"--nnodes=2 --master_addr=127.0.0.1 --master_port={free_port()} --nproc_per_node=1"
    return [(*shared.split(), f"--node_rank={rank}") for rank in (0, 1)]


@pytest.fixture(scope="module")
def words(tiny_root, tmp_path_factory):
    cfg = load_cfg(CONFIG, ["DATASETS.ROOT_DIR", str(tiny_root), *LARGE])
    weights = checkpoint_file(tmp_path_factory.mktemp("weights") / "last.pth", cfg)
    return cli_args_for(tiny_root, "--weight", weights, small=LARGE)


@pytest.fixture
def start_nodes():
    """Start the nodes' torchrun: → their processes, which end with the test."""
    with ExitStack() as stack:

        def start(nodes, words):
            processes = []
            for node in nodes:
                torchrun = [sys.executable, "-m", "torch.distributed.run", *node]
                line = [*torchrun, str(ROOT / "tools" / "export_features.py"), *map(str, words)]
                pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
                processes.append(stack.enter_context(subprocess.Popen(line, **pipes)))
                stack.callback(processes[-1].kill)
            return processes

        yield start


@pytest.fixture(scope="module")
def alone(words, tmp_path_factory):
    """The features that one process exports."""
    output = tmp_path_factory.mktemp("alone") / "x.npz"
    assert call([*words, "--output", output], export_features) == 0
    return open_features(output, normalise=False)


def assert_same(output, alone):
    actual = open_features(output, normalise=False)
    assert_close(read_all(actual), read_all(alone), *MODEL, *MODEL)
    assert [*map(str, actual.names)] == [*alone.names]


@pytest.mark.parametrize("is_table", [False, True], ids=["file", "table in object storage"])
def test_two_nodes_export_what_one_process_does(
    start_nodes, alone, words, tmp_path, bucket, is_table
):
    output = f"{bucket}/exported" if is_table else str(tmp_path / "x.npz")
    nodes = start_nodes(two_nodes(), [*words, "--output", output])
    outputs = [process.communicate(timeout=120) for process in nodes]
    assert "".join(stdout for stdout, _ in outputs).count("Wrote ") == 1, outputs
    assert_same(output, alone)


def test_an_export_whose_process_dies_is_continued(start_nodes, alone, words, tmp_path):
    """Each of two processes writes its part."""
    folder = tmp_path / "x"
    words = [*words, "--output", folder]
    (starter,) = start_nodes(ONE_NODE, words)
    wait_for(starter, folder / "features.lance" / "_versions" / "latest_version_hint.json")
    os.kill(child_processes(starter.pid)[-1], signal.SIGKILL)
    assert starter.wait(60) != 0
    before = open_table(folder, "").count()
    (starter,) = start_nodes(ONE_NODE, words)
    stdout, stderr = starter.communicate(timeout=120)
    assert f"{before} were there" in stdout and before < 32, stderr
    assert_same(folder, alone)


def test_two_exports_of_one_table_at_a_time_both_succeed(alone, words, tmp_path):
    """Each row is written once; of two exports of one file, one may be refused."""
    for name in ("x", "x.npz", "x.parquet"):
        line = [sys.executable, "-m", "demo_sdtps.commands", "export", *map(str, words)]
        line += ["--output", str(tmp_path / name), "--overwrite"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
        processes = [subprocess.Popen(line, **pipes) for _ in range(2)]
        messages = [process.communicate(timeout=120)[1] for process in processes]
        codes = [process.returncode for process in processes]
        assert 0 in codes and {*codes} <= {0, 2}, messages
        for code, message in zip(codes, messages, strict=True):
            assert code == 0 or "by another process" in message
        if name != "x.parquet":
            assert_same(tmp_path / name, alone)
        else:
            assert pq.read_table(tmp_path / name)["name"].to_pylist() == [*alone.names]


def test_two_processes_write_the_parquet_of_one(words, success, tmp_path, monkeypatch):
    """Row groups that they cannot share equally."""
    monkeypatch.chdir(tmp_path)
    success(export_features, *words, "--output", "alone.parquet")
    (tmp_path / "program.py").write_text(
        "from demo_sdtps.commands import run_command\nfrom demo_sdtps.retrieval import export\n"
        "export.ROW_GROUP = 11\nrun_command('export')\n"
    )
    output = ("--output", tmp_path / "two.parquet")
    done = run_two(tmp_path / "program.py", *words, *output)
    assert done.returncode == 0 and done.stdout.count("Wrote 32 features") == 1, done.stderr
    assert pq.ParquetFile("two.parquet").num_row_groups == 3
    alone, two = (pq.read_table(f"{name}.parquet") for name in ("alone", "two"))
    features = (np.stack(table["feature"].to_numpy()) for table in (two, alone))
    assert_close(*features, *MODEL, *MODEL)
    assert two.drop_columns("feature").equals(alone.drop_columns("feature"))
    assert two.schema.metadata == alone.schema.metadata
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["alone.parquet", "program.py", "two.parquet"]
