"""SDTPS and slimming in a model of another code base (hosts.py), without a change of its code (docs/plug_in.md).

For SDTPS the model's class becomes a subclass with a forward of its own, which runs the host's; hooks on the host's modules
read what its forward passes on. Slimming is that of any Vision Transformer (slim.py), imported where it is on. The rest is
written for Python 3.8 and torch 1.13, which DeMo pins.
"""

from __future__ import annotations

import inspect
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from demo_sdtps.config.common import SDTPS_SETTINGS
from demo_sdtps.modeling.sdtps import MultiModalSDTPS
from demo_sdtps.plug_in.hosts import Host, check_values, find_host, missing_letters, module_at
from demo_sdtps.runtime.errors import UserError

if TYPE_CHECKING:
    from yacs.config import CfgNode

REDUCES = ("rgb_reduce", "nir_reduce", "tir_reduce")
"""The modules of PIFE, which make the globals with GLOBAL_LOCAL."""


class ForwardRecord:
    """What the host's modules pass on in one forward: patch tokens (B, N, C) and globals (B, C), in the order RGB, NI, TI. The
    modules that the hooks watch hold it during the forward: replicas of nn.DataParallel share hooks, not attributes."""

    def __init__(self, model: SDTPSForward) -> None:
        self.model, host = model, model.sdtps_host
        names = (host.backbone, host.fusion, *REDUCES)
        self.watched = [getattr(model, name) for name in names if hasattr(model, name)]
        self.tokens: list[torch.Tensor] = []
        self.class_tokens: list[torch.Tensor] = []
        self.reduced: list[torch.Tensor] = []

    @cached_property
    def feature(self) -> torch.Tensor:
        """The feature of SDTPS (B, 3C)."""
        return torch.cat([tokens.mean(dim=1) for tokens in self.sdtps_tokens], dim=-1)

    @cached_property
    def sdtps_tokens(self) -> tuple[torch.Tensor, ...]:
        """The slimmed tokens (B, N_c + 1, C) of the three modalities."""
        missing = (False,) * 3 if self.model.training else self.model.sdtps_unguided
        global_feats = self.reduced or self.class_tokens
        return self.model.sdtps(*self.tokens, *global_feats, missing=missing)[:3]

    def __enter__(self) -> ForwardRecord:
        for module in self.watched:
            module.sdtps_record = self
        return self

    def __exit__(self, *error: object) -> None:
        for module in self.watched:
            del module.sdtps_record


def _record_tokens(backbone: nn.Module, inputs: tuple, output: Any) -> None:
    record = getattr(backbone, "sdtps_record", None)
    if record:
        count = 3 if record.model.sdtps_host.is_stacked else 1
        record.tokens += output[0].chunk(count)
        record.class_tokens += output[1].chunk(count)


