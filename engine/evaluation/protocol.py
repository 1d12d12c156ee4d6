"""Evaluation: features of every image once, then the ranking of each return pattern (docs/method.md)."""
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import MISSING_CASES, MODALITIES, RETURN_PATTERNS, UserError
from demo_sdtps.config.progress import progress
from demo_sdtps.datasets import Sample, reader_of
from demo_sdtps.datasets.loaders import batches, test_loader
from demo_sdtps.engine.distributed import all_gather_rows, broadcast_from_main, share
from demo_sdtps.engine.evaluation.metrics import Ranking, evaluate_distances, evaluate_ranking, squared_distances
from demo_sdtps.engine.evaluation.reranking import k_reciprocal
from demo_sdtps.engine.runtime import choose_precision, inference
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.demo import missing_modalities

RANKS = (1, 5, 10)
CASE_WIDTH = 18
CASES = {name: missing_modalities(name) for name in ("nothing", *MISSING_CASES)}
"""Complete triplets and every case of missing modalities: what is missing, by the case's name."""
PATTERN_NAMES = dict(zip(RETURN_PATTERNS, ("1 original", "2 enhanced", "3 both"), strict=True))


@dataclass
class TestData:
    """Query and gallery as places in one list of distinct samples, each of which the network sees once."""

    __test__ = False  # not a test, though its name begins like one

    samples: list[Sample]
    query: torch.Tensor
    gallery: torch.Tensor
    loader: DataLoader
    """Of this process's share of the samples."""
    matched: int
    """Queries with a match in the gallery, which alone are scored."""

    def labels(self, name: str, places: torch.Tensor) -> torch.Tensor:
        """An attribute of the samples at `places`: identity, camera or scene."""
        return torch.tensor([getattr(self.samples[place], name) for place in places.tolist()])


def make_test_data(cfg: CfgNode, query: Sequence[Sample], gallery: Sequence[Sample]) -> TestData:
    """The distinct samples of query and gallery, which are the same images in some data sets.

    Raises `UserError` where no query has a match, and, where images are kept in memory, for one that cannot be read.
    """
    places = defaultdict(set)
    for sample in gallery:
        places[sample.identity].add(getattr(sample, exclude_key(cfg)))
    matched = sum(1 for sample in query if places[sample.identity] - {getattr(sample, exclude_key(cfg))})
    if not matched:
        raise UserError(f"No query of {cfg.DATASETS.NAMES} at {cfg.DATASETS.ROOT_DIR} has a match in the gallery (the same "
                        f"identity with another {exclude_key(cfg)}), so nothing can be scored; check the test split.")
    place = {sample: index for index, sample in enumerate(dict.fromkeys([*query, *gallery]))}
    samples = list(place)
    return TestData(samples, torch.tensor([place[s] for s in query]), torch.tensor([place[s] for s in gallery]),
                    test_loader(cfg, share(samples)), matched)


def data_warnings(cfg: CfgNode, train: Sequence[Sample], data: TestData) -> list[str]:
    """What is probably not meant in the data, though training and evaluation can go on: a sentence each."""
    said = []
    known = {sample.identity for sample in train}
    if shared := sorted(known & {sample.identity for sample in data.samples}):
        said.append(f"WARNING: {len(shared)} identities are in training and test, the first {shared[0]}, so the figures are "
                    "not those of unseen ones; leave them out of one, or renumber them if they are others.")
    if unmatched := len(data.query) - data.matched:
        said.append(f"WARNING: {unmatched} of {len(data.query)} queries have no match in the gallery (the same identity with "
                    f"another {exclude_key(cfg)}) and are not scored, as the field does it.")
    return said


def extract_features(model: DeMo, loader: DataLoader) -> dict[int, torch.Tensor]:
    """Features of the loader's samples by return pattern, (samples, D) float32 on the CPU; one pass of the network.

    Raises `UserError` as `extract_cases` does.
    """
    return extract_cases(model, loader, [model.missing])[0]


