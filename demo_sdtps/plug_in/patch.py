"""SDTPS and slimming in a model of a DeMo checkout, without a change of the checkout's code (docs/plug_in.md).

The model's class becomes a subclass with a forward of its own, which runs DeMo's; hooks on DeMo's modules read what its forward
passes on. Replicas of nn.DataParallel share hooks and run in threads: what the hooks read belongs to one pass of one thread.
Written for Python 3.8 and torch 1.13, which DeMo pins; slimming (slim.py), which is imported where it is on, for those of this
project.
"""
from __future__ import annotations

import inspect
import sys
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from demo_sdtps.config.common import MISSING_CASES, SDTPS_ARGUMENTS
from demo_sdtps.modeling.sdtps import MultiModalSDTPS
from demo_sdtps.plug_in.config import check_values
from demo_sdtps.runtime.errors import UserError

if TYPE_CHECKING:
    from yacs.config import CfgNode

ARGUMENTS = ("x", "label", "cam_label", "view_label", "return_pattern", "img_path")
"""The arguments of DeMo's forward."""
REDUCES = ("rgb_reduce", "nir_reduce", "tir_reduce")
"""The modules of PIFE, which make the globals with GLOBAL_LOCAL."""
BY_HAND = "docs/plug_in.md says how to make the changes by hand"

_thread = threading.local()


class Patched:
    """Base of the classes with our methods, which `make_patched` puts before a class of the checkout."""

    suffix: str
    _host: type  # the class of the checkout


@lru_cache
def _class(ours: Any, host: Any) -> Any:
    return type(f"{host.__name__}{ours.suffix}", (ours, host), {"__module__": host.__module__, "_host": host})


def make_patched(instance: Any, ours: type) -> None:
    """Give `instance` the methods of `ours`, a subclass of `Patched` with a `suffix` of names, in place."""
    host: Any = type(instance)
    instance.__class__ = _class(ours, host)


class SeenPass:
    """What the hooks read in one forward of one model: patch tokens (B, N, C) and globals (B, C), in the order RGB, NI, TI."""

    def __init__(self, model: SDTPSForward) -> None:
        self.model = model
        self.tokens: list[torch.Tensor] = []
        self.class_tokens: list[torch.Tensor] = []
        self.reduced: list[torch.Tensor] = []
        self._selected: list[torch.Tensor] | None = None

    @property
    def global_feats(self) -> list[torch.Tensor]:
        """Raises `UserError` for another forward than DeMo's."""
        found = self.reduced if self.model.GLOBAL_LOCAL else self.class_tokens
        if not len(self.tokens) == len(found) == 3:
            raise UserError(f"{type(self.model).__name__}.forward called BACKBONE {len(self.tokens)} times and made "
                            f"{len(found)} global features, but three of each (RGB, NI, TI) were expected, before "
                            f"generalFusion; {BY_HAND}.")
        return found

    def selected(self) -> list[torch.Tensor]:
        """The slimmed tokens (B, N_c + 1, C) of the three modalities."""
        if self._selected is None:
            missing = (False,) * 3 if self.model.training else self.model.sdtps_unguided
            global_feats = self.global_feats
            try:
                self._selected = list(self.model.sdtps(*self.tokens, *global_feats, missing=missing)[:3])
            except ValueError as error:
                raise UserError(f"{str(error).rstrip('.')}; {BY_HAND}.") from None
        return self._selected

    def __enter__(self) -> SeenPass:
        self.outer, _thread.seen = getattr(_thread, "seen", None), self
        return self

    def __exit__(self, *error: object) -> None:
        _thread.seen = self.outer


def _seen_by(module: nn.Module, *names: str) -> SeenPass | None:
    """The pass under way in this thread, if `module` is its model's own and no copy, which has the same hooks."""
    seen: SeenPass | None = getattr(_thread, "seen", None)
    return seen if seen and any(module is getattr(seen.model, name) for name in names) else None


