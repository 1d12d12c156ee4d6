"""The checks of tools/gpu_check.py: what must hold on a GPU, and on any device.

A check is a function of a `Place` that yields what it found, one after the other; one that cannot run here says so.
"""
import json
import os
import subprocess
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from itertools import count, groupby
from pathlib import Path
from typing import NamedTuple

import torch
from yacs.config import CfgNode

from demo_sdtps.benchmarks.data import draw
from demo_sdtps.benchmarks.model import random_batch
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.datasets import identity_labels, read_splits
from demo_sdtps.datasets.loaders import train_loader
from demo_sdtps.engine.evaluation.extraction import CASES, extract_features
from demo_sdtps.engine.evaluation.protocol import make_test_data
from demo_sdtps.engine.monitor import LossMonitor
from demo_sdtps.engine.reid import ReIDTrainer
from demo_sdtps.engine.runtime import DTYPES, autocast, compile_model, missing_for_compilation, set_seed
from demo_sdtps.modeling import make_model
from demo_sdtps.modeling.backbones import make_backbone
from demo_sdtps.tools import kill_test

ROOT = Path(__file__).resolve().parents[1]
PASSED, FAILED, SKIPPED, MEASURED = "passed", "failed", "skipped", "measured"
OPTIONS = ("INPUT.SIZE_TRAIN", "[64,32]", "INPUT.SIZE_TEST", "[64,32]", "SOLVER.IMS_PER_BATCH", "8", "SOLVER.MAX_EPOCHS", "2",
           "DATALOADER.NUM_INSTANCE", "2", "DATALOADER.NUM_WORKERS", "0", "MODEL.HDM", "True", "MODEL.ATM", "True",
           "MODEL.HEAD", "4", "MODEL.SDTPS_USE_GUMBEL", "True", "MODEL.DROP_PATH", "0.1", "SOLVER.GRAD_CLIP", "5",
           "MODEL.METRIC_LOSS_TYPE", "triplet_center")
"""A small model with everything that is random, and everything that has a state."""
NEAR = {"off": 1e-4, "bf16": 2e-2}
"""Limit of the relative difference of two ways to compute the same, by value of SOLVER.AMP."""
ALIKE = 1e-4  # the same for code that a compiler or several processes reorder
WAITED = "called a synchronizing CUDA operation"
"""torch's warning; another, which it gives when it is first asked for these, is of synchronizing operations too."""
MIB = 2**20


class Place(NamedTuple):
    """Where the checks run."""

    device: torch.device
    quick: bool  # small sizes
    folder: Path  # temporary, with a data set of a few synthetic pedestrians


class Found(NamedTuple):
    """What a check found: it passed where `figure` is not above `limit`; without a limit it is a measurement."""

    what: str
    figure: float | None = None
    limit: float | None = None
    unit: str = ""
    note: str = ""
    given: str = ""  # a result that does not follow from the figure

    @property
    def result(self) -> str:
        if self.given or self.limit is None or self.figure is None:
            return self.given or MEASURED
        return PASSED if self.figure <= self.limit else FAILED  # of NaN, failed


def make_data(folder: Path) -> None:
    draw(folder, 64, 32, identities=6, test_identities=4)


def configuration(place: Place, *opts: str) -> CfgNode:
    return load_cfg("Synthetic/DeMo_SDTPS.yml", [*OPTIONS, "DATASETS.ROOT_DIR", str(place.folder), "MODEL.DEVICE",
                                                 str(place.device), *opts])


def trainer_of(place: Place, *opts: str) -> ReIDTrainer:
    cfg = configuration(place, *opts)
    splits = read_splits(cfg)
    set_seed(cfg.SOLVER.SEED)
    model = make_model(cfg, len(identity_labels(splits["train"])), 4).to(place.device)
    return ReIDTrainer(cfg, model, train_loader(cfg, splits["train"]), make_test_data(cfg, splits["query"], splits["gallery"]),
                       {})


