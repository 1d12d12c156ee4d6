"""Rows of benchmarks/run.py about data: decoding and augmentation of a triplet, and how long training waits for data."""
import contextlib
import io
import logging
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from yacs.config import CfgNode

from demo_sdtps.benchmarks.plain import loading as plain
from demo_sdtps.benchmarks.rows import Row, in_turns, speed_row
from demo_sdtps.config import load_cfg
from demo_sdtps.datasets import identity_labels, read_splits
from demo_sdtps.datasets.base import Sample
from demo_sdtps.datasets.loaders import TripletDataset, train_loader
from demo_sdtps.datasets.transforms import TrainTransform
from demo_sdtps.engine.evaluate import make_test_data
from demo_sdtps.engine.loop import logger as training_log
from demo_sdtps.engine.runtime import choose_device, set_seed
from demo_sdtps.engine.train import train
from demo_sdtps.modeling import make_model
from demo_sdtps.tools import make_synthetic

ROOT = Path(__file__).resolve().parent.parent
RGBNT201 = ROOT / "configs" / "RGBNT201" / "DeMo_SDTPS.yml"
DEMO = ROOT / "configs" / "Synthetic" / "DeMo_SDTPS.yml"
FITTING, OTHER = (256, 128), (300, 150)
"""Heights and widths on disk: what RGBNT201's images have and the network takes, and one that is resized."""
MOST_WAITING = 1.0
"""Per cent of training's time."""


def data_rows(quick: bool) -> list[Row]:
    """Decoding and augmentation beside the plain way, on images that fit and others, and the wait of the demo's training.

    All images are drawn anew in a temporary folder; nothing is kept decoded but in the demo, as its users have it.
    """
    with tempfile.TemporaryDirectory() as folder:
        roots = {size: Path(folder, f"{size[0]}") for size in (FITTING, OTHER)}
        for size, root in roots.items():
            draw(root, *size, identities=2 if quick else 4)
        demo = Path(folder, "demo")
        draw(demo, 128, 64, identities=8 if quick else 100)  # 12 batches: an epoch's first is waited for
        rounds = 1 if quick else 15
        return [
            speed_row("decoding and augmentation of a triplet", loading_seconds(roots[FITTING], rounds), at_least=2),
            speed_row(f"the same from {OTHER[0]}×{OTHER[1]} pixels, resized", loading_seconds(roots[OTHER], rounds)),
            waiting_row(demo, epochs=2 if quick else 4),
        ]


def draw(root: Path, height: int, width: int, identities: int, test_identities: int = 1) -> None:
    """Synthetic triplets in RGBNT201's layout: `identities` to train on and others to test on, 4 triplets of each."""
    with contextlib.redirect_stdout(io.StringIO()):
        make_synthetic.main(["--root", str(root), "--height", str(height), "--width", str(width), "--workers", "1",
                             "--identities", str(identities), "--test_identities", str(test_identities),
                             "--images_per_camera", "1"])


def training_samples(root: Path) -> tuple[CfgNode, list[Sample]]:
    """RGBNT201's configuration on the data in `root`, and the training samples there."""
    cfg = load_cfg(RGBNT201, ["DATASETS.ROOT_DIR", str(root)])
    return cfg, read_splits(cfg, ("train",))["train"]


def loading_seconds(root: Path, rounds: int) -> dict[str, float]:
    """Seconds per triplet of the plain way ('reference') and of ours, from the files to normalised tensors."""
    cfg, samples = training_samples(root)
    dataset = TripletDataset(samples, [0] * len(samples), TrainTransform(cfg), cache=False)
    augment = plain.train_transform(cfg)
    with one_thread():
        seconds = in_turns("loading", {
            "reference": lambda: [plain.load_triplet(sample.paths, augment) for sample in samples],
            "ours": lambda: [dataset[index, index] for index in range(len(samples))],
        }, rounds)
    return {name: found / len(samples) for name, found in seconds.items()}


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute as a loading process does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def waiting_row(root: Path, epochs: int) -> Row:
    """The share of training's time that it waits for data, in the demo's configuration; the first epoch is not counted."""
    cfg = load_cfg(DEMO, ["DATASETS.ROOT_DIR", str(root), "SOLVER.MAX_EPOCHS", epochs, "SOLVER.EVAL_PERIOD", epochs,
                          "SOLVER.EVAL_UNTRAINED", False])
    splits = read_splits(cfg)
    set_seed(cfg.SOLVER.SEED)
    model = make_model(cfg, len(identity_labels(splits["train"])), 1 + max(sample.camera for sample in splits["train"]))
    with tempfile.TemporaryDirectory() as output, waiting_told() as shares:
        train(cfg, model.to(choose_device(cfg)), train_loader(cfg, splits["train"]),
              make_test_data(cfg, splits["query"], splits["gallery"]), Path(output))
    share = statistics.median(shares[1:])
    return Row("training's wait for data in the demo", None, share, "%", None, f"≤ {MOST_WAITING:g} %", share <= MOST_WAITING)


@contextlib.contextmanager
def waiting_told() -> Iterator[list[float]]:
    """The per cent of each epoch that training says it waited for data, which its log alone tells."""
    shares = []

    def keep(record: logging.LogRecord) -> bool:
        if "for data" in record.msg:
            shares.append(record.args[-1])
        return False  # the rows are all that is to be seen

    level = training_log.level
    training_log.setLevel(logging.INFO)
    training_log.addFilter(keep)
    try:
        yield shares
    finally:
        training_log.removeFilter(keep)
        training_log.setLevel(level)
