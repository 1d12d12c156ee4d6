"""Weights of HDM and ATMoE: DeMo's seven attentions and 7·HEAD experts are single stacked tensors here (docs/method.md)."""

import re
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import nn

from demo_sdtps.modeling.fusion import SUBSETS
from demo_sdtps.runtime.errors import UserError

FUSION = "generalFusion."
EXPERT = re.compile(re.escape(FUSION) + r"moe\.experts\.(\d+)\.")

ATTENTION = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
"""DeMo's names of an attention's weights; ours have no dot."""
EXPERT_NAMES = {
    "0.weight": "expert_weight",
    "0.bias": "expert_bias",
    **{f"2.{leaf}": f"norm.{leaf}" for leaf in nn.BatchNorm1d(1).state_dict()},
}

QUERY, NORM, COUNTER = "hdm.query", "atmoe.norm.", "atmoe.norm.num_batches_tracked"


def stack_fusion(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """DeMo's weights with HDM's and ATMoE's stacked under our names, after the others.

    Raises `ValueError` for an incomplete stack.
    """
    heads = {int(match[1]) for match in map(EXPERT.match, weights) if match}
    table = _table(1 + max(heads, default=-1))
    if weights.keys().isdisjoint(table):
        return dict(weights)
    missing = [name for name in table if name not in weights]
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"{missing[0]} is missing{more}")
    members = defaultdict(list)
    for theirs, (ours, *_) in table.items():
        members[ours].append(weights[theirs])
    stacks = {ours: _stack(ours, tensors) for ours, tensors in members.items()}
    return {name: tensor for name, tensor in weights.items() if name not in table} | stacks


def unstack_fusion(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse of `stack_fusion`: HDM's and ATMoE's weights after the others."""
    if len(weights.get(QUERY, SUBSETS)) != len(SUBSETS):
        raise UserError(
            "HDM of these weights is of fewer modalities (MODEL.MODALITIES) than DeMo's; convert a model of all three."
        )
    table = _table(len(weights.get("atmoe.expert_weight", ())) // len(SUBSETS))
    stacks = {ours for ours, *_ in table.values()}
    return {name: tensor for name, tensor in weights.items() if name not in stacks} | {
        theirs: _part(ours, weights[ours], *place)
        for theirs, (ours, *place) in table.items()
        if ours in weights
    }


def _table(heads: int) -> dict[str, tuple[str, int, int]]:
    """DeMo's names → name of our stack, index in it, size of it; the members of a stack in their order."""
    count, table = len(SUBSETS), {}
    for index, subset in enumerate(SUBSETS):
        table[f"{FUSION}{subset}_token"] = (QUERY, index, count)
        for leaf in ATTENTION:
            table[f"{FUSION}{subset}.{leaf}"] = (f"hdm.{leaf.replace('.', '_')}", index, count)
    for index in range(heads * count):
        head, feature = divmod(index, count)
        expert = f"{FUSION}moe.experts.{head}.expertHead.{feature}.mlp"
        for theirs, ours in EXPERT_NAMES.items():
            table[f"{expert}.{theirs}"] = (f"atmoe.{ours}", index, heads * count)
    return table


def _stack(ours: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    if ours == COUNTER:  # one BatchNorm has one counter; every expert of DeMo sees every batch
        return tensors[0]
    stack = torch.stack(tensors)
    if ours.startswith(NORM):
        return stack.flatten()
    return stack.flatten(1) if ours == QUERY else stack


def _part(ours: str, stack: torch.Tensor, index: int, count: int) -> torch.Tensor:
    if ours == COUNTER:
        return stack
    # A clone: a view would be saved with the whole stack.
    tensor = (stack.view(count, -1) if ours.startswith(NORM) else stack)[index].clone()
    return tensor.view(1, 1, -1) if ours == QUERY else tensor
