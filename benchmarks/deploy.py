"""Rows of benchmarks/run.py: CLIP's ViT-B/16 on RGB, dense and slimmed, by torch, ONNX Runtime and OpenVINO on the CPU."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.rows import Row, ratio_row
from benchmarks.timing import in_turns
from demo_sdtps.config import load_cfg, with_values
from demo_sdtps.datasets.transforms import Transform, resize_and_normalise
from demo_sdtps.modeling.demo import DeMo
from demo_sdtps.modeling.exported import ExportedModel
from demo_sdtps.modeling.precision import cast_copy, evaluating
from demo_sdtps.retrieval.onnx_export import Feed, quantise_onnx, write_onnx, write_openvino
from demo_sdtps.retrieval.reid import Extractor

KINDS = {"dense": {}, "slimmed": {"MODEL.SLIM_BLOCKS": [0, 4], "MODEL.SLIM_KEEP": [0.4, 0.5]}}
RGB_ONLY = ("MODEL.MODALITIES", "[RGB]", "MODEL.SLIM_SCORE", "saliency", "MODEL.DEVICE", "cpu")
CROP = (3, 300, 140)  # a decoded image, larger than the model's
TARGET = 8  # the fastest slimmed over the dense float32 in the same runtime
THREADS, BATCHES, FEEDS = (1, 2), (1, 8), 16
RUNTIMES = ("onnxruntime", "openvino", "nncf")
"""The packages that run and convert files."""

Extract = Callable[[np.ndarray], object]
"""Features (B, D) of images (B, 3, h, w)."""


def deploy_rows(quick: bool, device: torch.device) -> Iterator[Row]:
    """Milliseconds from decoded images to features, all runtimes and precisions in turns, by threads and batch."""
    cfg = load_cfg("RGBNT201/Baseline.yml", ["MODEL.PRETRAIN_PATH_T", "none", *RGB_ONLY])
    if quick:
        small = {"MODEL.TRANSFORMER_TYPE": "test_vit", "INPUT.SIZE_TEST": [64, 32]}
        cfg = with_values(cfg, small | {"INPUT.SIZE_TRAIN": [64, 32]})
    draw, before = np.random.default_rng(0), torch.get_num_threads()
    with TemporaryDirectory() as folder:
        reids = {}
        for kind, slimming in KINDS.items():
            torch.manual_seed(0)
            reids[kind] = Extractor(with_values(cfg, slimming).dump(), 1, 1)
            crops = draw.integers(0, 256, (FEEDS, *CROP), np.uint8)
            write_files(reids[kind], Path(folder, kind), partial(feed_crops, crops))
        for threads in THREADS[: 1 if quick else None]:
            torch.set_num_threads(threads)
            extractors = {
                (kind, name): extract
                for kind, reid in reids.items()
                for name, extract in open_extractors(reid, Path(folder, kind), threads).items()
            }
            for batch in BATCHES[: 1 if quick else None]:
                images = draw.integers(0, 256, (batch, *CROP), np.uint8)
                cases = {case: partial(extract, images) for case, extract in extractors.items()}
                what = f"threads {threads}, batch {batch}"
                seconds = in_turns(what, cases, 1 if quick else 6, summary=min, calls=2)
                yield from compare_kinds(what, {case: s / batch for case, s in seconds.items()})
    torch.set_num_threads(before)


def feed_crops(crops: np.ndarray, model: ExportedModel) -> list[Feed]:
    """The inputs of images (n, 3, h, w), one at a time."""
    return [model.inputs([[crop]], [0]) for crop in crops]


def write_files(
    reid: Extractor, folder: Path, make_feeds: Callable[[ExportedModel], list[Feed]]
) -> None:
    """The model in float32 and int8, of OpenVINO if it and NNCF are installed, whose int8 is calibrated on the feeds."""
    folder.mkdir()
    plain = folder / "float32.onnx"
    about = write_onnx(reid, plain)
    quantise_onnx(Path(copy(plain, folder / "int8.onnx")))
    if find_spec("openvino") and find_spec("nncf"):
        write_openvino(plain, plain.with_suffix(".xml"), about)
        write_openvino(plain, folder / "int8.xml", about, make_feeds(ExportedModel(plain)))


def open_files(folder: Path, threads: int) -> Iterator[tuple[str, ExportedModel]]:
    """The files of `write_files` by runtime and precision, and that of OpenVINO in float32 also in bfloat16."""
    for path in sorted(folder.glob("*.onnx")):
        yield f"ONNX Runtime {path.stem}", ExportedModel(path, "off", threads)
    for path in sorted(folder.glob("*.xml")):
        yield f"OpenVINO {path.stem}", ExportedModel(path, "off", threads)
        if path.stem == "float32":
            yield "OpenVINO bfloat16", ExportedModel(path, "bf16", threads)


def open_extractors(reid: Extractor, folder: Path, threads: int) -> dict[str, Extract]:
    """By runtime and precision."""
    half = deepcopy(reid.model)
    half.backbone = cast_copy(half.backbone, torch.bfloat16)
    models = {"torch float32": reid.model, "torch bfloat16": half}
    transform = resize_and_normalise(reid.cfg, reid.cfg.INPUT.SIZE_TEST)
    by_torch = {name: partial(run_torch, model, transform) for name, model in models.items()}
    return by_torch | {
        name: partial(run_file, model) for name, model in open_files(folder, threads)
    }


def run_torch(model: DeMo, transform: Transform, images: np.ndarray) -> torch.Tensor:
    inputs = torch.stack([transform(image) for image in torch.from_numpy(images)])
    with evaluating(model):
        return model({"RGB": inputs}, torch.zeros(len(images), dtype=torch.int64))


def run_file(model: ExportedModel, images: np.ndarray) -> np.ndarray:
    return model.run(model.inputs([[image] for image in images], [model.cameras] * len(images)))


def runtime_versions() -> dict[str, str]:
    """Versions of those of RUNTIMES that are installed."""
    return {name: version(name) for name in RUNTIMES if find_spec(name)}


def compare_kinds(what: str, seconds: dict[tuple[str, str], float]) -> Iterator[Row]:
    """For every runtime and precision dense beside slimmed, and the fastest slimmed beside the runtime's dense in float32."""
    names = [name for kind, name in seconds if kind == "dense"]
    for name in names:
        dense, slimmed = (seconds[kind, name] for kind in KINDS)
        yield ratio_row(f"{what}: {name}", dense, slimmed)
    for runtime in dict.fromkeys(name.rpartition(" ")[0] for name in names):
        ours = min(seconds["slimmed", name] for name in names if name.startswith(runtime))
        title = f"{what}: {runtime}, fastest slimmed beside dense float32"
        yield ratio_row(title, seconds["dense", f"{runtime} float32"], ours, TARGET)
