"""Evaluation: features of every image once, then the ranking of each return pattern (spec 6, 9)."""
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from config import RETURN_PATTERNS, UserError
from config.progress import progress
from datasets import READERS, Sample
from datasets.loaders import batches, test_loader
from engine.metrics import Ranking, evaluate_ranking
from modeling import DeMo

RANKS = (1, 5, 10)
PATTERN_NAMES = dict(zip(RETURN_PATTERNS, ("1 original", "2 enhanced", "3 both"), strict=True))


@dataclass
class TestData:
    """Query and gallery as places in one list of distinct samples, each of which the network sees once."""

    __test__ = False  # not a test, though its name begins like one

    samples: list[Sample]
    query: torch.Tensor
    gallery: torch.Tensor
    loader: DataLoader

    def labels(self, name: str, places: torch.Tensor) -> torch.Tensor:
        """An attribute of the samples at `places`: identity, camera or scene."""
        return torch.tensor([getattr(self.samples[place], name) for place in places.tolist()])


def make_test_data(cfg: CfgNode, query: Sequence[Sample], gallery: Sequence[Sample]) -> TestData:
    """The distinct samples of query and gallery, which are the same pictures in some data sets.

    Raises `UserError` where no query has a match, and, where pictures are kept in memory, for one that cannot be read.
    """
    places = defaultdict(set)
    for sample in gallery:
        places[sample.identity].add(getattr(sample, place_name(cfg)))
    if not any(places[sample.identity] - {getattr(sample, place_name(cfg))} for sample in query):
        raise UserError(f"No query of {cfg.DATASETS.NAMES} at {cfg.DATASETS.ROOT_DIR} has a match in the gallery (the same "
                        f"identity with another {place_name(cfg)}), so nothing can be scored; check the test split.")
    place = {sample: index for index, sample in enumerate(dict.fromkeys([*query, *gallery]))}
    samples = list(place)
    return TestData(samples, torch.tensor([place[s] for s in query]), torch.tensor([place[s] for s in gallery]),
                    test_loader(cfg, samples))


@torch.no_grad()
def extract_features(model: DeMo, loader: DataLoader) -> dict[int, torch.Tensor]:
    """Features of the loader's samples by return pattern, (samples, D) float32 on the CPU; one pass of the network.

    Always in float32, as the reference evaluates: bfloat16 moved Rank-1 by a point on the synthetic pedestrians. Raises
    `UserError` for features that are not finite, which would be ranked all the same.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    parts = {pattern: [] for pattern in RETURN_PATTERNS}
    for images, _, cameras in progress(batches(loader), "extracting features", len(loader), unit="batch"):
        images = {modality: image.to(device, non_blocking=True) for modality, image in images.items()}
        for pattern, feature in model.patterns(images, cameras.to(device)).items():
            parts[pattern].append(feature.cpu())
    model.train(was_training)
    features = {pattern: torch.cat(features) for pattern, features in parts.items()}
    if not all(feature.isfinite().all() for feature in features.values()):
        raise UserError("The network's features are not finite: the weights are damaged or their training diverged; use other "
                        "weights, or train with a lower SOLVER.BASE_LR.")
    return features


def evaluate(cfg: CfgNode, model: DeMo, data: TestData) -> dict[int, Ranking]:
    """The ranking of each return pattern. Raises `UserError` where no query has a match."""
    features = extract_features(model, data.loader)
    return {pattern: rank_features(cfg, feature, data) for pattern, feature in features.items()}


def rank_features(cfg: CfgNode, features: torch.Tensor, data: TestData) -> Ranking:
    """Score features (samples, D) of the test data by the data set's protocol."""
    features = normalise(cfg, features)
    sides = (data.query, data.gallery)
    ids, cams, scenes = ([data.labels(name, side) for side in sides] for name in ("identity", "camera", "scene"))
    if place_name(cfg) != "scene":
        scenes = (None, None)
    return evaluate_ranking(features[data.query], features[data.gallery], *ids, *cams,
                            query_scenes=scenes[0], gallery_scenes=scenes[1])


def place_name(cfg: CfgNode) -> str:
    """What the data set's protocol leaves out of a query's gallery beside its identity: camera or scene (spec 9)."""
    return "scene" if READERS[cfg.DATASETS.NAMES].by_scene else "camera"


def normalise(cfg: CfgNode, features: torch.Tensor) -> torch.Tensor:
    """L2-normalised features (n, D) where TEST.FEAT_NORM says so."""
    return F.normalize(features, dim=1) if cfg.TEST.FEAT_NORM == "yes" else features


def as_record(rankings: dict[int, Ranking]) -> dict[str, dict[str, float]]:
    """Rankings as metrics.json holds them: {"1": {"mAP": …, "Rank-1": …, …}, "2": …, "3": …}, in [0, 1]."""
    return {str(pattern): {"mAP": ranking.mAP} | {f"Rank-{k}": ranking.rank(k) for k in RANKS}
            for pattern, ranking in rankings.items()}


def as_table(record: dict[str, dict[str, float]], untrained: dict[str, dict[str, float]] | None = None) -> str:
    """A record as a table in percent, one row per return pattern; with `untrained`, its mAP in the last column."""
    columns = list(next(iter(record.values())))
    header = "return pattern".ljust(16) + "".join(column.rjust(9) for column in columns)
    lines = [header + ("   mAP untrained" if untrained else "")]
    for pattern, row in record.items():
        line = PATTERN_NAMES[int(pattern)].ljust(16) + "".join(f"{100 * row[column]:9.1f}" for column in columns)
        lines.append(line + (f"{100 * untrained[pattern]['mAP']:16.1f}" if untrained else ""))
    return "\n".join(lines)