def trained(trainer: ReIDTrainer) -> list[float]:
    """Train all epochs, without evaluation → their mean losses."""
    losses = []
    for _ in range(trainer.cfg.SOLVER.MAX_EPOCHS):
        trainer.train_epoch()
        trainer.monitor.flush()
        losses.append(trainer.meter.means()["loss"])
        trainer.epoch, trainer.step = trainer.epoch + 1, 0
    return losses


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def golden(place: Place) -> Iterator[Found]:
    """The tests of golden cases, by pytest in a process of its own (tests/golden_on_device.py)."""
    report, tests = place.folder / "golden.jsonl", ROOT / "tests"
    files = [path for path in sorted(tests.glob("test_*.py")) if "load_case" in path.read_text(encoding="utf-8")]
    paths = os.pathsep.join(filter(None, [str(tests), os.environ.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "golden_on_device", "-p", "no:cacheprovider", "-o",
                           "addopts=", "-W", "default", "-k", "golden and not whole_model" if place.quick else "golden",
                           *map(str, files)], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": paths, "GOLDEN_DEVICE": str(place.device),
                                            "GOLDEN_REPORT": str(report)})
    if not report.exists():
        raise RuntimeError((done.stderr or done.stdout).strip().splitlines()[-1])
    lines = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    for file, tests_of in groupby(lines, key=lambda line: line["name"].partition("::")[0]):
        cases = list(tests_of)
        bad = [f"{line['name']}: {line['error']}" for line in cases if line["outcome"] == FAILED]
        share = max((line["share"] for line in cases if line["share"] is not None), default=None)
        yield Found(f"golden cases of {file} ({len(cases)}): largest share of a tolerance", share, 1 if share else None,
                    note=f"{len(bad)} failed, the first {bad[0]}" if bad else "", given=FAILED if bad else PASSED)


def precisions(place: Place) -> Iterator[Found]:
    for mode in DTYPES:
        trainer = trainer_of(place, "SOLVER.AMP", mode)
        losses = trained(trainer)
        tensors = [*trainer.model.state_dict().values(), *trainer.centers.state_dict().values(), torch.tensor(losses)]
        scale = f", scale of the gradients {trainer.scaler.get_scale():g}" if trainer.scaler.is_enabled() else ""
        yield Found(f"training, SOLVER.AMP {mode}: tensors that are not finite",
                    sum(not tensor.isfinite().all() for tensor in tensors), 0,
                    note=f"losses {', '.join(f'{loss:.3f}' for loss in losses)}{scale}")


def attention(place: Place) -> Iterator[Found]:
    torch.manual_seed(0)
    cfg = configuration(place)
    backbone = make_backbone(cfg, 1).to(place.device).eval()  # without what is random
    images, cameras, _ = random_batch(cfg, 16, place.device)
    probe = torch.randn(16, backbone.num_patches, backbone.width, device=place.device)
    for mode, limit in NEAR.items():
        found = {}
        for fused in (True, False):
            backbone.fused_attention = fused
            backbone.zero_grad()
            with autocast(place.device, DTYPES[mode]):
                tokens, _ = backbone(images["RGB"], 0 * cameras)
            (tokens.float() * probe).sum().backward()
            found[fused] = {"tokens": tokens.detach(), "gradient": backbone.vit.patch_embed.proj.weight.grad}
        for what, expected in found[False].items():
            yield Found(f"fused attention beside plain, SOLVER.AMP {mode}: relative difference of the {what}",
                        difference(found[True][what], expected), limit)


def compiled(place: Place) -> Iterator[Found]:
    missing = missing_for_compilation() if place.device.type == "cpu" else None
    if place.quick or missing:
        yield Found("MODEL.COMPILE", given=SKIPPED, note=f"there is no {missing}" if missing else "too slow for --quick")
        return
    torch.manual_seed(0)
    cfg = configuration(place)
    model = make_model(cfg, 5, 4).to(place.device).eval()
    images, cameras, _ = random_batch(cfg, 8, place.device)
    found = []
    for _ in range(2):
        model.zero_grad()
        features = model(images, cameras)
        (features * torch.linspace(-1, 1, features.shape[1], device=place.device)).sum().backward()
        found.append({"features": features.detach(), "gradient": model.backbone.vit.patch_embed.proj.weight.grad})
        compile_model(model, place.device)
    for what, expected in found[0].items():
        yield Found(f"MODEL.COMPILE: relative difference of the {what}", difference(found[1][what], expected), ALIKE)