def extract_cases(model: DeMo, loader: DataLoader, cases: Sequence[frozenset[str]],
                  total: int | None = None) -> list[dict[int, torch.Tensor]]:
    """`extract_features` for several cases of missing modalities; the backbone sees every image once all the same.

    With `total` the loader has this process's share of so many samples, and the features are those of all of them.

    In float32, as the reference evaluates, unless TEST.AMP says otherwise. Raises `UserError` for features that are not finite,
    which would be ranked all the same.
    """
    device = next(model.parameters()).device
    parts = [[] for _ in cases]
    widths = {}
    with inference(model, choose_precision(model.test_amp, device)):
        for images, _, cameras in progress(batches(loader), "extracting features", len(loader), unit="batch"):
            images = {modality: image.to(device, non_blocking=True) for modality, image in images.items()}
            for found, patterns in zip(parts, model.extract_features(images, cameras.to(device), cases), strict=True):
                widths = {pattern: feature.shape[1] for pattern, feature in patterns.items()}
                found.append(patterns[3].cpu())
    wholes = []
    while parts:  # freeing what has been joined: seven cases of a large data set take gigabytes
        whole = torch.cat(parts.pop(0))
        wholes.append(whole if total is None else all_gather_rows(whole, total))
    if not all(whole.isfinite().all() for whole in wholes):
        raise UserError("The network's features are not finite: the weights are damaged or their training diverged; use other "
                        "weights, or train with a lower SOLVER.BASE_LR.")
    # Pattern 3 holds the original in front and the enhanced behind, which are the same where no module enhances.
    return [{1: whole[:, :widths[1]], 2: whole[:, -widths[2]:], 3: whole} for whole in wholes]


def evaluate(cfg: CfgNode, model: DeMo, data: TestData) -> dict[int, Ranking]:
    """The ranking of each return pattern. Raises `UserError` where no query has a match."""
    features = extract_cases(model, data.loader, [model.missing], len(data.samples))[0]
    return broadcast_from_main(lambda: _rank_patterns(cfg, features, data))


def evaluate_missing(cfg: CfgNode, model: DeMo, data: TestData) -> dict[str, dict[int, Ranking]]:
    """The ranking of each return pattern for complete triplets and for every case of missing modalities, by case."""
    by_case = extract_cases(model, data.loader, list(CASES.values()), len(data.samples))
    return broadcast_from_main(lambda: {name: _rank_patterns(cfg, features, data)
                              for name, features in zip(CASES, by_case, strict=True)})


def _rank_patterns(cfg: CfgNode, features: dict[int, torch.Tensor], data: TestData) -> dict[int, Ranking]:
    return {pattern: rank_features(cfg, feature, data) for pattern, feature in features.items()}


def rank_features(cfg: CfgNode, features: torch.Tensor, data: TestData) -> Ranking:
    """Score features (samples, D) of the test data by the data set's protocol, re-ranked where TEST.RE_RANKING says so."""
    sides = (data.query, data.gallery)
    query, gallery = (_normalised(cfg, features, side) for side in sides)
    ids, cams, scenes = ([data.labels(name, side) for side in sides] for name in ("identity", "camera", "scene"))
    if exclude_key(cfg) != "scene":
        scenes = (None, None)
    labels = (*ids, *cams)
    if cfg.TEST.RE_RANKING == "yes":
        distance = k_reciprocal(query, gallery)
        return evaluate_distances(distance, *labels, query_scenes=scenes[0], gallery_scenes=scenes[1])
    return evaluate_ranking(query, gallery, *labels, query_scenes=scenes[0], gallery_scenes=scenes[1])


def query_distances(cfg: CfgNode, features: torch.Tensor, data: TestData, chosen: torch.Tensor) -> torch.Tensor:
    """Distances of the chosen queries (numbers of queries) to the whole gallery as they are ranked, (len(chosen), G)."""
    query, gallery = (_normalised(cfg, features, side) for side in (data.query, data.gallery))
    if cfg.TEST.RE_RANKING == "yes":  # which looks at all of them together
        return k_reciprocal(query, gallery)[chosen]
    return squared_distances(query[chosen], gallery)


def exclude_key(cfg: CfgNode) -> str:
    """What the data set's protocol leaves out of a query's gallery beside its identity: camera or scene (docs/method.md)."""
    return "scene" if reader_of(cfg).by_scene else "camera"


