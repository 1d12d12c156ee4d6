"""The graph of an exported model: preprocessing, the model and its return patterns, for any batch."""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import RETURN_PATTERNS
from demo_sdtps.config.load import get_cfg
from demo_sdtps.modeling import DeMo, exported
from demo_sdtps.retrieval.extractor import Extractor
from demo_sdtps.runtime.files import SEAL, UNSEALED, seal

OUTPUTS = tuple(f"pattern_{pattern}" for pattern in RETURN_PATTERNS)
MOST = 65536  # images of a batch, pixels of a side


class Patterns(nn.Module):
    """The graph: images of each of the model's modalities, as `inputs` says (modeling/exported.py), and unless they are for
    trackers camera (B,) → features by return pattern, for trackers by TEST.RETURN_PATTERN alone. An image of zeros is a missing
    one."""

    def __init__(self, model: DeMo, inputs: str = exported.NORMALISED, cfg: CfgNode | None = None):
        super().__init__()
        self.model, self.inputs, cfg = model, inputs, cfg or get_cfg()
        self.pixel_mean, self.pixel_std, self.imagenet_mean, self.imagenet_std = (
            torch.tensor(values)[:, None, None]
            for values in (
                cfg.INPUT.PIXEL_MEAN,
                cfg.INPUT.PIXEL_STD,
                exported.IMAGENET_MEAN,
                exported.IMAGENET_STD,
            )
        )
        self.size, self.neck = list(cfg.INPUT.SIZE_TEST), cfg.TEST.NECK_FEAT
        self.patterns = (
            [cfg.TEST.RETURN_PATTERN] if inputs == exported.IMAGENET else [*model.layout.columns]
        )

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *images, camera = inputs
        if self.inputs == exported.IMAGENET:
            unknown = self.model.backbone.cameras
            images, camera = [*inputs], inputs[0].new_full(inputs[0].shape[:1], unknown).long()
        # Stacked, they have one batch size for the exporter, where it would count three that turn out equal.
        stacked = torch.stack([self.normalised(image) for image in images]).unbind()
        by_name = dict(zip(self.model.modalities, stacked, strict=True))
        context = self.model.forward_features(by_name, camera).context
        features = self.model.return_patterns(context, self.neck)
        return tuple(features[pattern] for pattern in self.patterns)

    def normalised(self, image: torch.Tensor) -> torch.Tensor:
        """Images (B, 3, h, w) → (B, 3, H, W), as the model takes them."""
        if self.inputs == exported.NORMALISED:
            return image
        if self.inputs == exported.IMAGENET:
            return (
                image * self.imagenet_std + self.imagenet_mean - self.pixel_mean
            ) / self.pixel_std
        pixels = F.interpolate(image, self.size, mode="bilinear", antialias=True)
        is_present = pixels.amax(dim=(1, 2, 3), keepdim=True) > 0
        return (pixels.float() / 255 - self.pixel_mean) / self.pixel_std * is_present


def export_program(
    model: DeMo, size: list[int], inputs: str = exported.NORMALISED, cfg: CfgNode | None = None
) -> torch.export.ExportedProgram:
    """torch.export of `Patterns` with a dynamic batch, for images of (height, width), of uint8 of any size."""
    batch = torch.export.Dim("batch", min=1, max=MOST)
    with torch.no_grad():
        # Sizes of no meaning, as an example of the model's own would fix them.
        examples = random_inputs(
            model, [side + 3 for side in size] if inputs == exported.UINT8 else size, 2, inputs
        )
        shapes: list[dict[int, Any]] = [{0: batch} for _ in examples]
        if inputs == exported.UINT8:
            for name, shape in zip(model.modalities, shapes, strict=False):
                for dim, side in ((2, "height"), (3, "width")):
                    shape[dim] = torch.export.Dim(f"{name.lower()}_{side}", min=1, max=MOST)
        graph = Patterns(model, inputs, cfg).eval()
        return torch.export.export(graph, examples, dynamic_shapes=(tuple(shapes),))


def random_inputs(
    model: DeMo, size: list[int], batch: int, inputs: str = exported.NORMALISED
) -> tuple[torch.Tensor, ...]:
    """Images and cameras, the same in every run."""
    generator = torch.Generator().manual_seed(batch)
    images = [torch.randn(batch, 3, *size, generator=generator) for _ in model.modalities]
    if inputs == exported.UINT8:
        images = [(128 + 50 * image).clamp(1, 255).byte() for image in images]
    cameras = torch.arange(batch) % (1 + model.camera_num)
    return (*images, cameras) if inputs != exported.IMAGENET else (*images,)


def write_onnx(extractor: Extractor, path: Path, inputs: str = exported.NORMALISED) -> None:
    """Write the model, with preprocessing and origin in the metadata."""
    from demo_sdtps.retrieval.onnx_export.operators import OPERATORS

    cfg, model = extractor.cfg, extractor.model
    camera = [] if inputs == exported.IMAGENET else ["camera"]
    names = [*map(str.lower, model.modalities), *camera]
    for logger in ("onnxscript", "onnx_ir", "torch.onnx"):  # they tell what they do not fold
        logging.getLogger(logger).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            export_program(model, cfg.INPUT.SIZE_TEST, inputs, cfg),
            dynamo=True,
            verbose=False,
            input_names=names,
            output_names=["features"] if inputs == exported.IMAGENET else OUTPUTS,
            custom_translation_table=OPERATORS,
        )
    assert program is not None
    program.model.metadata_props.update(metadata(extractor, inputs))
    program.save(path)
    seal(path)


def metadata(extractor: Extractor, inputs: str) -> dict[str, str]:
    """What a file says of itself: `ABOUT`, which `ExportedModel` reads, and what other code needs for preprocessing."""
    cfg, layout = extractor.cfg, extractor.model.layout
    columns = {name: each.indices(layout.width)[:2] for name, each in layout.columns.items()}
    if inputs == exported.IMAGENET:
        pattern = cfg.TEST.RETURN_PATTERN
        columns = {pattern: (0, extractor.widths[pattern])}
    mean, std = list(cfg.INPUT.PIXEL_MEAN), list(cfg.INPUT.PIXEL_STD)
    plain = {"mean": mean, "std": std, "cameras": extractor.cameras, "config": cfg.dump()}
    about = {
        "input": inputs,
        "modalities": extractor.model.modalities,
        "size": list(cfg.INPUT.SIZE_TEST),
        "columns": columns,
        "origin": extractor.origin,
        SEAL: UNSEALED,
    }
    others = {
        **dict(zip(("height", "width"), cfg.INPUT.SIZE_TEST, strict=True)),
        "resize": "bilinear with antialias, of uint8 RGB",
        "scale": 1 / 255,
        "unknown_camera": extractor.cameras,
    }
    text = {name: str(value) for name, value in (plain | others).items()}
    return text | {exported.ABOUT: json.dumps(plain | about)}
