"""Rows of the benchmark for HDM with ATMoE, beside their plain formulation."""
from collections.abc import Callable, Mapping

import torch
from torch import nn

from demo_sdtps.benchmarks.plain.fusion import Fusion  # which the tests compare with
from demo_sdtps.benchmarks.rows import Row, check_equal, speed_row
from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.modeling.backbones import make_backbone
from demo_sdtps.modeling.fusion import HDM, ATMoE
from demo_sdtps.modeling.weights import from_demo
from demo_sdtps.training.timing import in_turns

FUSION_TARGET = 30  # speed-up over the plain formulation

ByModality = dict[str, torch.Tensor]


class Fast(nn.Module):
    """HDM and ATMoE as the model has them, with a plain fusion's weights."""

    def __init__(self, plain: Fusion, width: int, heads: int):
        super().__init__()
        self.hdm, self.atmoe = HDM(width), ATMoE(width, heads)
        self.load_state_dict(from_demo({f"generalFusion.{name}": weight for name, weight in plain.state_dict().items()}))

    def forward(self, patches: ByModality, global_feats: ByModality) -> torch.Tensor:
        return self.atmoe(self.hdm(patches, global_feats))


def fusion_rows(quick: bool, device: torch.device) -> list[Row]:
    """HDM and ATMoE against seven attentions and a loop over the experts. Raises `RuntimeError` where the outputs differ."""
    cfg = load_cfg("RGBNT201/DeMo.yml")
    torch.manual_seed(cfg.SOLVER.SEED)
    batch, rounds = (2, 1) if quick else (64, 2)
    backbone = make_backbone(cfg, camera_num=1)  # only for its shapes
    width, count = backbone.width, backbone.num_patches
    plain = Fusion(width, cfg.MODEL.HEAD)
    modules = {"reference": plain.to(device), "ours": Fast(plain, width, cfg.MODEL.HEAD).to(device)}
    tokens = random_tokens(batch, count, width, device)
    check_equal("HDM + ATMoE", evaluate(modules["ours"], tokens), evaluate(modules["reference"], tokens))
    title = f"HDM + ATMoE, {batch} triplets, {count} patches"
    training = in_turns(title, _cases(modules, train, tokens), rounds, device)
    evaluation = in_turns(title, _cases(modules, evaluate, tokens), 2 * rounds, device)
    return [speed_row(f"{title}: evaluation", evaluation, FUSION_TARGET),
            speed_row(f"{title}: training step", training, FUSION_TARGET)]


def random_tokens(batch: int, count: int, width: int, device: torch.device) -> tuple[ByModality, ByModality]:
    """Random patches (B, N, C), views of tokens that begin with a class token as from the backbone, and globals (B, C)."""
    return ({modality: torch.randn(batch, 1 + count, width, device=device)[:, 1:] for modality in MODALITIES},
            {modality: torch.randn(batch, width, device=device) for modality in MODALITIES})


def _cases(modules: Mapping[str, nn.Module], work: Callable, inputs: tuple[ByModality, ByModality]) -> dict[str, Callable]:
    return {name: lambda module=module: work(module, inputs) for name, module in modules.items()}


@torch.no_grad()
def evaluate(module: nn.Module, inputs: tuple[ByModality, ByModality]) -> torch.Tensor:
    return module.eval()(*inputs)


def train(module: nn.Module, inputs: tuple[ByModality, ByModality]) -> None:
    module.zero_grad()
    leaves = [{name: tensor.detach().requires_grad_() for name, tensor in part.items()} for part in inputs]
    module.train()(*leaves).sum().backward()
