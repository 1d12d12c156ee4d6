"""A trained model as ONNX, and as a program of torch.export (docs/api.md)."""

import logging
import time
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import RETURN_PATTERNS, UserError
from demo_sdtps.config.cli import print_lines
from demo_sdtps.datasets.loaders import batches
from demo_sdtps.evaluation.protocol import TestData, rank_features
from demo_sdtps.modeling import DeMo
from demo_sdtps.retrieval.extractor import Extractor
from demo_sdtps.runtime.files import atomic_write

OUTPUTS = tuple(f"pattern_{pattern}" for pattern in RETURN_PATTERNS)
BATCHES, MOST = (1, 3, 8), 65536
TOLERANCE = 1e-4
ROUNDING, TRIES = 1e-5, 8  # relative changes of images that show whether a selection is a tie


class Patterns(nn.Module):
    """The graph: normalised images (B, 3, H, W) of each of the model's modalities, camera (B,) → features by return pattern."""

    def __init__(self, model: DeMo):
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *images, camera = inputs
        # Stacked, they have one batch size for the exporter, where it would count three that turn out equal.
        stacked = torch.stack(images).unbind()
        both = self.model(dict(zip(self.model.modalities, stacked, strict=True)), camera)
        return tuple(self.model.layout.split(both).values())


def export_program(model: DeMo, size: list[int]) -> torch.export.ExportedProgram:
    """torch.export of `Patterns` with a dynamic batch, for images of (height, width)."""
    batch = torch.export.Dim("batch", min=1, max=MOST)
    with torch.no_grad():
        inputs = random_inputs(model, size, 2)
        return torch.export.export(
            Patterns(model).eval(), inputs, dynamic_shapes=(({0: batch},) * len(inputs),)
        )


def random_inputs(model: DeMo, size: list[int], batch: int) -> tuple[torch.Tensor, ...]:
    """Images and cameras, the same in every run."""
    generator = torch.Generator().manual_seed(batch)
    images = [torch.randn(batch, 3, *size, generator=generator) for _ in model.modalities]
    return *images, torch.arange(batch) % (1 + model.camera_num)


def write_onnx(extractor: Extractor, path: Path) -> None:
    """Write the model, with preprocessing and origin in the metadata."""
    from demo_sdtps.retrieval.onnx_export.operators import OPERATORS

    cfg, size = extractor.cfg, extractor.cfg.INPUT.SIZE_TEST
    with quiet():
        names = [*map(str.lower, extractor.model.modalities), "camera"]
        program = torch.onnx.export(
            export_program(extractor.model, size),
            dynamo=True,
            verbose=False,
            input_names=names,
            output_names=OUTPUTS,
            custom_translation_table=OPERATORS,
        )
    assert program is not None
    cameras = extractor.cameras
    program.model.metadata_props.update(
        {
            "height": str(size[0]),
            "width": str(size[1]),
            "resize": "bilinear with antialias, of uint8 RGB",
            "mean": str(list(cfg.INPUT.PIXEL_MEAN)),
            "std": str(list(cfg.INPUT.PIXEL_STD)),
            "scale": str(1 / 255),
            "cameras": str(cameras),
            "unknown_camera": str(cameras),
            "config": cfg.dump(),
        }
    )
    program.save(path)


def quiet() -> warnings.catch_warnings:
    """Context manager: no warnings; the exporter's log of what it does not fold is dropped for good."""
    for name in ("onnxscript", "onnx_ir", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return warnings.catch_warnings(action="ignore")


def check_onnx(extractor: Extractor, path: Path) -> list[dict[str, Any]]:
    """ONNX Runtime against torch on random images, by batch: the largest difference, relative to the largest value, the number
    of images beyond `TOLERANCE`, and of those that are so without a tie in a selection (`undecided_triplets`)."""
    session, graph, rows = open_onnx(path), Patterns(extractor.model), []
    for batch in BATCHES:
        inputs = random_inputs(extractor.model, extractor.cfg.INPUT.SIZE_TEST, batch)
        fed = {
            node.name: tensor.numpy()
            for node, tensor in zip(session.get_inputs(), inputs, strict=True)
        }
        with torch.no_grad():
            expected = graph(*inputs)
        differences = differences_of(
            [torch.from_numpy(array) for array in session.run(None, fed)], expected
        )
        beyond = differences > TOLERANCE
        wrong = beyond & ~undecided_triplets(graph, inputs, expected) if beyond.any() else beyond
        rows.append(
            {
                "batch": batch,
                "difference": float(differences.max()),
                "beyond": int(beyond.sum()),
                "wrong": int(wrong.sum()),
            }
        )
    return rows


def open_onnx(path: Path) -> Any:
    """A file as a session of ONNX Runtime on the CPU."""
    import onnxruntime

    # it warns of every float16 weight that it cannot fold
    onnxruntime.set_default_logger_severity(3)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def convert_onnx(path: Path, precision: str) -> None:
    """Convert a float32 model in its place, whose inputs and outputs stay so: to float16 throughout, or to int8 weights with
    activations that are quantised as they come."""
    if precision == "float16":
        import onnx
        from onnxruntime.transformers.float16 import convert_float_to_float16

        onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), path)
    elif precision == "int8":
        from onnxruntime.quantization import quantize_dynamic
        from onnxruntime.quantization.shape_inference import quant_pre_process

        quant_pre_process(path, path, skip_symbolic_shape=True)
        quantize_dynamic(path, path)


