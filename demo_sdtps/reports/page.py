"""What the pages of reports and of searches share: one HTML file with everything in it."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from yacs.config import CfgNode

from demo_sdtps.datasets import Sample
from demo_sdtps.evaluation.extraction import Model
from demo_sdtps.modeling import DeMo
from demo_sdtps.reports.figures import AS_DATA, images
from demo_sdtps.reports.tokens import description, patch_grids
from demo_sdtps.runtime.progress import progress

TEMPLATES = Path(__file__).resolve().parent / "templates"
SIDE, QUALITY = 128, 80  # of a thumbnail: the longer side of each image in pixels, JPEG's quality


def render(
    template: str,
    cfg: CfgNode,
    model: Model,
    samples: Mapping[int, Sample],
    modalities: Sequence[str],
    content: dict[str, Any],
    **about: object,
) -> str:
    """The page of a template, with `content` for its scripts, and the kept patches of `samples` by their indices in it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    content |= {
        "modalities": modalities,
        "stacked": is_stacked(cfg),
        "kept": kept_patches(cfg, model, samples, modalities),
        "palette": AS_DATA,
    }
    return templates.get_template(template).render(about, content=content, cfg=cfg)


def is_stacked(cfg: CfgNode) -> bool:
    """Whether a thumbnail has the images of its modalities one above the other: wide ones."""
    height, width = cfg.INPUT.SIZE_TEST
    return width > height


def thumbnail(cfg: CfgNode, sample: Sample, modalities: Sequence[str]) -> str:
    """The images of a triplet, as the model sees them, as a single JPEG in base64."""
    triplet = np.concatenate(images(cfg, sample, modalities), axis=0 if is_stacked(cfg) else 1)
    ratio = min(1, SIDE / max(cfg.INPUT.SIZE_TEST))
    size = [max(1, round(ratio * length)) for length in triplet.shape[1::-1]]
    file = io.BytesIO()
    Image.fromarray(triplet).resize((size[0], size[1])).save(file, "JPEG", quality=QUALITY)
    return base64.b64encode(file.getvalue()).decode()


def kept_patches(
    cfg: CfgNode, model: Model, samples: Mapping[int, Sample], modalities: Sequence[str]
) -> dict[str, Any] | None:
    """The kept patches of every stage and SDTPS, by its name: for each sample bits (modality, row, column), packed and in
    base64; None for a model that keeps all, or an exported one."""
    if not isinstance(model, DeMo) or not (model.sdtps or model.slimming):
        return None
    size, (rows, columns) = cfg.TEST.IMS_PER_BATCH, model.backbone.grid_size
    bits: dict[str, dict[int, str]] = {}
    text, indices = "", list(samples)
    for start in progress(range(0, len(samples), size), "kept patches", unit="batch"):
        batch = indices[start : start + size]
        grids = patch_grids(cfg, model, [samples[index] for index in batch])
        text = text or description(cfg, model, grids)
        for name, by_modality in grids.items():
            kept = np.zeros((len(batch), len(modalities), rows * columns), bool)
            for place, modality in enumerate(modalities):
                if modality in by_modality:  # nothing is kept of a missing one
                    kept[:, place] = by_modality[modality][:, 0].flatten(1) > 0
            packed = np.packbits(kept.reshape(len(batch), -1), axis=1)
            encoded = [base64.b64encode(row.tobytes()).decode() for row in packed]
            bits.setdefault(name, {}).update(zip(batch, encoded, strict=True))
    return {"rows": rows, "columns": columns, "bits": bits, "description": text}
