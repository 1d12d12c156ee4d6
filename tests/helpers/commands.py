"""What the tests of the commands share: words, processes, what they leave behind, and trainings that are interrupted."""

import csv
import json
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from numeric import shift_seed, tolerance
from tiny import CONFIG, MODEL, ROOT
from torch.utils._pytree import keystr, tree_flatten_with_path

from demo_sdtps.commands import train as train_net
from demo_sdtps.commands.cli import run
from demo_sdtps.config import load_cfg
from demo_sdtps.modeling.checkpoints.loading import save_checkpoint
from demo_sdtps.modeling.demo import make_model
from demo_sdtps.training import reid
from demo_sdtps.training.run import Run

BASELINE = ROOT / "configs" / "Synthetic" / "Baseline.yml"
SMALL = shlex.split(
    "INPUT.SIZE_TRAIN [32,16] INPUT.SIZE_TEST [32,16] MODEL.PATCH_SIZE 4 MODEL.STRIDE_SIZE [4,4] "
    "SOLVER.IMS_PER_BATCH 8 DATALOADER.NUM_INSTANCE 2 SOLVER.MAX_EPOCHS 2 SOLVER.EVAL_PERIOD 1 "
    "DATALOADER.NUM_WORKERS 0 MODEL.DEVICE cpu"
)
COLUMNS = ["mAP", "Rank-1", "Rank-5", "Rank-10", "mINP"]
BACKBONE_WIDTH = 64
FUSION = ("MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.HEAD", "4")
KEEP_ALL = ("MODEL.SDTPS_SPARSE_RATIO", "1.0")
"""SDTPS without a choice of patches, which may differ by rounding (tiny.margins) in batches of different sizes."""
ONE_LINE = "error: "
QUERIES, MATCHES = 32, 6
"""In the test split of `tiny_root`: images, and those of the same person from other cameras."""
RUN = {
    "status": "finished",
    "versions": {"torch": "2"},
    "machine": {"device": "cpu", "name": "x", "cpu": "y", "threads": 1},
    "commit": None,
    "changed": None,
    "seconds": 3.0,
}
EPOCH = {
    "epoch": 1,
    "loss": 2.0,
    "accuracy": 0.5,
    "patterns": {
        pattern: dict.fromkeys(("mAP", "Rank-1", "Rank-5", "Rank-10"), 0.5) for pattern in "123"
    },
}
"""The least that run.json of a finished run and a record of metrics.json have."""

SHOWN = 5  # triplets of the fixture `files`


def file_cameras(files):
    """Cameras, from 0, of the fixture `files`."""
    return [int(path.name.split("cam")[1][0]) - 1 for path in files["rgb"]]


def cli_args_for(root, *more, config=CONFIG, small=SMALL):
    return ["--config_file", str(config), "DATASETS.ROOT_DIR", str(root), *small, *map(str, more)]


def processes(folder, *commands):
    """Run (script, word, …) commands in `folder`, two at a time; all must succeed. → their completed processes."""

    def one(command):
        script, *words = map(str, command)
        done = subprocess.run(
            [sys.executable, str(ROOT / script), *words], cwd=folder, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, commands))


def copy(path, to):
    """A file's copy at `to`, in folders that need not be there yet."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def load_records(folder):
    return json.loads((folder / "metrics.json").read_text())


def near(record, queries=QUERIES, matches=MATCHES, printed=0.0, exchanges=1):
    """What a record {pattern: {column: value}} may be where it is computed with another rounding, as in batches of another
    size or in another process: two images whose distances to a query differ by rounding alone may change places. That is
    worth at most 1/(2 · matches) of the query's AP, and all of its hit at a rank. `printed` is the rounding in a table."""
    step = 1.001 * exchanges / queries
    return {
        pattern: {
            column: pytest.approx(
                value, abs=printed + step / (2 * matches if column == "mAP" else 1)
            )
            for column, value in row.items()
        }
        for pattern, row in record.items()
    }


def squared_distances(features):
    """Of (n, D), as differences: (n, n) float64."""
    return torch.stack(
        [(features.double() - feature.double()).square().sum(1) for feature in features]
    )


def assert_same_hits(actual, expected):
    """Rows (query, rank, gallery, distance) of features that differ by the roundings of both. By a change c of unit vectors a
    and b, |a - b|² changes by 4c·|a - b| + 4c² at most. Hits, or one and the one after the last, that are as far may swap."""
    assert [(*row[:2],) for row in actual] == [(*row[:2],) for row in expected]
    change, printed = tolerance(*MODEL, *MODEL), 1e-6
    by_name = {(query, name): float(distance) for query, _, name, distance in expected}
    last = {query: float(distance) for query, *_, distance in expected}
    for (query, _, name, distance), (*_, at_rank) in zip(actual, expected, strict=True):
        for other in (float(at_rank), by_name.get((query, name), last[query])):
            assert abs(float(distance) - other) <= 4 * change * other**0.5 + 4 * change**2 + printed