def _record_global(reduce: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
    record = getattr(reduce, "sdtps_record", None)
    if record:
        record.reduced.append(output)


def _give_selected(fusion: nn.Module, inputs: tuple) -> tuple | None:
    record = getattr(fusion, "sdtps_record", None)
    return (*record.sdtps_tokens, *inputs[3:]) if record else None


class SDTPSForward(nn.Module):
    """The forward of a model with SDTPS."""

    sdtps: MultiModalSDTPS
    bottleneck_sdtps: nn.BatchNorm1d
    classifier_sdtps: nn.Linear
    sdtps_host: Host
    sdtps_unguided: tuple[bool, bool, bool]
    """The modalities whose globals do not guide the others in evaluation (TEST.MISS without SDTPS_GUIDE_MISSING)."""
    sdtps_loss_weight: float

    def forward(self, *args, **kwargs):
        """As the host's; → in training the pair of SDTPS too, in evaluation a feature (B, D). With return patterns, 1 is the
        original feature, 2 that of SDTPS and then the fused one where there is one, 3 both; a host without them gets its own
        feature and that of SDTPS."""
        host, call = self.sdtps_host, inspect.signature(super().forward).bind(*args, **kwargs)
        call.apply_defaults()
        asked = call.arguments.get("return_pattern", 3)
        if host.has_patterns:
            call.arguments["return_pattern"] = 3
        with ForwardRecord(self) as record:
            output = super().forward(*call.args, **call.kwargs)
        if call.arguments[host.mode] if host.mode else self.training:
            return (*output[: host.pair], *self._pair(record.feature), *output[host.pair :])
        if not host.has_patterns:
            return torch.cat([output, record.feature], dim=-1)
        width = record.feature.shape[-1]
        original, fused = output[:, :width], output[:, width:]
        if asked not in (2, 3):
            return original.contiguous()
        enhanced = [record.feature, fused]
        return torch.cat([original, *enhanced] if asked == 3 else enhanced, dim=-1)

    def _pair(self, feature: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and feature of SDTPS. The host's loop adds the losses of all pairs as they are."""
        logits = self.classifier_sdtps(self.bottleneck_sdtps(feature))
        pair = logits.view_as(logits), feature.view_as(feature)
        for copy in pair:
            if copy.requires_grad:
                copy.register_hook(lambda gradient: self.sdtps_loss_weight * gradient)
        return pair


def patch(model: Any, cfg: CfgNode) -> Any:
    """Make the model of a host run SDTPS, in place, where MODEL.USE_SDTPS is True, and slimming where MODEL.SLIM_BLOCKS has
    blocks; → the model.

    SDTPS adds the modules `sdtps`, `bottleneck_sdtps` and `classifier_sdtps`, slimming the module `slimming`, on the device of
    the model's last parameter. With both off the model is not touched. `cfg` is the host's configuration with the keys of
    `add_config`. Raises `UserError` for a model that is none of HOSTS, what its host refuses, or an impossible value.
    """
    check_values(cfg)
    is_off = not (cfg.MODEL.USE_SDTPS or cfg.MODEL.SLIM_BLOCKS)
    if is_off or isinstance(model, SDTPSForward) or hasattr(model, "slimming"):
        return model
    host = find_host(model)
    if cfg.MODEL.USE_SDTPS:
        _check_host(model, host)
    rows, columns = grid = _grid(model, host, cfg)
    patches = rows * columns
    if cfg.MODEL.SLIM_BLOCKS:
        if sys.version_info < (3, 10):  # noqa: UP036 (DeMo pins 3.8)
            raise UserError(
                f"MODEL.SLIM_BLOCKS is {list(cfg.MODEL.SLIM_BLOCKS)}, but slimming needs Python 3.10 or newer; "
                "install one, or leave it empty."
            )
        from demo_sdtps.plug_in.slim import add_slimming

        patches = add_slimming(model, host, cfg, grid)
    if cfg.MODEL.USE_SDTPS:
        _add_sdtps(model, host, cfg, patches)
    return model


def _check_host(model: Any, host: Host) -> None:
    """Raise `UserError` for a host that SDTPS does not fit, and for a model without what it builds on."""
    if not host.backbone:
        raise UserError(
            f"MODEL.USE_SDTPS is True, but the training loop of {host.name} reads outputs by fixed places, or its "
            "model gives no patches and globals of three modalities; set it to False."
        )
    for attribute in (host.backbone, "feat_dim", "num_classes"):
        if not hasattr(model, attribute):
            raise UserError(
                f"{type(model).__name__} has no {attribute}, which the model of {host.name} was expected to have."
            )


def _add_sdtps(model: Any, host: Host, cfg: CfgNode, patches: int) -> None:
    device = list(model.parameters())[-1].device
    width = 3 * model.feat_dim
    settings = {name: cfg.MODEL[f"SDTPS_{name.upper()}"] for name in SDTPS_SETTINGS}
    try:
        model.sdtps = MultiModalSDTPS(model.feat_dim, patches, **settings)
    except ValueError as error:
        raise UserError(f"The values of MODEL.SDTPS_… do not fit: {error}") from None
    model.bottleneck_sdtps = nn.BatchNorm1d(width)
    model.bottleneck_sdtps.bias.requires_grad_(False)
    model.classifier_sdtps = nn.Linear(width, model.num_classes, bias=False)
    nn.init.normal_(model.classifier_sdtps.weight, std=0.001)
    for module in (model.sdtps, model.bottleneck_sdtps, model.classifier_sdtps):
        module.to(device).train(model.training)

    model.sdtps_host = host
    getattr(model, host.backbone).register_forward_hook(_record_tokens)
    for name in REDUCES if getattr(model, "GLOBAL_LOCAL", False) else ():
        getattr(model, name).register_forward_hook(_record_global)
    if cfg.MODEL.SDTPS_FEEDS_HDM and hasattr(model, host.fusion):
        getattr(model, host.fusion).register_forward_pre_hook(_give_selected)
    absent = "" if cfg.MODEL.SDTPS_GUIDE_MISSING else missing_letters(cfg)
    model.sdtps_unguided = tuple(letter in absent for letter in "rnt")
    model.sdtps_loss_weight = cfg.MODEL.SDTPS_LOSS_WEIGHT
    host_class = type(model)
    model.__class__ = type(
        f"{host_class.__name__}SDTPS",
        (SDTPSForward, host_class),
        {"__module__": host_class.__module__},
    )


def _grid(model: Any, host: Host, cfg: CfgNode) -> tuple[int, int]:
    """(rows, columns) of patches."""
    tower = module_at(model, host.towers[0])
    modules = tower.modules() if tower is not None else ()
    first = next((module for module in modules if isinstance(module, nn.Conv2d)), None)
    if first is None:
        raise UserError(
            f"{host.towers[0]} of {host.name} has no Conv2d that makes the patches, which was expected."
        )
    sides = zip(cfg.INPUT.SIZE_TRAIN, first.kernel_size, first.stride)  # noqa: B905 (Python 3.8)
    rows, columns = ((side - patch) // stride + 1 for side, patch, stride in sides)
    return rows, columns
