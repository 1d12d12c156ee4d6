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
    names = [*map(str.lower, extractor.model.modalities), "camera"]
    for logger in ("onnxscript", "onnx_ir", "torch.onnx"):  # they tell what they do not fold
        logging.getLogger(logger).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            export_program(extractor.model, size),
            dynamo=True,
            verbose=False,
            input_names=names,
            output_names=OUTPUTS,
            custom_translation_table=OPERATORS,
        )
    assert program is not None
    about = {
        "height": size[0],
        "width": size[1],
        "resize": "bilinear with antialias, of uint8 RGB",
        "mean": list(cfg.INPUT.PIXEL_MEAN),
        "std": list(cfg.INPUT.PIXEL_STD),
        "scale": 1 / 255,
        "cameras": extractor.cameras,
        "unknown_camera": extractor.cameras,
        "config": cfg.dump(),
    }
    program.model.metadata_props.update({name: str(value) for name, value in about.items()})
    program.save(path)


def check_onnx(extractor: Extractor, path: Path) -> list[str]:
    """A table of ONNX Runtime against torch on random images, by batch: the largest difference, relative to the largest value,
    and the number of images beyond `TOLERANCE`. Raises `UserError` where one is so without a tie in a selection."""
    session, graph = open_onnx(path), Patterns(extractor.model)
    lines, wrong = [f"{'batch':>5}  {'difference':>10}  {f'images beyond {TOLERANCE}':>20}"], 0
    for batch in BATCHES:
        inputs = random_inputs(extractor.model, extractor.cfg.INPUT.SIZE_TEST, batch)
        names = [node.name for node in session.get_inputs()]
        arrays = [tensor.numpy() for tensor in inputs]
        outputs = session.run(None, dict(zip(names, arrays, strict=True)))
        with torch.no_grad():
            expected = graph(*inputs)
        differences = differences_of(list(map(torch.from_numpy, outputs)), expected)
        beyond = differences > TOLERANCE
        if beyond.any():
            wrong += int((beyond & ~undecided_triplets(graph, inputs, expected)).sum())
        lines.append(f"{batch:5}  {float(differences.max()):10.1e}  {int(beyond.sum()):20}")
    if wrong:
        raise UserError(
            f"The ONNX model differs from torch by more than {TOLERANCE} on {wrong} of {sum(BATCHES)} random "
            "triplets whose selection of patches is no tie, so it is not written; try other versions of torch, "
            "onnxscript and onnxruntime."
        )
    return lines


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
    output = [f"pattern_{cfg.TEST.RETURN_PATTERN}"]
    features, seconds = defaultdict(list), dict.fromkeys(sessions, 0.0)
    for images, _, camera in batches(data.loader):
        inputs = {name.lower(): image.numpy() for name, image in images.items()}
        inputs["camera"] = camera.clamp(max=cameras).numpy()
        for name, session in sessions.items():
            if name not in features:  # the first run of a session is slower
                session.run(output, inputs)
            start = time.perf_counter()
            features[name].append(torch.from_numpy(session.run(output, inputs)[0]))
            seconds[name] += time.perf_counter() - start
    lines = [f"{'precision':10}{'mAP':>7}{'Rank-1':>9}{'ms/triplet':>13}"]
    for name, blocks in features.items():
        ranking = rank_features(cfg, torch.cat(blocks), data)
        scores = f"{100 * ranking.mAP:7.1f}{100 * ranking.rank(1):9.1f}"
        lines.append(f"{name:10}{scores}{1000 * seconds[name] / len(data.samples):13.2f}")
    return lines


def differences_of(
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
    """(B,) bool: whether torch's own outputs of an image change beyond `TOLERANCE` with images changed by rounding, as where
    scores of patches at the edge of a selection are equal but for that."""
    *images, cameras = inputs
    generator = torch.Generator().manual_seed(0)
    is_undecided = torch.zeros(len(cameras), dtype=torch.bool)
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
    with atomic_write(path) as temporary:
        write_onnx(extractor, temporary)
        lines = check_onnx(extractor, temporary)
        if data:
            sessions = {"float32": open_onnx(temporary)}
            convert_onnx(temporary, precision)
            sessions[precision] = open_onnx(temporary)
            lines += compare_onnx(extractor.cfg, extractor.cameras, sessions, data)
    size = path.stat().st_size / 2**20
    print_lines(
        *lines,
        f"Wrote {path}, {precision}, {size:.1f} MiB; the float32 model was compared with torch on random images.",
    )