def compare_onnx(
    cfg: CfgNode, cameras: int, sessions: Mapping[str, Any], data: TestData
) -> list[str]:
    """A table of mAP and Rank-1 by the features of TEST.RETURN_PATTERN, and milliseconds per triplet, by session. A camera
    that the model does not know is any other one."""
    output, features, seconds = (
        f"pattern_{cfg.TEST.RETURN_PATTERN}",
        defaultdict(list),
        dict.fromkeys(sessions, 0.0),
    )
    for images, _, camera in batches(data.loader):
        fed = {name.lower(): image.numpy() for name, image in images.items()} | {
            "camera": camera.clamp(max=cameras).numpy()
        }
        for name, session in sessions.items():
            if name not in features:  # the first run of a session is slower
                session.run([output], fed)
            start = time.perf_counter()
            features[name].append(torch.from_numpy(session.run([output], fed)[0]))
            seconds[name] += time.perf_counter() - start
    metrics = {
        name: rank_features(cfg, torch.cat(blocks), data) for name, blocks in features.items()
    }
    return [
        f"{'precision':10}{'mAP':>7}{'Rank-1':>9}{'ms/triplet':>13}",
        *(
            f"{name:10}{100 * ranking.mAP:7.1f}{100 * ranking.rank(1):9.1f}{1000 * seconds[name] / len(data.samples):13.2f}"
            for name, ranking in metrics.items()
        ),
    ]


def differences_of(
    outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> torch.Tensor:
    """(B,): the largest difference of each image in any output, relative to the output's largest value."""
    return torch.stack(
        [
            (output - other).abs().amax(dim=1) / other.abs().max()
            for output, other in zip(outputs, expected, strict=True)
        ]
    ).amax(dim=0)


def undecided_triplets(
    graph: nn.Module, inputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> torch.Tensor:
    """(B,) bool: whether torch's own outputs of an image change beyond `TOLERANCE` with images changed by rounding, as where
    scores of patches at the edge of a selection are equal but for that."""
    *images, cameras = inputs
    generator, is_undecided = (
        torch.Generator().manual_seed(0),
        torch.zeros(len(cameras), dtype=torch.bool),
    )
    for _ in range(TRIES):
        changed = [
            image * (1 + ROUNDING * torch.randn(image.shape, generator=generator))
            for image in images
        ]
        with torch.no_grad():
            is_undecided |= differences_of(graph(*changed, cameras), expected) > TOLERANCE
    return is_undecided


def export_onnx(
    extractor: Extractor, path: Path, precision: str = "float32", data: TestData | None = None
) -> None:
    """Write the model, once ONNX Runtime agrees with torch in float32, and print the comparison; in another precision also
    that with float32 on `data`, whatever it shows."""
    lines: list[str] = []
    with atomic_write(path) as temporary:
        write_onnx(extractor, temporary)
        rows = check_onnx(extractor, temporary)
        if wrong := sum(row["wrong"] for row in rows):
            raise UserError(
                f"The ONNX model differs from torch by more than {TOLERANCE} on {wrong} of {sum(BATCHES)} random "
                "triplets whose selection of patches is no tie, so it is not written; try other versions of torch, "
                "onnxscript and onnxruntime."
            )
        if data:
            sessions = {"float32": open_onnx(temporary)}
            convert_onnx(temporary, precision)
            lines = compare_onnx(
                extractor.cfg, extractor.cameras, sessions | {precision: open_onnx(temporary)}, data
            )
    beyond = f"images beyond {TOLERANCE}"
    size = path.stat().st_size / 2**20
    print_lines(
        f"{'batch':>5}  {'difference':>10}  {beyond:>20}",
        *(f"{row['batch']:5}  {row['difference']:10.1e}  {row['beyond']:20}" for row in rows),
        *lines,
        f"Wrote {path}, {precision}, {size:.1f} MiB; the float32 model was compared with torch on random images.",
    )
