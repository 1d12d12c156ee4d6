"""Parameters and multiply-accumulates of a model, counted by fvcore with rules for what it does not know."""

import logging
import warnings
from collections import Counter
from math import prod

import torch
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import with_values
from demo_sdtps.modeling.demo import DeMo, make_model
from demo_sdtps.modeling.precision import evaluating, inference

OPERATORS = {
    1: "abs add amin clamp_min cos cumsum diff div gelu linalg_vector_norm log mean mul neg pow rsub scatter_add sigmoid sin "
    "softmax sub sum",
    3: "silu",  # stands for quick GELU
    0: "__or__ all aminmax any argsort avg_pool2d expand_as index_copy index_select kthvalue le lt ne ones_like pad rand "
    "repeat repeat_interleave scatter searchsorted sort topk unflatten view_as where",
}
"""Operators of torch that fvcore does not know, by their operations per element of the result."""

MODULE_NAMES = {
    "pife": "PIFE",
    "sdtps": "SDTPS",
    "hdm": "HDM",
    "atmoe": "ATMoE",
    "heads": "heads (training only)",
}

logger = logging.getLogger(__name__)


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Trainable parameters by top-level module."""
    return {
        name: sum(p.numel() for p in module.parameters() if p.requires_grad)
        for name, module in model.named_children()
    }


def count_macs(cfg: CfgNode, model: DeMo) -> Counter[str]:
    """Multiply-accumulates of one triplet in evaluation by module name, "" for all. Matrix products count fully, attention
    fused or not; norms as fvcore counts them; other arithmetic once per element of the result. Operators without a rule count
    as 0, with a warning in the log."""
    images = {modality: torch.zeros(1, 3, *cfg.INPUT.SIZE_TEST) for modality in model.modalities}
    # As in inference, where quick GELU's factors are folded into the weights.
    with inference(model, torch.float32):
        if model.backbone.fused_attention is None:
            model.backbone.fused_attention = False  # the unfused form contains its softmax
        return _by_module(model, (images, torch.zeros(1, dtype=torch.long)))


def total_macs(model: nn.Module, inputs: tuple) -> int:
    """Multiply-accumulates of a forward of any module in evaluation, counted as `count_macs` does."""
    with evaluating(model):
        return _by_module(model, inputs)[""]


def _by_module(model: nn.Module, inputs: tuple) -> Counter[str]:
    # fvcore uses torch.jit.script, which newer torch calls deprecated
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        from fvcore.nn import FlopCountAnalysis
        from fvcore.nn.jit_handles import elementwise_flop_counter
    analysis = FlopCountAnalysis(model, inputs)
    analysis.set_op_handle("aten::scaled_dot_product_attention", attention_macs)
    analysis.set_op_handle("aten::baddbmm", product_macs)
    for count, names in OPERATORS.items():
        rule = elementwise_flop_counter(0, count)
        for name in names.split():
            analysis.set_op_handle(**{f"aten::{name}": rule, f"aten::{name}_": rule})
    # evaluation does not call the heads
    analysis.uncalled_modules_warnings(False).unsupported_ops_warnings(False)
    macs = analysis.by_module()
    if left := ", ".join(sorted(analysis.unsupported_ops())):
        logger.warning("Not counted, because there is no rule for them: %s", left)
    return macs


def operations_table(cfg: CfgNode, model: DeMo) -> list[str]:
    """Lines of the parameters and GMACs of every part; with token pruning, also the share of the dense model's GMACs."""
    parameters, macs = count_parameters(model), count_macs(cfg, model)
    lines = [f"{'module_name':24}{'parameters':>14}{'GMACs':>10}"]
    for name, count in {**parameters, "total": sum(parameters.values())}.items():
        giga = macs["" if name == "total" else name] / 1e9
        lines.append(f"{MODULE_NAMES.get(name, name):24}{count:14,}{giga:10.4f}")
    if model.slimming:
        dense_cfg = with_values(cfg, {"MODEL.SLIM_BLOCKS": [], "MODEL.SLIM_KEEP": []})
        # the heads, whose sizes are those of the classes, are not called
        dense = count_macs(dense_cfg, make_model(dense_cfg, 1, 1).eval())[""]
        lines.append(f"share of the dense model's {dense / 1e9:.4f} GMACs: {macs[''] / dense:.1%}")
    return lines


def attention_macs(inputs: list, outputs: list) -> int:
    """Fused attention of queries (…, L, E), keys (…, S, E) and values (…, S, V): both matrix products."""
    query, key, value = (tensor.type().sizes() for tensor in inputs[:3])
    return prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def product_macs(inputs: list, outputs: list) -> int:
    """A sum and the products of a batch of matrices (B, L, E) and (B, E, S)."""
    return prod(inputs[1].type().sizes()) * inputs[2].type().sizes()[-1]
