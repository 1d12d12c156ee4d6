"""How alike the outputs of a trained model are.

Mean cosine between the patch tokens of a query's image, and between the global features of two images of a batch of queries;
near 1 the backbone has collapsed: its outputs hardly depend on place and image (Dong et al., "Attention is not all you need",
ICML 2021).
"""

from statistics import mean

import torch
import torch.nn.functional as F
from yacs.config import CfgNode

from demo_sdtps.datasets.loaders import batches, test_loader
from demo_sdtps.evaluation.extraction import load_model_and_data
from demo_sdtps.modeling.inference import evaluating


def measure(cfg: CfgNode) -> dict[str, float]:
    model, splits = load_model_and_data(cfg, ("query",))
    tokens, images, device = [], [], next(model.parameters()).device
    with evaluating(model):
        for batch in batches(test_loader(cfg, splits["query"])):
            batch = batch.to(device)
            context = model.forward_features(batch.images, batch.cameras).context
            tokens += [mean_cosine(patches).mean().item() for patches in context.tokens.values()]
            if len(batch.cameras) > 1:
                images += [mean_cosine(rows).item() for rows in context.global_feats.values()]
    return {"tokens": mean(tokens), "images": mean(images)}


def mean_cosine(rows: torch.Tensor) -> torch.Tensor:
    """Mean cosine similarity of two different rows of (…, N, C), (…)."""
    unit = F.normalize(rows.float(), dim=-1)
    count = rows.shape[-2]
    return (unit.sum(dim=-2).square().sum(dim=-1) - count) / (count * (count - 1))
