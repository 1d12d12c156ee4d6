"""A trained model as a file for ONNX Runtime or OpenVINO, and as a program of torch.export (docs/deploy.md)."""

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import UserError, with_values
from demo_sdtps.config.cli import print_lines
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.extraction import decoded_triplets, extract_features
from demo_sdtps.evaluation.protocol import TestData, rank_features
from demo_sdtps.modeling.exported import NORMALISED, ExportedModel
from demo_sdtps.retrieval.extractor import Extractor
from demo_sdtps.retrieval.onnx_export.convert import Feed, convert_onnx, write_openvino
from demo_sdtps.retrieval.onnx_export.graph import (
    Patterns,
    export_program,
    metadata,
    random_inputs,
    write_onnx,
)
from demo_sdtps.runtime.files import atomic_write, check_output_file, lock_file

__all__ = ["Patterns", "convert_onnx", "export_model", "export_program", "random_inputs"]

BATCHES = (1, 3, 8)
TOLERANCE = 1e-4
ROUNDING, TRIES = 1e-5, 8  # relative changes of images that show whether a selection is a tie
CALIBRATION = 300
"""Triplets that int8 is calibrated on, at most."""


def check_file(extractor: Extractor, model: ExportedModel) -> list[str]:
    """A table of a file against torch on random images, by batch: the largest difference, relative to the largest value,
    and the number of images beyond `TOLERANCE`. Raises `UserError` where one is so without a tie in a selection."""
    kind = model.about["input"]
    graph = Patterns(extractor.model, kind, extractor.cfg)
    lines, wrong = [f"{'batch':>5}  {'difference':>10}  {f'images beyond {TOLERANCE}':>20}"], 0
    for batch in BATCHES:
        inputs = random_inputs(extractor.model, extractor.cfg.INPUT.SIZE_TEST, batch, kind)
        names = [*map(str.lower, model.modalities), "camera"]
        output = model.run({n: each.numpy() for n, each in zip(names, inputs, strict=False)})
        with torch.no_grad():
            expected = graph(*inputs)
        difference = relative_differences([torch.from_numpy(output)], expected[-1:])
        is_beyond = difference > TOLERANCE
        if is_beyond.any():
            wrong += int((is_beyond & ~undecided_triplets(graph, inputs, expected)).sum())
        lines.append(f"{batch:5}  {float(difference.max()):10.1e}  {int(is_beyond.sum()):20}")
    if wrong:
        raise UserError(
            f"The exported model differs from torch by more than {TOLERANCE} on {wrong} of {sum(BATCHES)} random "
            "triplets whose selection of patches is no tie, so it is not written; try other versions of torch, "
            "onnxscript and the runtime."
        )
    return lines


def relative_differences(
    outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> torch.Tensor:
    """(B,): the largest difference of each image in any output, relative to the output's largest value."""
    differences = [
        (output - other).abs().amax(dim=1) / other.abs().max()
        for output, other in zip(outputs, expected, strict=True)
    ]
    return torch.stack(differences).amax(dim=0)


def undecided_triplets(
    graph: nn.Module, inputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> torch.Tensor:
    """(B,) bool: whether torch's own outputs change beyond `TOLERANCE` with images changed by rounding."""
    generator = torch.Generator().manual_seed(0)
    is_undecided = torch.zeros(len(inputs[0]), dtype=torch.bool)
    for _ in range(TRIES):
        changed = [
            each * (1 + ROUNDING * torch.randn(each.shape, generator=generator))
            if each.ndim == 4  # images, not cameras
            else each
            for each in inputs
        ]
        with torch.no_grad():
            is_undecided |= relative_differences(graph(*changed), expected) > TOLERANCE
    return is_undecided


def compare_files(cfg: CfgNode, models: Mapping[str, ExportedModel], data: TestData) -> list[str]:
    """A table of mAP and Rank-1 by the features of TEST.RETURN_PATTERN, and milliseconds per triplet, decoding included."""
    lines = [f"{'precision':10}{'mAP':>7}{'Rank-1':>9}{'ms/triplet':>13}"]
    for name, model in models.items():
        start = time.perf_counter()
        (patterns,) = extract_features(cfg, model, data.loader)
        seconds = time.perf_counter() - start
        ranking = rank_features(cfg, patterns[cfg.TEST.RETURN_PATTERN], data)
        scores = f"{100 * ranking.mAP:7.1f}{100 * ranking.rank(1):9.1f}"
        lines.append(f"{name:10}{scores}{1000 * seconds / len(data.samples):13.2f}")
    return lines


def calibration_feeds(cfg: CfgNode, model: ExportedModel, samples: Sequence[Sample]) -> list[Feed]:
    """The inputs of CALIBRATION of the samples, evenly chosen, one at a time."""
    chosen = samples[:: -(-len(samples) // CALIBRATION)]
    settings = with_values(cfg, {"DATASETS.CACHE": "no", "TEST.IMS_PER_BATCH": 1})
    return [model.inputs(*batch) for batch in decoded_triplets(test_loader(settings, chosen))]


def export_model(
    extractor: Extractor,
    path: Path,
    precision: str = "float32",
    inputs: str = NORMALISED,
    samples: Sequence[Sample] = (),
    data: TestData | None = None,
    overwrite: bool = False,
) -> None:
    """Write the model for ONNX Runtime (.onnx) or OpenVINO (.xml, and .bin), and its card beside it, once the runtime agrees
    with torch in float32, and print the comparison. int8 is calibrated on `samples`; another precision than float32 is compared
    with it on `data`, if given, whatever that shows."""
    is_openvino = path.suffix == ".xml"
    suffixes = [".md", path.suffix, *([".bin"] if is_openvino else [])]
    for suffix in {*suffixes} - {path.suffix}:
        check_output_file(path.with_suffix(suffix), suffix, overwrite)
    lock = lock_file(path.with_name(f".{path.name}.lock"), f"The output {path}")
    with lock, TemporaryDirectory() as folder, ExitStack() as files:
        plain = Path(folder, f"float32{path.suffix}")
        onnx = plain.with_suffix(".onnx")
        write_onnx(extractor, onnx, inputs)
        about = metadata(extractor, inputs)
        if is_openvino:
            write_openvino(onnx, plain, about)
        models = {"float32": ExportedModel(plain)}
        lines, final = check_file(extractor, models["float32"]), plain
        if precision != "float32":
            final = plain.with_stem(precision)
            feeds = calibration_feeds(extractor.cfg, models["float32"], samples) if samples else []
            if is_openvino:
                write_openvino(onnx, final, about, feeds)
            else:
                convert_onnx(Path(shutil.copy(plain, final)), precision, feeds)
            models[precision] = ExportedModel(final)
        if data:
            lines += compare_files(extractor.cfg, models, data)
        card = extractor.generate_model_card(file=path.name, input=inputs, precision=precision)
        final.with_suffix(".md").write_text(str(card), encoding="utf-8")
        for suffix in suffixes:  # all are written before any gets its name, the last of them first
            temporary = files.enter_context(atomic_write(path.with_suffix(suffix)))
            shutil.copyfile(final.with_suffix(suffix), temporary)
    size = sum(path.with_suffix(suffix).stat().st_size for suffix in suffixes) / 2**20
    print_lines(
        *lines,
        f"Wrote {path}, {precision}, {size:.1f} MiB; the float32 model was compared with torch on random images.",
    )