def repeated(place: Place) -> Iterator[Found]:
    for mode in ("off", "bf16"):
        states = []
        for _ in range(2):
            trainer = trainer_of(place, "SOLVER.AMP", mode)
            losses = trained(trainer)
            states.append({**trainer.model.state_dict(), **trainer.centers.state_dict(), "losses": torch.tensor(losses)})
        differ = [name for name, tensor in states[0].items() if not torch.equal(tensor, states[1][name])]
        yield Found(f"two runs of one seed, SOLVER.AMP {mode}: tensors of {len(states[0])} that differ", len(differ), 0,
                    note=", ".join(differ[:3]))


def resumed(place: Place) -> Iterator[Found]:
    """A run that is killed and resumed, by tools/kill_test.py, on this device."""
    seed = next(seed for seed in count() if kill_test.kind_of(seed, 0) == kill_test.KILL)
    options: Namespace = kill_test.parser().parse_args(["--kills", "1", "--epochs", "2", "--seed", str(seed), "MODEL.DEVICE",
                                                        str(place.device)])
    folder = place.folder / "kill"
    folder.mkdir()
    differences = kill_test.kill_test(folder, options)["differences"]
    yield Found("a run that is killed and resumed: differences from one that is not", len(differences), 0,
                note=", ".join(differences[:3]))


def processes(place: Place) -> Iterator[Found]:
    """DistributedDataParallel under torchrun, one process for each GPU (tools/gpu_processes.py)."""
    report, size = place.folder / "processes.json", torch.cuda.device_count() if place.device.type == "cuda" else 2
    # Without --local-addr they look for each other by the machine's name, which nothing may resolve where there is no network.
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1",
                           f"--nproc_per_node={size}", str(ROOT / "tools" / "gpu_processes.py"), str(report)],
                          capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "Error" in line or line.startswith("error: ")]
        raise RuntimeError((errors or done.stderr.strip().splitlines() or ["no message"])[0])
    for what, figure in json.loads(report.read_text(encoding="utf-8")).items():
        yield Found(what, figure, ALIKE)


def losses(place: Place) -> Iterator[Found]:
    monitor = LossMonitor()
    said = "nothing"
    try:
        for step, loss in enumerate((1.0, torch.nan), start=1):
            monitor.add(1, step, torch.tensor(loss, device=place.device))
        monitor.flush()
    except UserError as error:
        said = str(error)
    yield Found("a loss that is not a number is told with its own step and files",
                given=PASSED if "epoch 1, step 2, with the files" in said else FAILED, note=said.partition(", with")[0])


def waits(place: Place) -> Iterator[Found]:
    if place.device.type != "cuda":
        yield Found("the CPU waits for the GPU", given=SKIPPED, note="needs a GPU; tests/test_waiting.py asks a fake one")
        return
    trainer = trainer_of(place, "SOLVER.AMP", "bf16")
    trainer.train_epoch()  # the first steps allocate memory and choose kernels
    trainer.step = 0
    loader, cases = trainer.test_data.loader, list(CASES.values())
    works: dict[str, Callable[[], object]] = {
        "training step": trainer.train_epoch,
        "evaluation's loop": lambda: extract_features(trainer.cfg, trainer.model, loader, cases)}
    for what, work in works.items():
        work()
        trainer.step = 0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                work()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        places = [f"{Path(one.filename).name}:{one.lineno}" for one in caught if WAITED in str(one.message)]
        yield Found(f"{what}: times that the CPU waits for the GPU", len(places), 0, note=", ".join(dict.fromkeys(places)))


def memory(place: Place) -> Iterator[Found]:
    if place.device.type != "cuda":
        yield Found("memory of a GPU", given=SKIPPED, note="needs a GPU; benchmarks/run.py model measures processes")
        return
    trainer, held = trainer_of(place), []
    for _ in range(3):
        trainer.train_epoch()
        trainer.monitor.flush()
        trainer.step = 0
        held.append(torch.cuda.memory_allocated(place.device) / MIB)
    yield Found("memory that a third epoch adds to what a second held", held[2] - held[1], 1, "MiB")
