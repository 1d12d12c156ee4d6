"""Features of triplets in several cases of missing modalities, by one pass of the backbone (docs/method.md)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.demo import DeMo, EncodedTriplets, images_of
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
    return [return_patterns(model, one.context, neck) for one in encoded]


def return_patterns(model: DeMo, context: Context, neck: str) -> dict[int, torch.Tensor]:
    """The return patterns of encoded triplets, (B, D) each; `neck` as in `extract_patterns`."""
    features = model.forward_head(context)
    if neck == "after":
        features = {
            name: model.heads.get_submodule(f"{name}.bottleneck")(feature)
            for name, feature in features.items()
        }
    return model.layout.split(model.layout.join(features))


def encode_cases(
    model: DeMo, images: ByModality, cam_label: torch.Tensor, cases: Sequence[frozenset[str]]
) -> list[EncodedTriplets]:
    """`DeMo.forward_features` in several cases of missing modalities, whose images count as zeros.

    Every image passes through the backbone once, whatever the number of cases, and a zero image once per camera: nothing
    before SDTPS and HDM mixes modalities. Slimming does, so that the blocks after its first run for each case.
    `cam_label` may be on the CPU where the images are on a GPU, which then is not waited for.
    """
    cameras = cam_label.to(next(iter(images.values())).device, non_blocking=True)
    absent = frozenset[str]().union(*cases)
    present = {
        name: image for name, image in images.items() if any(name not in case for case in cases)
    }
    zeroed = {name: image for name, image in images.items() if name in absent}
    if not model.slimming:
        whole = model.forward_features(present, cameras).context
        zeros = _encode_zeros(model, zeroed, cam_label) if absent else whole
        return [EncodedTriplets(_mix(whole, zeros, case)) for case in cases]
    stem = zero_stem = model.forward_stem(present, cameras)
    if absent:
        zeros_of, zero_cameras, camera_of = _one_per_camera(zeroed, cam_label)
        rows = model.forward_stem(zeros_of, zero_cameras)
        zero_stem = {name: values[camera_of] for name, values in rows.items()}
    encoded = []
    for case in cases:
        tokens = {name: (zero_stem if name in case else stem)[name] for name in images_of(images)}
        absent_images = {
            name: _zeros(images[name], len(images[name])) for name in zeroed if name in case
        }
        encoded.append(model.forward_stages(tokens, images | absent_images))
    return encoded


def _encode_zeros(model: DeMo, images: ByModality, cam_label: torch.Tensor) -> Context:
    zeros, cameras, camera_of = _one_per_camera(images, cam_label)
    context = model.forward_features(zeros, cameras).context
    rows: dict[str, Any] = {
        field: {name: values[camera_of] for name, values in getattr(context, field).items()}
        for field in ENCODED
    }
    return replace(context, **rows)


def _one_per_camera(
    images: ByModality, cam_label: torch.Tensor
) -> tuple[ByModality, torch.Tensor, torch.Tensor]:
    """Zero images in the place of `images`, one for each camera of `cam_label` (B,), these cameras, and the place of each of
    `cam_label` among them, (B,)."""
    device = next(iter(images.values())).device
    cameras, camera_of = (
        tensor.to(device, non_blocking=True) for tensor in cam_label.unique(return_inverse=True)
    )
    zeros = {modality: _zeros(image, len(cameras)) for modality, image in images.items()}
    return zeros, cameras, camera_of


def _zeros(image: torch.Tensor, count: int) -> torch.Tensor:
    """`count` images of zeros like `image` (B, 3, H, W), in the memory of one."""
    return torch.zeros_like(image[:1]).expand(count, -1, -1, -1)


def _mix(context: Context, zeros: Context, missing: frozenset[str]) -> Context:
    """`context` with the `missing` modalities of `zeros`."""
    names = [name for name in MODALITIES if name in context.tokens or name in zeros.tokens]
    mixed: dict[str, Any] = {
        field: {name: getattr(zeros if name in missing else context, field)[name] for name in names}
        for field in ENCODED
    }
    return replace(context, **mixed)
