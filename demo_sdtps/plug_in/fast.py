"""This project's ranking, re-ranking, HDM and ATMoE in the evaluation of a DeMo checkout, in this process only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.evaluation.distances import matrix_distances
from demo_sdtps.evaluation.metrics import score_distances
from demo_sdtps.evaluation.reranking import k_reciprocal
from demo_sdtps.modeling.checkpoints.names import from_demo
from demo_sdtps.modeling.fusion import HDM, ATMoE
from demo_sdtps.runtime.errors import UserError

if TYPE_CHECKING:
    from demo_sdtps.plug_in.launch import Checkout


def replace_ranking(checkout: Checkout) -> None:
    """Replace the ranking and the re-ranking of `utils.metrics` and `utils.reranking`, and report it."""
    original = checkout.find("utils.metrics", "re_ranking")

    def re_ranking(probFea, galFea, k1, k2, lambda_value, local_distmat=None, only_local=False):  # noqa: N803 (DeMo's names)
        lengths, settings = torch.cat([probFea, galFea]).norm(dim=1), (k1, k2, lambda_value)
        # Ours re-ranks normalised features alone.
        is_normalised = torch.allclose(lengths, torch.ones_like(lengths), atol=1e-4)
        if local_distmat is not None or only_local or not is_normalised:
            return original(probFea, galFea, *settings, local_distmat, only_local)
        return k_reciprocal(probFea, galFea, *settings).cpu().numpy()

    checkout.replace("utils.metrics", "eval_func", _eval_func)
    checkout.replace("utils.metrics", "eval_func_msrv", _eval_func_msrv)
    checkout.replace("utils.metrics", "re_ranking", re_ranking)
    checkout.replace("utils.reranking", "re_ranking", re_ranking)
    print(
        "--fast replaces, in evaluation: utils.metrics.eval_func, eval_func_msrv (which wrote re.txt) and re_ranking; "
        "generalFusion (HDM and ATMoE)"
    )


def _eval_func(
    distmat, q_pids, g_pids, q_camids, g_camids, max_rank=50
) -> tuple[np.ndarray, float]:
    """Market protocol: distances (Q, G) → CMC (min(max_rank, G),) float32 and mAP."""
    distances = matrix_distances(torch.as_tensor(distmat))
    max_rank = min(max_rank, distances.shape[1])
    ranking = score_distances(distances, (q_pids, g_pids), (q_camids, g_camids), max_rank)
    return ranking.cmc.numpy(), ranking.mAP


def _eval_func_msrv(
    distmat, q_pids, g_pids, q_camids, g_camids, q_sceneids, g_sceneids, max_rank=50
) -> tuple[np.ndarray, float]:
    """MSVR310's protocol: as `_eval_func`, by scenes in place of cameras."""
    return _eval_func(distmat, q_pids, g_pids, q_sceneids, g_sceneids, max_rank)


class FastFusion(nn.Module):
    """The forward of a generalFusion that evaluates by this project's HDM and ATMoE with its weights."""

    @staticmethod
    def replace(model: Any, cfg: Any) -> None:
        """Replace the class of `model.generalFusion`, where there is one with HDM."""
        fusion = getattr(model, "generalFusion", None)
        if fusion is None or not getattr(fusion, "HDM", False):
            return
        make_modules(fusion)
        host = type(fusion)
        fusion.__class__ = type(
            f"Fast{host.__name__}", (FastFusion, host), {"__module__": host.__module__}
        )

    def forward(self, *inputs: torch.Tensor) -> Any:
        """In evaluation → (B, 7C); the original in training and in replicas of nn.DataParallel, which have no parameters."""
        if self.training or torch.is_grad_enabled() or getattr(self, "_is_replica", False):
            return super().forward(*inputs)
        hdm, atmoe = make_modules(self)
        patches = dict(zip(MODALITIES, inputs[:3], strict=True))
        features = hdm(patches, dict(zip(MODALITIES, inputs[3:], strict=True)))
        return atmoe(features) if atmoe else features.flatten(1)


def make_modules(fusion: nn.Module) -> tuple[HDM, ATMoE | None]:
    """This project's modules with the weights that a generalFusion has now, for evaluation."""
    weights = {f"generalFusion.{name}": tensor for name, tensor in fusion.state_dict().items()}
    try:
        ours = from_demo(weights)
        width = ours["hdm.query"].shape[1]
        with torch.device("meta"):
            experts = ours.get("atmoe.expert_weight")
            hdm = HDM(width)
            atmoe = None if experts is None else ATMoE(width, width // experts.shape[-1])
        whole = nn.ModuleDict({"hdm": hdm} | ({"atmoe": atmoe} if atmoe else {})).eval()
        whole.load_state_dict(ours, assign=True)
    except (ValueError, KeyError, RuntimeError) as error:
        raise UserError(
            f"--fast: generalFusion has other weights than DeMo's, which were expected: {error}"
        ) from None
    return hdm, atmoe
