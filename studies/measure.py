"""What studies alone measure of a trained model: python -m studies.measure --what similarity --weight W --json FILE

`similarity`: how alike the outputs are, the mean cosine between the patch tokens of a query's image, and between the global
features of two images of a batch of queries; near 1 the backbone has collapsed: its outputs hardly depend on place and image
(Dong et al., "Attention is not all you need", ICML 2021).

`calibration`: how well calibrations hold on other identities and cameras. The identities that a model was not trained on, of
the splits validation, query and gallery, are split ten times at random: as many as validation has are calibrated on, the others
measured, at a false acceptance of 1 %. Return pattern 3, mean over the splits. "Another camera": that of one side of the
measured pairs is in no pair of the fit.

`identities`: of each identity of the queries, the mean of their average precision, and their number. TEST.RETURN_PATTERN.
"""

from collections import defaultdict
from collections.abc import Callable
from statistics import mean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import expit
from yacs.config import CfgNode

from demo_sdtps.commands import cli, flags
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.base import SPLITS, VALIDATION
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
from demo_sdtps.retrieval.calibration import (
    Labelled,
    Pairs,
    fit,
    label_distances,
    select_pairs,
)
from demo_sdtps.runtime.files import write_json

SPLIT_COUNT, COMPLETE = 10, "RGB+NI+TI, RGB+NI+TI"
BINS = 15  # of the calibration error
FALSE_ACCEPT = (
    0.01  # share of the pairs of different identities that a threshold of the distance accepts
)


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


def part(labelled: Labelled, rows: np.ndarray, columns: np.ndarray) -> Labelled:
    """Some rows and columns of labelled triplets."""
    distances, identities, cameras = labelled
    labels = [(one[rows], other[columns]) for one, other in (identities, cameras)]
    return distances[rows][:, columns], *labels


def quality(fitted_on: Pairs, pairs: Pairs) -> tuple[float, float, float]:
    """A fit on some pairs measured by others: the expected calibration error, by the shares of the fit, and what the threshold
    of FALSE_ACCEPT accepts of the pairs of different identities and of one."""
    fitted, limit = fit(fitted_on), np.quantile(fitted_on[1], FALSE_ACCEPT)
    counts, sizes = [*map(len, fitted_on)], [*map(len, pairs)]
    weights = np.repeat(np.divide(counts, sizes) / sum(counts), sizes)
    probabilities = expit(fitted["offset"] - fitted["slope"] * np.concatenate(pairs))
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights * (np.repeat([1.0, 0.0], sizes) - probabilities), BINS)
    true, false = (float((distances <= limit).mean()) for distances in pairs)
    return float(np.abs(gaps).sum()), false, true


def calibration(cfg: CfgNode) -> dict[str, dict[str, float]]:
    splits = read_splits(cfg, (VALIDATION, *SPLITS[1:]))
    samples = [*dict.fromkeys(sample for members in splits.values() for sample in members)]
    count = len({sample.identity for sample in splits[VALIDATION]})
    values: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for pattern, pair, labelled in label_distances(cfg, samples):
        if pattern != 3:
            continue
        _, identities, cameras = labelled
        kind = "complete" if pair == COMPLETE else "other sets"
        draw = np.random.default_rng(0)
        for _ in range(SPLIT_COUNT):
            chosen = draw.permutation(np.unique(np.concatenate(identities)))[:count]
            camera = draw.choice(np.unique(np.concatenate(cameras)))
            fitted_on = [np.isin(side, chosen) for side in identities]
            others = [~side for side in fitted_on]
            is_other = [side != camera for side in cameras]
            cases = {
                kind: (fitted_on, others),
                f"{kind}, another camera": (
                    [side & mask for side, mask in zip(fitted_on, is_other, strict=True)],
                    [others[0] & ~is_other[0], others[1]],
                ),
            }
            for name, (places, measured_on) in cases.items():
                both = (select_pairs(part(labelled, *masks)) for masks in (places, measured_on))
                error, false, true = quality(*both)
                is_near = FALSE_ACCEPT / 2 <= false <= FALSE_ACCEPT * 2
                row = {"error": error, "false": false}
                row |= {"false within 0.5 to 2": is_near, "true": true}
                for what, value in row.items():
                    values[name][what].append(value)
                values[name][pair].append(false)
    content = {}
    for name, columns in values.items():
        sets = [columns.pop(one) for one in [*columns] if ", " in one]
        content[name] = {what: mean(numbers) for what, numbers in columns.items()}
        content[name]["false of the worst sets"] = max(map(mean, sets))
    return content


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
    return {identity: (mean(each), len(each)) for identity, each in values.items()}


MEASURES: dict[str, Callable[[CfgNode], dict[str, Any]]] = {
    "similarity": similarity,
    "calibration": calibration,
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
