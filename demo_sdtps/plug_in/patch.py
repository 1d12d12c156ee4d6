"""SDTPS and slimming in a model of another code base (hosts.py), without a change of its code (docs/plug_in.md).

For SDTPS the model's class becomes a subclass with a forward of its own, which runs the host's; hooks on the host's modules
read what its forward passes on. Replicas of nn.DataParallel share hooks and run in threads: what the hooks read belongs to one
pass of one thread. Slimming is that of any Vision Transformer (modeling/slimming/slim.py), imported where it is on. The rest
is written for Python 3.8 and torch 1.13, which DeMo pins.
"""

from __future__ import annotations

import inspect
import sys
import threading
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from demo_sdtps.config.common import SDTPS_ARGUMENTS
from demo_sdtps.modeling.sdtps import MultiModalSDTPS
from demo_sdtps.plug_in.config import check_values, missing_letters
from demo_sdtps.plug_in.hosts import Host, host_of, module_at
from demo_sdtps.runtime.errors import UserError

if TYPE_CHECKING:
    from yacs.config import CfgNode

REDUCES = ("rgb_reduce", "nir_reduce", "tir_reduce")
"""The modules of PIFE, which make the globals with GLOBAL_LOCAL."""

_thread = threading.local()


class ForwardRecord:
    """What the hooks read in one forward of one model: patch tokens (B, N, C) and globals (B, C), in the order RGB, NI, TI."""

    def __init__(self, model: SDTPSForward) -> None:
        self.model = model
        self.tokens: list[torch.Tensor] = []
        self.class_tokens: list[torch.Tensor] = []
        self.reduced: list[torch.Tensor] = []

    @property
    def global_feats(self) -> list[torch.Tensor]:
        tokens = self.reduced if getattr(self.model, "GLOBAL_LOCAL", False) else self.class_tokens
        if not len(self.tokens) == len(tokens) == 3:
            raise UserError(
                f"{type(self.model).__name__}.forward gave {len(self.tokens)} sets of patches and {len(tokens)} global "
                f"features, but three of each were expected of {self.model.sdtps_host.name}."
            )
        return tokens

    @cached_property
    def sdtps_tokens(self) -> tuple[torch.Tensor, ...]:
        """The slimmed tokens (B, N_c + 1, C) of the three modalities."""
        missing = (False,) * 3 if self.model.training else self.model.sdtps_unguided
        return self.model.sdtps(*self.tokens, *self.global_feats, missing=missing)[:3]

    def __enter__(self) -> ForwardRecord:
        self.outer, _thread.record = getattr(_thread, "record", None), self
        return self

    def __exit__(self, *error: object) -> None:
        _thread.record = self.outer


def _record_of(module: nn.Module) -> ForwardRecord | None:
    """The pass under way in this thread, if `module` is its model's own and no copy, which has the same hooks."""
    record: ForwardRecord | None = getattr(_thread, "record", None)
    if record is None:
        return None
    host = record.model.sdtps_host
    places = [name for name in (host.backbone, host.fusion, *REDUCES) if name]
    return record if module in [module_at(record.model, place) for place in places] else None


def _record_tokens(backbone: nn.Module, inputs: tuple, output: Any) -> None:
    record = _record_of(backbone)
    if record:
        count = 3 if record.model.sdtps_host.is_stacked else 1
        record.tokens += output[0].chunk(count)
        record.class_tokens += output[1].chunk(count)


def _record_global(reduce: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
    record = _record_of(reduce)
    if record:
        record.reduced.append(output)


def _give_selected(fusion: nn.Module, inputs: tuple) -> tuple | None:
    record = _record_of(fusion)
    return (*record.sdtps_tokens, *inputs[3:]) if record else None


def _with_scaled_gradient(tensor: torch.Tensor, weight: float) -> torch.Tensor:
    """The tensor as it is; its gradient times a weight."""
    copy = tensor.view_as(tensor)
    if copy.requires_grad:
        copy.register_hook(lambda gradient: weight * gradient)
    return copy


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
        """As the host's; → in training the pair of SDTPS too, in evaluation a feature (B, D).

        With return patterns, 1 is the original feature, 2 that of SDTPS and then the fused one where there is one, 3 both; a
        host without them gets its own feature and that of SDTPS.
        """
        host, call = self.sdtps_host, inspect.signature(super().forward).bind(*args, **kwargs)
        call.apply_defaults()
        asked = call.arguments.get("return_pattern", 3)
        if host.has_patterns:
            call.arguments["return_pattern"] = 3
        with ForwardRecord(self) as record:
            output = super().forward(*call.args, **call.kwargs)
        if call.arguments[host.mode] if host.mode else self.training:
            return (*output[: host.pair], *self._pair(record), *output[host.pair :])
        if not host.has_patterns:
            return torch.cat([output, self._feature(record)], dim=-1)
        width = sum(feature.shape[-1] for feature in record.global_feats)
        original, fused = output[:, :width], output[:, width:]
        if asked not in (2, 3):
            return original.contiguous()
        enhanced = [self._feature(record), fused]
        return torch.cat([original, *enhanced] if asked == 3 else enhanced, dim=-1)

    def _feature(self, record: ForwardRecord) -> torch.Tensor:
        return torch.cat([tokens.mean(dim=1) for tokens in record.sdtps_tokens], dim=-1)

    def _pair(self, record: ForwardRecord) -> tuple[torch.Tensor, ...]:
        feature = self._feature(record)
        logits = self.classifier_sdtps(self.bottleneck_sdtps(feature))
        # The host's loop adds the losses of all pairs as they are.
        weight = self.sdtps_loss_weight
        return _with_scaled_gradient(logits, weight), _with_scaled_gradient(feature, weight)


@lru_cache
def _patched_class(host: Any) -> Any:
    """A subclass of a class of the checkout with the forward of SDTPS."""
    name = f"{host.__name__}SDTPS"
    return type(name, (SDTPSForward, host), {"__module__": host.__module__})


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
    host = host_of(model)
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

        left = add_slimming(model, host, cfg, grid)
        patches = patches if host.restore else left
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
    reduces = REDUCES if getattr(model, "GLOBAL_LOCAL", False) else ()
    for attribute in (host.backbone, "feat_dim", "num_classes", *reduces):
        if module_at(model, attribute) is None:
            raise UserError(
                f"{type(model).__name__} has no {attribute}, which the model of {host.name} was expected to have."
            )


def _add_sdtps(model: Any, host: Host, cfg: CfgNode, patches: int) -> None:
    device = list(model.parameters())[-1].device
    width = 3 * model.feat_dim
    settings = {name: cfg.MODEL[f"SDTPS_{name.upper()}"] for name in SDTPS_ARGUMENTS}
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
    module_at(model, host.backbone).register_forward_hook(_record_tokens)
    for name in REDUCES if getattr(model, "GLOBAL_LOCAL", False) else ():
        getattr(model, name).register_forward_hook(_record_global)
    if cfg.MODEL.SDTPS_FEEDS_HDM and host.fusion and hasattr(model, host.fusion):
        getattr(model, host.fusion).register_forward_pre_hook(_give_selected)
    absent = "" if cfg.MODEL.SDTPS_GUIDE_MISSING else missing_letters(cfg)
    model.sdtps_unguided = tuple(letter in absent for letter in "rnt")
    model.sdtps_loss_weight = cfg.MODEL.SDTPS_LOSS_WEIGHT
    host_class: Any = type(model)
    model.__class__ = _patched_class(host_class)


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
