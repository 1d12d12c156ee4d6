"""A weighted sum of all cues, whose weights are trained."""
import torch
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.modeling.sdtps import cosine_guidance, min_max, predict, score_mlp
from demo_sdtps.modeling.selectors.base import ByModality, Context
from demo_sdtps.modeling.selectors.cues import distinctness, mean_attention
from demo_sdtps.modeling.selectors.position import Position

CUES = {"mlp": 0.5, "own_cosine": 0.5, "other_cosines": 0.25, "distinctness": 0.0, "summed_distinctness": 0.0,
        "attention": 0.0, "position": 0.0}
"""Cues and their first weights, those of the published score (`GuidedScore`), with which it is equal where none is missing."""


class Learned(Position):
    """Σ weight·cue, with one weight per cue for all modalities and a gradient through the MLP's cue and the weights alone.

    The cues of a modality (`parts`): the MLP as in SDTPS; cosines with its own guide and with those of the others that are not
    missing; its distinctness and the sum of that over all that are not missing; what its class token attends to (mean over the
    heads); the running map of `Position`. All but the MLP are min-max normalised over the patches. The guides are the global
    features, and where there are none, the class tokens. Without attention weights that cue is 0.

    The gradient comes straight through the choice with the temperature MODEL.SLIM_TAU (0: none), through the weights of the
    extra token, and with MODEL.SLIM_DISTIL from the class token's attention in the last block.
    """

    needs_attention = True

    def __init__(self, cfg: CfgNode, width: int, grid: tuple[int, int]):
        super().__init__(cfg, width, grid)
        model = cfg.MODEL
        is_trained = model.SLIM_TAU or model.SLIM_MERGE or model.SLIM_DISTIL
        if model.SLIM_BLOCKS and model.SLIM_SCORE == "learned" and not is_trained:
            raise UserError(f"MODEL.SLIM_SCORE is {model.SLIM_SCORE!r}, but nothing trains it: MODEL.SLIM_TAU and "
                            "MODEL.SLIM_DISTIL are 0 and MODEL.SLIM_MERGE is False; set one of them.")
        self.gumbel_tau, self.distil = model.SLIM_TAU or None, model.SLIM_DISTIL
        self.score_predictor = nn.ModuleDict({modality: score_mlp(width) for modality in MODALITIES})
        self.weights = nn.Parameter(torch.tensor(list(CUES.values())))

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        cues = self.parts(tokens, context)
        # No matrix product, which autocast would compute in half precision.
        return (torch.stack([cues[name] for name in CUES], dim=-1) * self.weights).sum(dim=-1)

    def parts(self, tokens: torch.Tensor, context: Context) -> ByModality:
        own, guides = context.modality, context.global_feats or context.class_tokens
        present = [modality for modality in context.tokens if modality not in context.missing]
        others = [guides[modality] for modality in present if modality != own]
        cosines = cosine_guidance(tokens, torch.stack([guides[own], *others]))
        # An absent sum of cues is a sum of zeros.
        none = torch.zeros_like(cosines[0])
        summed = sum((distinctness(context.tokens[modality]) for modality in present), none)
        attention = min_max(mean_attention(context.attention[own])) if context.attention else none
        return {"mlp": predict(self.score_predictor[own], tokens), "own_cosine": cosines[0],
                "other_cosines": cosines[1:].sum(dim=0), "distinctness": min_max(distinctness(tokens)),
                "summed_distinctness": min_max(summed), "attention": attention,
                "position": min_max(super().score(tokens, context))}

    def scalars(self) -> dict[str, float]:
        return dict(zip(CUES, self.weights.tolist(), strict=True))
