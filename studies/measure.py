"""What studies alone measure of a trained model: python -m studies.measure --what similarity --weight W --json FILE

`similarity`: how alike the outputs are, the mean cosine between the patch tokens of a query's image, and between the global
features of two images of a batch of queries; near 1 the backbone has collapsed: its outputs hardly depend on place and image
(Dong et al., "Attention is not all you need", ICML 2021).

`identities`: of each identity of the queries, the mean of their average precision, and their number. TEST.RETURN_PATTERN.
"""

from collections import defaultdict
from collections.abc import Callable
from statistics import mean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from yacs.config import CfgNode

from demo_sdtps.commands import cli, flags
from demo_sdtps.datasets.loaders import batches, test_loader
from demo_sdtps.evaluation.metrics import score_queries
from demo_sdtps.evaluation.protocol import (
    extract_cases,
    load_model_and_data,
    make_test_data,
    ranked_distances,
)
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.precision import evaluating
from demo_sdtps.runtime.files import write_json


def similarity(cfg: CfgNode) -> dict[str, float]:
    model, splits = load_model_and_data(cfg, ("query",))
    tokens, images, device = [], [], next(model.parameters()).device
    with evaluating(model):
        for batch in batches(test_loader(cfg, splits["query"])):
            batch = batch.to(device)
            encoded = model.forward_features(batch.images, batch.cameras)
            tokens += [mean_cosine(patches).mean().item() for patches in encoded.tokens.values()]
            if len(batch.cameras) > 1:
                images += [mean_cosine(rows).item() for rows in encoded.global_feats.values()]
    return {"tokens": mean(tokens), "images": mean(images)}


def mean_cosine(rows: torch.Tensor) -> torch.Tensor:
    """Mean cosine similarity of two different rows of (…, N, C), (…)."""
    unit = F.normalize(rows.float(), dim=-1)
    count = rows.shape[-2]
    return (unit.sum(dim=-2).square().sum(dim=-1) - count) / (count * (count - 1))


def identities(cfg: CfgNode) -> dict[str, tuple[float, int]]:
    model, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    case = {cfg.TEST.MISS: missing_modalities(cfg.TEST.MISS)}
    features = extract_cases(cfg, model, data, case)[cfg.TEST.MISS][cfg.TEST.RETURN_PATTERN]
    distances = ranked_distances(cfg, features.to(next(model.parameters()).device), data)
    precision = score_queries(distances, *data.labels).average_precision
    values = defaultdict(list)
    for identity, value in zip(data.labels[0].identity, precision, strict=True):
        if not np.isnan(value):
            values[str(identity)].append(float(value))
    return {identity: (round(mean(each), 5), len(each)) for identity, each in values.items()}


MEASURES: dict[str, Callable[[CfgNode], dict[str, Any]]] = {
    "similarity": similarity,
    "identities": identities,
}


def main() -> None:
    parser = flags.config_parser("Measure a trained model, as studies/measure.py describes.")
    cli.add_choice(parser, "--what", MEASURES, "similarity")
    cli.add_output(parser, "--json", ".json", help="write it to this file")
    arguments, cfg = flags.parse(parser)
    content = MEASURES[arguments.what](cfg)
    if arguments.json:
        write_json(arguments.json, content)
    cli.print_lines(*(f"{name}: {value}" for name, value in content.items()))


if __name__ == "__main__":
    cli.run(main)
