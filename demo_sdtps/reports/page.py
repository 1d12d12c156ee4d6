"""What the pages of reports and of searches share: one HTML file with everything in it."""

import base64
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from yacs.config import CfgNode

from demo_sdtps.datasets import Sample
from demo_sdtps.evaluation.protocol import Model
from demo_sdtps.modeling.demo import DeMo
from demo_sdtps.reports.figures import COLOURS, TEMPLATES, description, images, kept_patches

SIDE, QUALITY = 128, 80  # of a thumbnail: the longer side of each image in pixels, JPEG's quality


def render(
    template: str,
    cfg: CfgNode,
    model: Model,
    pictured: Mapping[int, Sample],
    modalities: Sequence[str],
    **about: object,
) -> str:
    """The page of a template, which shows what `about` has, and the kept patches of `pictured`, by numbers in the page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    templates.filters["basename"] = os.path.basename
    shared = {
        "modalities": modalities,
        "stacked": is_stacked(cfg),
        "kept": kept_bits(cfg, model, pictured, modalities),
        "palette": COLOURS,
    }
    return templates.get_template(template).render(about, shared=shared, cfg=cfg)


def is_stacked(cfg: CfgNode) -> bool:
    """Whether a thumbnail has the images of its modalities one above the other: wide ones."""
    height, width = cfg.INPUT.SIZE_TEST
    return width > height


def thumbnail(cfg: CfgNode, sample: Sample, modalities: Sequence[str]) -> str:
    """The images of a triplet, as the model sees them, as a single JPEG in base64."""
    triplet = np.concatenate(images(cfg, sample, modalities), axis=0 if is_stacked(cfg) else 1)
    file, image = io.BytesIO(), Image.fromarray(triplet)
    image.thumbnail((SIDE, image.height) if is_stacked(cfg) else (image.width, SIDE))
    image.save(file, "JPEG", quality=QUALITY)
    return base64.b64encode(file.getvalue()).decode()


def kept_bits(
    cfg: CfgNode, model: Model, samples: Mapping[int, Sample], modalities: Sequence[str]
) -> dict[str, Any] | None:
    """`kept_patches` by stage: for each sample a text of 0 and 1 (modality, row, column); None where none are dropped."""
    if not isinstance(model, DeMo) or not (model.sdtps or model.slimming):
        return None
    rows, columns = model.backbone.grid_size
    grids = kept_patches(cfg, model, list(samples.values()))
    none = torch.zeros(len(samples), rows, columns)  # is kept of a missing modality
    bits = {}
    for title, by_modality in grids.items():
        whole = torch.stack([by_modality.get(one, none) for one in modalities], dim=1).int()
        texts = ("".join(map(str, row)) for row in whole.flatten(1).tolist())
        bits[title] = dict(zip(samples, texts, strict=True))
    about = description(model, grids)
    return {"rows": rows, "columns": columns, "bits": bits, "description": about}