def normalise(cfg: CfgNode, features: torch.Tensor) -> torch.Tensor:
    """L2-normalised features (n, D) where TEST.FEAT_NORM says so."""
    return F.normalize(features, dim=1) if cfg.TEST.FEAT_NORM == "yes" else features


def _normalised(cfg: CfgNode, features: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """`normalise` of the features at `places`, in one copy of them: those of a large gallery take gigabytes."""
    chosen = features[places]
    return F.normalize(chosen, dim=1, out=chosen) if cfg.TEST.FEAT_NORM == "yes" else chosen


def caption(cfg: CfgNode, data: TestData) -> str:
    """One line on what is evaluated: data, queries, weights and how."""
    queries = f"{len(data.query)} queries" + ("" if data.matched == len(data.query) else f", {data.matched} with a match")
    return f"{cfg.DATASETS.NAMES} in {cfg.DATASETS.ROOT_DIR}, {queries}, {cfg.TEST.WEIGHT}{options(cfg)}, in percent"


def options(cfg: CfgNode) -> str:
    """What of the evaluation is not as usual, each after a comma."""
    missing = [modality for modality in MODALITIES if modality in missing_modalities(cfg.TEST.MISS)]
    return "".join(f", {what}" for what, is_on in (
        (f"without {' and '.join(missing)}", missing), ("re-ranked", cfg.TEST.RE_RANKING == "yes"),
        (f"TEST.AMP {cfg.TEST.AMP}", cfg.TEST.AMP != "off"), ("features after the neck", cfg.TEST.NECK_FEAT == "after"),
        ("features not normalised", cfg.TEST.FEAT_NORM == "no" and cfg.TEST.RE_RANKING == "no")) if is_on)


def as_record(rankings: dict[int, Ranking]) -> dict[str, dict[str, float]]:
    """Rankings as metrics.json holds them: {"1": {"mAP": …, "Rank-1": …, …}, "2": …, "3": …}, in [0, 1]."""
    return {str(pattern): {"mAP": ranking.mAP} | {f"Rank-{k}": ranking.rank(k) for k in RANKS}
            for pattern, ranking in rankings.items()}


def as_table(record: dict[str, dict[str, float]], untrained: dict[str, dict[str, float]] | None = None) -> str:
    """A record as a table in percent, one row per return pattern; with `untrained`, its mAP in the last column."""
    lines = [_header(record) + ("   mAP untrained" if untrained else "")]
    for pattern, line in _lines(record).items():
        lines.append(line + (f"{100 * untrained[pattern]['mAP']:16.1f}" if untrained else ""))
    return "\n".join(lines)


def as_missing_table(records: dict[str, dict[str, dict[str, float]]]) -> str:
    """Records by case of missing modalities as one table in percent: complete triplets, the six cases and their mean."""
    six = [record for case, record in records.items() if missing_modalities(case)]
    mean = {pattern: {column: sum(record[pattern][column] for record in six) / len(six) for column in row}
            for pattern, row in six[0].items()}
    lines = ["missing".ljust(CASE_WIDTH) + _header(mean)]
    for name, record in (*((case_name(case), record) for case, record in records.items()), ("mean of the six", mean)):
        lines += [(name if place == 0 else "").ljust(CASE_WIDTH) + line for place, line in enumerate(_lines(record).values())]
    return "\n".join(lines)


def case_name(case: str) -> str:
    """A case of missing modalities as tables show it: 'rn' → 'rn: RGB, NI'."""
    missing = missing_modalities(case)
    return f"{case}: {', '.join(modality for modality in MODALITIES if modality in missing)}" if missing else case


def _header(record: dict[str, dict[str, float]]) -> str:
    return "return pattern".ljust(16) + "".join(column.rjust(9) for column in next(iter(record.values())))


def _lines(record: dict[str, dict[str, float]]) -> dict[str, str]:
    return {pattern: PATTERN_NAMES[int(pattern)].ljust(16) + "".join(f"{100 * value:9.1f}" for value in row.values())
            for pattern, row in record.items()}
