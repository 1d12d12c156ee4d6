"""A trained model as ONNX, and as a program of torch.export (docs/api.md)."""
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS, UserError
from demo_sdtps.config.cli import print_lines
from demo_sdtps.modeling import DeMo
from demo_sdtps.retrieval.extractor import Extractor, mean_camera
from demo_sdtps.runtime.files import atomic_write

INPUTS, OUTPUTS = ("rgb", "ni", "ti", "camera"), tuple(f"pattern_{pattern}" for pattern in RETURN_PATTERNS)
BATCHES, MOST = (1, 3, 8), 65536
TOLERANCE = 1e-4
ROUNDING, TRIES = 1e-5, 8  # relative changes of images that show whether a selection is a tie


class Patterns(nn.Module):
    """The graph: normalised images (B, 3, H, W) of each modality, camera (B,) → features of the return patterns."""

    def __init__(self, model: DeMo):
        super().__init__()
        self.model = model

    def forward(self, rgb: torch.Tensor, ni: torch.Tensor, ti: torch.Tensor, camera: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # Stacked, they have one batch size for the exporter, where it would count three that turn out equal.
        images = torch.stack((rgb, ni, ti)).unbind()
        return tuple(self.model.patterns(dict(zip(MODALITIES, images, strict=True)), camera).values())


def export_program(model: DeMo, size: list[int]) -> torch.export.ExportedProgram:
    """torch.export of `Patterns` with a dynamic batch, for images of (height, width)."""
    batch = torch.export.Dim("batch", min=1, max=MOST)
    with torch.no_grad():
        return torch.export.export(Patterns(model).eval(), random_inputs(model, size, 2), dynamic_shapes=({0: batch},) * 4)


def random_inputs(model: DeMo, size: list[int], batch: int) -> tuple[torch.Tensor, ...]:
    """Images and cameras, the same in every run."""
    generator = torch.Generator().manual_seed(batch)
    images = [torch.randn(batch, 3, *size, generator=generator) for _ in MODALITIES]
    embedding = model.backbone.camera_embedding
    return *images, torch.arange(batch) % (1 if embedding is None else len(embedding))


def write_onnx(extractor: Extractor, path: Path) -> None:
    """Write the model, with preprocessing and origin in the metadata."""
    from demo_sdtps.modeling.onnx_operators import OPERATORS

    cfg, size = extractor.cfg, extractor.cfg.INPUT.SIZE_TEST
    with quiet():
        program = torch.onnx.export(export_program(extractor.model, size), dynamo=True, verbose=False, input_names=INPUTS,
                                    output_names=OUTPUTS, custom_translation_table=OPERATORS)
    assert program is not None
    cameras = extractor.cameras
    program.model.metadata_props.update({
        "height": str(size[0]), "width": str(size[1]), "resize": "bilinear with antialias, of uint8 RGB",
        "mean": str(list(cfg.INPUT.PIXEL_MEAN)), "std": str(list(cfg.INPUT.PIXEL_STD)), "scale": str(1 / 255),
        "cameras": str(cameras), "unknown_camera": str(cameras), "config": cfg.dump()})
    program.save(path)


def quiet() -> warnings.catch_warnings:
    """Inside, no warnings; the exporter's log of what it does not fold is dropped for good."""
    for name in ("onnxscript", "onnx_ir", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return warnings.catch_warnings(action="ignore")


def check_onnx(extractor: Extractor, path: Path) -> list[dict[str, Any]]:
    """ONNX Runtime against torch on random images, by batch: the largest difference, relative to the largest value, the number
    of images beyond `TOLERANCE`, and of those that are so without a tie in a selection (`undecided`)."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    graph, rows = Patterns(extractor.model), []
    for batch in BATCHES:
        inputs = random_inputs(extractor.model, extractor.cfg.INPUT.SIZE_TEST, batch)
        fed = {name: part.numpy() for name, part in zip(INPUTS, inputs, strict=True)}
        with torch.no_grad():
            expected = graph(*inputs)
        differences = differences_of([torch.from_numpy(own) for own in session.run(None, fed)], expected)
        beyond = differences > TOLERANCE
        wrong = beyond & ~undecided(graph, inputs, expected) if beyond.any() else beyond
        rows.append({"batch": batch, "difference": float(differences.max()), "beyond": int(beyond.sum()),
                     "wrong": int(wrong.sum())})
    return rows


def differences_of(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> torch.Tensor:
    """(B,): the largest difference of each image in any output, relative to the output's largest value."""
    return torch.stack([(own - other).abs().amax(dim=1) / other.abs().max()
                        for own, other in zip(found, expected, strict=True)]).amax(dim=0)


def undecided(graph: nn.Module, inputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> torch.Tensor:
    """(B,) bool: whether torch's own outputs of an image change beyond `TOLERANCE` with images changed by rounding, as where
    scores of patches at the edge of a selection are equal but for that."""
    *images, cameras = inputs
    generator, found = torch.Generator().manual_seed(0), torch.zeros(len(cameras), dtype=torch.bool)
    for _ in range(TRIES):
        changed = [image * (1 + ROUNDING * torch.randn(image.shape, generator=generator)) for image in images]
        with torch.no_grad():
            found |= differences_of(graph(*changed, cameras), expected) > TOLERANCE
    return found


def export_onnx(extractor: Extractor, path: Path) -> None:
    """Write the model, once ONNX Runtime agrees with torch, and print the comparison. Raises `UserError`."""
    with mean_camera(extractor.model.backbone), atomic_write(path) as temporary:
        write_onnx(extractor, temporary)
        rows = check_onnx(extractor, temporary)
        if wrong := sum(row["wrong"] for row in rows):
            raise UserError(f"The ONNX model differs from torch by more than {TOLERANCE} on {wrong} of {sum(BATCHES)} random "
                            "triplets whose selection of patches is no tie, so it is not written; try other versions of torch, "
                            "onnxscript and onnxruntime.")
    beyond = f"images beyond {TOLERANCE}"
    size = path.stat().st_size / 2**20
    print_lines(f"{'batch':>5}  {'difference':>10}  {beyond:>20}", *(
        f"{row['batch']:5}  {row['difference']:10.1e}  {row['beyond']:20}" for row in rows),
        f"Wrote {path}, {size:.1f} MiB; compared with torch on random images.")
