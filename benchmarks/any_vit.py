"""Rows of benchmarks/run.py: `demo_sdtps.slim` on Vision Transformers of timm, beside the dense model and what ToMe reports."""

import copy
from collections.abc import Callable, Iterator
from functools import partial

import timm
import torch
from torch import nn

import demo_sdtps
from benchmarks.rows import Row
from benchmarks.timing import in_turns, infer
from demo_sdtps.evaluation.operations import total_macs
from vit_slim.api import KEEP

MODELS = {
    "ViT-S/16": "vit_small_patch16_224",
    "ViT-B/16": "vit_base_patch16_224",
    "CLIP ViT-B/16": "vit_base_patch16_clip_224",
    "DINOv2 ViT-B/14 with registers": "vit_base_patch14_reg4_dinov2",
}
SIZE, BATCH = 224, 8
STAGE_SETTINGS = (
    ((0,), (KEEP,)),  # the default
    ((0, 4), (0.5, 0.5)),
    ((0, 4), (0.4, 0.5)),
)  # blocks and shares
TOME = {
    "ViT-S/16, r = 13, off the shelf": (953, 1564),
    "ViT-B/16, r = 13, off the shelf": (309, 511),
    "ViT-B/16, r = 16, trained with it": (309, 603),
}
"""Images per second on a V100 without and with ToMe, as its authors report them (README of facebookresearch/ToMe)."""


def any_vit_rows(quick: bool, device: torch.device) -> Iterator[Row]:
    """Multiply-accumulates and images per second in float32 of STAGE_SETTINGS."""
    for name, architecture in list(MODELS.items())[: 1 if quick else None]:
        torch.manual_seed(0)
        dense = timm.create_model(architecture, img_size=SIZE, num_classes=0)
        cases: dict[tuple, nn.Module] = {(): dense}
        for setting in STAGE_SETTINGS:
            cases[setting] = demo_sdtps.slim(copy.deepcopy(dense), *setting)
        image = torch.zeros(1, 3, SIZE, SIZE)
        operations = {setting: total_macs(model, (image,)) for setting, model in cases.items()}
        images = torch.randn(2 if quick else BATCH, 3, SIZE, SIZE, device=device)
        works: dict[tuple, Callable[[], object]] = {
            setting: partial(infer, model.to(device), images) for setting, model in cases.items()
        }
        seconds = in_turns(name, works, 1 if quick else 8, device)
        for setting in STAGE_SETTINGS:
            stages = zip(*setting, strict=True)
            kept = ", ".join(f"{share:g} kept after block {block}" for block, share in stages)
            what = f"{name}, {SIZE}×{SIZE}, {kept}"
            macs = operations[()], operations[setting]
            yield Row(f"{what}: operations", macs[0] / 1e9, macs[1] / 1e9, "G", macs[0] / macs[1])
            speeds = len(images) / seconds[()], len(images) / seconds[setting]
            yield Row("… images per second, float32", *speeds, "", speeds[1] / speeds[0])
            if name == "ViT-S/16" and setting == STAGE_SETTINGS[1] and not quick:
                yield from compiled_rows(dense, cases[setting], images, 8)
    for what, (before, after) in TOME.items():
        name = f"ToMe, published: {what}, V100, images per second"
        yield Row(name, before, after, "", after / before)


def compiled_rows(
    dense: nn.Module, slimmed: nn.Module, images: torch.Tensor, rounds: int
) -> Iterator[Row]:
    """Images per second of compiled models, the dense one first."""
    models = {"dense": torch.compile(dense), "slimmed": torch.compile(slimmed)}
    for some in (images[:1], images):
        works = {name: partial(infer, model, some) for name, model in models.items()}
        seconds = in_turns(f"compiled, batch {len(some)}", works, rounds, images.device)
        speeds = len(some) / seconds["dense"], len(some) / seconds["slimmed"]
        what = f"… compiled, batches of {len(some)}: images per second"
        yield Row(what, *speeds, "", speeds[1] / speeds[0])
