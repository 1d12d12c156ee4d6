"""Features of triplets in several cases of missing modalities, by one pass of the backbone (docs/method.md)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.demo import DeMo, EncodedTriplets
from demo_sdtps.modeling.modalities import ByModality
from demo_sdtps.modeling.slimming.scores.base import Context

ENCODED = ("tokens", "global_feats", "missing")
"""Fields of a `Context` without slimming that have a row for each triplet."""


def extract_patterns(
    model: DeMo,
    images: ByModality,
    cam_label: torch.Tensor,
    cases: Sequence[frozenset[str]] = (frozenset(),),
    neck: str = "before",
) -> list[dict[int, torch.Tensor]]:
    """Return patterns in each case of missing modalities, whose images count as zeros: 1 original (B, 3C), 2 enhanced, 3
    both, of which the others are views. `neck`: "before" or "after" the BatchNorm of each head."""
    encoded = encode_cases(model, images, cam_label, cases)
    return [model.return_patterns(one.context, neck) for one in encoded]


def encode_cases(
    model: DeMo, images: ByModality, cam_label: torch.Tensor, cases: Sequence[frozenset[str]]
) -> list[EncodedTriplets]:
    """`DeMo.forward_features` in several cases of missing modalities, whose images count as zeros.

    Every image passes through the backbone once, whatever the number of cases, and a zero image once per camera: nothing
    before SDTPS and HDM mixes modalities. Slimming does, so that the blocks after its first run for each case.
    `cam_label` may be on the CPU where the images are on a GPU, which then is not waited for.
    """
    device = next(iter(images.values())).device
    absent = frozenset[str]().union(*cases)
    present = {
        name: image for name, image in images.items() if any(name not in case for case in cases)
    }
    whole = zeros = _encode_apart(model, present, cam_label.to(device, non_blocking=True))
    if absent:
        cameras, place = (
            each.to(device, non_blocking=True) for each in cam_label.unique(return_inverse=True)
        )
        black = {name: _zeros(images[name], len(cameras)) for name in images if name in absent}
        zeros = _encode_apart(model, black, cameras)
        rows: dict[str, Any] = {
            field: {name: values[place] for name, values in getattr(zeros, field).items()}
            for field in ENCODED
        }
        zeros = replace(zeros, **rows)
    encoded = []
    for case in cases:
        context = _mix(whole, zeros, case)
        if not model.slimming:
            encoded.append(EncodedTriplets(context))
            continue
        black = {name: _zeros(images[name], len(images[name])) for name in images if name in case}
        encoded.append(model.forward_stages(context.tokens, images | black))
    return encoded


def _encode_apart(model: DeMo, images: ByModality, cameras: torch.Tensor) -> Context:
    """What becomes of images before anything mixes modalities; with slimming the tokens before its first stage alone."""
    if model.slimming:
        return Context(model.forward_stem(images, cameras), {}, model.backbone.grid_size)
    return model.forward_features(images, cameras).context


def _zeros(image: torch.Tensor, count: int) -> torch.Tensor:
    """`count` images of zeros like `image` (B, 3, H, W), in the memory of one."""
    return torch.zeros_like(image[:1]).expand(count, -1, -1, -1)


def _mix(context: Context, zeros: Context, missing: frozenset[str]) -> Context:
    """`context` with the `missing` modalities of `zeros`."""
    mixed: dict[str, Any] = {field: {} for field in ENCODED}
    for name in MODALITIES:
        source = zeros if name in missing else context
        for field, rows in mixed.items():
            if name in getattr(source, field):
                rows[name] = getattr(source, field)[name]
    return replace(context, **mixed)