def _see_tokens(backbone: nn.Module, inputs: tuple, output: Any) -> None:
    seen = _seen_by(backbone, "BACKBONE")
    if seen is None:
        return
    seen.tokens.append(output[0])
    seen.class_tokens.append(output[1])


def _see_global(reduce: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
    seen = _seen_by(reduce, *REDUCES)
    if seen is not None:
        seen.reduced.append(output)


def _give_selected(fusion: nn.Module, inputs: tuple) -> tuple | None:
    seen = _seen_by(fusion, "generalFusion")
    if seen is None:
        return None
    return (*seen.selected(), *inputs[3:])


class _ScaleGradient(torch.autograd.Function):
    """The tensor as it is; its gradient times a weight."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, weight: float) -> torch.Tensor:
        ctx.weight = weight
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.weight * gradient, None


class SDTPSForward(Patched, nn.Module):
    """The forward of a model with SDTPS."""

    suffix = "SDTPS"
    sdtps: MultiModalSDTPS
    bottleneck_sdtps: nn.BatchNorm1d
    classifier_sdtps: nn.Linear
    sdtps_unguided: tuple[bool, bool, bool]
    """The modalities whose globals do not guide the others in evaluation (TEST.MISS without SDTPS_GUIDE_MISSING)."""
    sdtps_loss_weight: float
    GLOBAL_LOCAL: bool

    def forward(self, x, label=None, cam_label=None, view_label=None, return_pattern=3, img_path=None):
        """As DeMo's; → in training the pair of SDTPS before DeMo's tuple, in evaluation a feature (B, D).

        Return pattern 1 is the original feature, 2 that of SDTPS and then HDM's where it is on, 3 both.
        """
        with SeenPass(self) as seen:
            output = super().forward(x, label, cam_label, view_label, 3, img_path)
        width = sum(feature.shape[-1] for feature in seen.global_feats)
        if self.training:
            return (*self._pair(seen), *output)
        original, fused = output[:, :width], output[:, width:]
        if return_pattern not in (2, 3):
            return original.contiguous()
        return torch.cat([*([original] if return_pattern == 3 else []), self._feature(seen), fused], dim=-1)

    def _feature(self, seen: SeenPass) -> torch.Tensor:
        return torch.cat([tokens.mean(dim=1) for tokens in seen.selected()], dim=-1)

    def _pair(self, seen: SeenPass) -> tuple[torch.Tensor, torch.Tensor]:
        feature = self._feature(seen)
        logits = self.classifier_sdtps(self.bottleneck_sdtps(feature))
        if self.sdtps_loss_weight == 1:
            return logits, feature
        # DeMo's loop adds the losses of all pairs as they are.
        return (_ScaleGradient.apply(logits, self.sdtps_loss_weight), _ScaleGradient.apply(feature, self.sdtps_loss_weight))


def patch(model: Any, cfg: CfgNode) -> Any:
    """Make a model of DeMo run SDTPS, in place, where MODEL.USE_SDTPS is True, and slimming where MODEL.SLIM_BLOCKS has blocks;
    → the model.

    SDTPS adds the modules `sdtps`, `bottleneck_sdtps` and `classifier_sdtps`, slimming the module `slimming`, on the device of
    the model's last parameter. With both off the model is not touched. `cfg` is DeMo's configuration with the keys of
    `add_config`. Raises `UserError` for a model that lacks what they build on, or an impossible value.
    """
    check_values(cfg)
    if isinstance(model, Patched) or not (cfg.MODEL.USE_SDTPS or cfg.MODEL.SLIM_BLOCKS):
        return model
    _check_host(model)
    rows, columns = _grid(model, cfg)
    patches = rows * columns
    if cfg.MODEL.SLIM_BLOCKS:
        if sys.version_info < (3, 10):  # noqa: UP036 (DeMo pins 3.8)
            raise UserError(f"MODEL.SLIM_BLOCKS is {list(cfg.MODEL.SLIM_BLOCKS)}, but slimming needs Python 3.10 or newer; "
                            "install one, or leave it empty.")
        from demo_sdtps.plug_in.slim import slim

        slim(model, cfg, (rows, columns))
        patches = model.slimming.counts[-1]
    if cfg.MODEL.USE_SDTPS:
        _add_sdtps(model, cfg, patches)
    return model


def _add_sdtps(model: Any, cfg: CfgNode, patches: int) -> None:
    device = list(model.parameters())[-1].device
    width = 3 * model.feat_dim
    model.sdtps = _make_sdtps(model, cfg, patches)
    model.bottleneck_sdtps = nn.BatchNorm1d(width)
    model.bottleneck_sdtps.bias.requires_grad_(False)
    model.classifier_sdtps = nn.Linear(width, model.num_classes, bias=False)
    nn.init.normal_(model.classifier_sdtps.weight, std=0.001)
    for module in (model.sdtps, model.bottleneck_sdtps, model.classifier_sdtps):
        module.to(device).train(model.training)

    model.BACKBONE.register_forward_hook(_see_tokens)
    for name in REDUCES if model.GLOBAL_LOCAL else ():
        getattr(model, name).register_forward_hook(_see_global)
    if model.HDM:
        model.generalFusion.register_forward_pre_hook(_give_selected)
    absent = cfg.TEST.MISS if cfg.TEST.MISS in MISSING_CASES and not cfg.MODEL.SDTPS_GUIDE_MISSING else ""
    model.sdtps_unguided = tuple(letter in absent for letter in "rnt")
    model.sdtps_loss_weight = cfg.MODEL.SDTPS_LOSS_WEIGHT
    make_patched(model, SDTPSForward)


def _grid(model: Any, cfg: CfgNode) -> tuple[int, int]:
    """(rows, columns) of patches."""
    first = next((module for module in model.BACKBONE.modules() if isinstance(module, nn.Conv2d)), None)
    if first is None:
        raise UserError(f"BACKBONE has no Conv2d that makes the patches, which was expected; {BY_HAND}.")
    sides = zip(cfg.INPUT.SIZE_TRAIN, first.kernel_size, first.stride)  # noqa: B905 (Python 3.8)
    rows, columns = ((side - patch) // stride + 1 for side, patch, stride in sides)
    return rows, columns


def _make_sdtps(model: Any, cfg: CfgNode, patches: int) -> MultiModalSDTPS:
    try:
        return MultiModalSDTPS(model.feat_dim, patches,
                               **{name: cfg.MODEL[f"SDTPS_{name.upper()}"] for name in SDTPS_ARGUMENTS})
    except ValueError as error:
        raise UserError(f"The values of MODEL.SDTPS_… do not fit: {error}") from None


def _check_host(model: Any) -> None:
    """Raise `UserError` for a model without the attributes or the forward of DeMo's."""
    name = type(model).__name__
    wanted = ["BACKBONE", "feat_dim", "num_classes", "HDM", "ATM", "GLOBAL_LOCAL"]
    wanted += REDUCES if getattr(model, "GLOBAL_LOCAL", False) else ()
    wanted += ["generalFusion"] if getattr(model, "HDM", False) else []
    for attribute in wanted:
        if not hasattr(model, attribute):
            raise UserError(f"{name} has no attribute {attribute}, which was expected in DeMo's model; {BY_HAND}.")
    arguments = tuple(inspect.signature(type(model).forward).parameters)[1:]
    if arguments[:len(ARGUMENTS)] != ARGUMENTS:
        raise UserError(f"{name}.forward takes ({', '.join(arguments)}), but DeMo's ({', '.join(ARGUMENTS)}) was expected; "
                        f"{BY_HAND}.")
    if model.ATM and not model.HDM:
        raise UserError("MODEL.ATM is True and MODEL.HDM False, but ATMoE weighs the features that HDM makes, and DeMo's "
                        "forward fails without them; set MODEL.HDM to True or MODEL.ATM to False.")
