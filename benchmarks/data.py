"""Benchmarks of data: decoding and augmentation of a triplet, and the time that training waits for data."""
import statistics
import tempfile
from collections.abc import Mapping
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
from demo_sdtps.evaluation.protocol import make_test_data
from demo_sdtps.modeling import make_model
from demo_sdtps.runtime.device import choose_device, set_seed
from demo_sdtps.synthetic import pedestrians
from demo_sdtps.training.reid import ReIDTrainer

FITTING, OTHER = (256, 128), (300, 150)  # height and width on disk: as the network's input, and one that is resized
MOST_WAITING = 1.0  # per cent of the training time


def data_rows(quick: bool) -> list[Row]:
    """Loading of synthetic images of two sizes, not cached, and the waiting time of training the demo, which caches them."""
    with tempfile.TemporaryDirectory() as folder:
        roots = {size: Path(folder, f"{size[0]}") for size in (FITTING, OTHER)}
        for size, root in roots.items():
            draw(root, *size, identities=2 if quick else 4)
        demo = Path(folder, "demo")
        draw(demo, 128, 64, identities=8 if quick else 100)  # 12 batches: training waits for the first of an epoch
        rounds = 1 if quick else 15
        return [
            speed_row("decoding and augmentation of a triplet", loading_seconds(roots[FITTING], rounds), at_least=2),
            speed_row(f"the same from {OTHER[0]}×{OTHER[1]} pixels, resized", loading_seconds(roots[OTHER], rounds)),
            waiting_row(demo, epochs=2 if quick else 4),
        ]


def draw(root: Path, height: int, width: int, identities: int, test_identities: int = 1) -> None:
    """Write synthetic triplets in the layout of RGBNT201, 4 of each training and test identity."""
    pedestrians.write_data_set(root / pedestrians.FOLDER, identities, test_identities, 1, height, width)


def training_samples(root: Path) -> tuple[CfgNode, list[Sample]]:
    cfg = load_cfg("RGBNT201/DeMo_SDTPS.yml", ["DATASETS.ROOT_DIR", str(root)])
    return cfg, read_splits(cfg, ("train",))["train"]


def loading_seconds(root: Path, rounds: int) -> dict[str, float]:
    """Seconds per triplet of the plain formulation ('reference') and of ours, from files to normalised tensors."""
    cfg, samples = training_samples(root)
    dataset = TripletDataset(samples, [0] * len(samples), TrainTransform(cfg), cache=False)
    augment, threads = plain.train_transform(cfg), torch.get_num_threads()
    torch.set_num_threads(1)  # as in a loading process
    seconds = in_turns("loading", {"reference": lambda: [plain.load_triplet(sample.paths, augment) for sample in samples],
                                   "ours": lambda: [dataset[index, index] for index in range(len(samples))]}, rounds)
    torch.set_num_threads(threads)
    return {name: found / len(samples) for name, found in seconds.items()}


def waiting_row(root: Path, epochs: int) -> Row:
    """Share of the training time that training waits for data, in the demo; without the first epoch."""
    cfg = load_cfg("Synthetic/DeMo_SDTPS.yml", ["DATASETS.ROOT_DIR", str(root), "SOLVER.MAX_EPOCHS", str(epochs),
                                                "SOLVER.EVAL_PERIOD", str(epochs), "SOLVER.EVAL_UNTRAINED", "False"])
    splits = read_splits(cfg)
    set_seed(cfg.SOLVER.SEED)
    model = make_model(cfg, len(identity_labels(splits["train"])), 1 + max(sample.camera for sample in splits["train"]))
    shares: list[float] = []

    class Watched(ReIDTrainer):
        def describe(self, means: Mapping[str, float]) -> str:  # called once at the end of every epoch
            shares.append(100 * self.meter.speed()[1])
            return super().describe(means)

    with tempfile.TemporaryDirectory() as output:
        Watched(cfg, model.to(choose_device(cfg)), train_loader(cfg, splits["train"]),
                make_test_data(cfg, splits["query"], splits["gallery"]), data={}).run(Path(output))
    share = statistics.median(shares[1:])
    return Row("training's wait for data in the demo", None, share, "%", None, f"≤ {MOST_WAITING:g} %", share <= MOST_WAITING)