def read_cases(path):
    """What test_net.py wrote to its --json file: records by case."""
    return json.loads(Path(path).read_text())["cases"]


def read_scores(path):
    """The record of the only case in such a file."""
    (record,) = read_cases(path).values()
    return record


def table_rows(record):
    """The rows of a record as a table prints them, by pattern."""
    return {
        pattern: [f"{100 * value:.1f}" for value in row.values()] for pattern, row in record.items()
    }


def parse_table(text):
    """The numbers of a printed table by pattern, as they are printed."""
    lines = [line.split() for line in text.splitlines() if line[:2] in ("1 ", "2 ", "3 ")]
    return {line[0]: line[2:] for line in lines}


def checkpoint_file(path, cfg, classes=6, cameras=4, about=None):
    """A checkpoint of a model as it is made, with its configuration; its cameras differ much."""
    torch.manual_seed(shift_seed(3))
    model = make_model(cfg, classes, cameras)
    model.backbone.camera_embedding.data.normal_()
    save_checkpoint(path, cfg, model, 1, about or {})
    return path


def make_run(folder, root, *opts, config=CONFIG):
    """A finished run of an untrained model, as a training leaves it → the folder."""
    cfg = load_cfg(
        config, ["DATASETS.ROOT_DIR", str(root), *SMALL, "OUTPUT_DIR", str(folder), *opts]
    )
    torch.manual_seed(shift_seed(cfg.SOLVER.SEED))
    save_checkpoint(folder / "last.pth", cfg, make_model(cfg, 6, 8), 2)
    (folder / "config.yml").write_text(cfg.dump())
    untrained = {"epoch": 0, "patterns": EPOCH["patterns"]}
    (folder / "metrics.json").write_text(json.dumps([untrained, EPOCH, EPOCH | {"epoch": 2}]))
    return folder


def weights_file(path, cfg, dataset="Synthetic"):
    torch.manual_seed(shift_seed())
    torch.save(
        {"model": make_model(cfg, 6, 4).state_dict(), "dataset": dataset, "camera_num": 4}, path
    )
    return path


def read_rows(path):
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return list(csv.reader(file))


RANDOM = shlex.split(
    "MODEL.SDTPS_USE_GUMBEL True MODEL.SDTPS_GUMBEL_SELECT True MODEL.DROP_PATH 0.2 "
    "MODEL.METRIC_LOSS_TYPE triplet_center SOLVER.GRAD_CLIP 5"
)
"""Everything random that the model has, and everything that has a state."""


def three_epochs(root, *more):
    """A command's words: of five or six steps each, evaluated."""
    epochs = shlex.split("SOLVER.MAX_EPOCHS 3 SOLVER.EVAL_UNTRAINED False")
    return cli_args_for(root, *epochs, *RANDOM, *more)


def call(words, main=train_net.main):
    """Call a command: → its exit code."""
    with mock.patch.object(sys, "argv", ["command", *map(str, words)]):
        try:
            run(main)
        except SystemExit as ended:
            return ended.code
    return 0


def prepared(cfg):
    """What `train` gives the loop, which is not run, and nothing is written: → its model, loss, notes, about and evaluate."""
    with mock.patch.object(reid, "fit") as fit, mock.patch.object(Run, "begin") as begin:
        model = reid.train(cfg, overwrite=True).model.train()
    _, _, loss, _, evaluate = fit.call_args.args
    return SimpleNamespace(model=model, loss=loss, evaluate=evaluate, **begin.call_args.kwargs)


@contextmanager
def at(owner, name, number, act):
    """Context manager: the call number `number`, from 1, of a method or function does `act` first."""
    original, calls = getattr(owner, name), []

    def watch(*arguments, **named):
        calls.append(name)
        if len(calls) == number:
            act()
        return original(*arguments, **named)

    with mock.patch.object(owner, name, watch):
        yield
    assert len(calls) >= number, f"{name} was called {len(calls)} times"


def kill():
    """Leaves the files as they are, as SIGKILL would."""
    raise KeyboardInterrupt


def assert_same(reference, output):
    """Weights, optimisers, random states, metrics: all to the last bit."""
    assert (reference / "metrics.json").read_bytes() == (output / "metrics.json").read_bytes()
    for name in ("last.pth", "best.pth"):
        one, other = (
            dict(leaves(torch.load(folder / name, weights_only=True)))
            for folder in (reference, output)
        )
        assert one.keys() == other.keys()
        assert not [
            key
            for key, value in one.items()
            if key != "['config']" and not equal(value, other[key])  # which has the folder
        ], name


def leaves(content):
    """Tensors, numbers and texts in nested mappings and sequences, with their paths."""
    return [(keystr(path), value) for path, value in tree_flatten_with_path(content)[0]]


def equal(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
