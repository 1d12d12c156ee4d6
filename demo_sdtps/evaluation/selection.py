"""How well SDTPS and slimming find a known foreground, such as the synthetic pedestrians' (docs/method.md), and its tables."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import resize
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.images import decode, parallel
from demo_sdtps.datasets.loaders import batches
from demo_sdtps.datasets.masks import mask_paths
from demo_sdtps.evaluation.extraction import CASES, encode_cases, missing_cases
from demo_sdtps.evaluation.tables import CASE_WIDTH, case_name
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.backbones import Backbone
from demo_sdtps.modeling.demo import EncodedTriplets
from demo_sdtps.modeling.inference import check_features, check_finite
from demo_sdtps.modeling.modalities import ByModality
from demo_sdtps.runtime.progress import progress

SHARES = ("base_rate", "kept", "recall")
SDTPS_NAME = "SDTPS"
COMPLETE = next(iter(CASES))

Measures = dict[str, dict[str, float]]  # measures by their name, by modality
# by modality and measure a number for each image, in batches
Numbers = dict[tuple[str, str], list[torch.Tensor]]


@dataclass(frozen=True)
class Quality:
    """The result of `measure_selection`, all shares in [0, 1].

    Measures are "base_rate", the share of the patches in the foreground; "kept", that of the kept patches; "recall", the share
    of the foreground's patches that are kept; and the average precision of every detector: the score and its parts
    (`Selection.terms`), without those of missing modalities. Base rate and average precision are among the patches that reach a
    stage or SDTPS, recall is among all patches of the grid. A measure that no image has is left out.
    """

    cases: dict[str, Measures]  # of SDTPS by case, empty without it
    random_order: float  # expected average precision of a random order of the grid's patches
    # of the global features of two images, by modality: near 1 a global feature hardly depends on its image
    mean_global_cosine: dict[str, float]
    images: int
    left_out: int  # images without a patch in the foreground, which are not in recall and average precisions
    stages: dict[str, dict[str, Measures]]  # of slimming: "stage 1", "stage 2", …, by case
    lights: dict[str, dict[str, Measures]]  # of complete triplets: {"day": {"stage 1": measures}}

    @property
    def choices(self) -> dict[str, dict[str, Measures]]:
        """Measures by case of every stage, and of SDTPS."""
        return self.stages | ({SDTPS_NAME: self.cases} if self.cases else {})


@dataclass(frozen=True)
class Choice:
    """What a stage of slimming or SDTPS keeps of the n patches of a modality that reach it."""

    positions: torch.Tensor  # (B, n) int64: index of each patch on the grid
    kept: torch.Tensor  # (B, n) bool
    scores: ByModality  # (B, n) by name of the detector, the score first


@torch.no_grad()
def measure_selection(
    model: DeMo, loader: DataLoader, foreground: torch.Tensor, illuminations: Sequence[str] = ()
) -> Quality:
    """Complete triplets and every case of missing modalities; the first blocks of the backbone see every image once. foreground
    (images, N) bool: whether a patch is in it; images in the loader's order, one for the three of a triplet. `illuminations`
    are "day", "night" or "" for each image."""
    device, cases = next(model.parameters()).device, missing_cases(model.modalities)
    numbers: dict[tuple[str, str], Numbers] = defaultdict(lambda: defaultdict(list))
    sums: dict[str, torch.Tensor] = {}
    parts = progress(batches(loader), "measuring the selection", len(loader), unit="batch")
    masks = foreground.to(device).split(loader.batch_size or 1)
    for batch, relevant in zip(parts, masks, strict=True):
        batch = batch.to(device)
        encodings = encode_cases(model, batch.images, batch.cameras, list(cases.values()))
        for (case, missing), encoded in zip(cases.items(), encodings, strict=True):
            if case == COMPLETE:
                for modality, vectors in encoded.context.global_feats.items():
                    total = F.normalize(vectors.double(), dim=1).sum(dim=0)
                    sums[modality] = sums.get(modality, 0) + total
            for name, by_modality in choices(model, encoded, missing).items():
                for modality, choice in by_modality.items():
                    for measure, values in measures(choice, relevant).items():
                        numbers[name, case][modality, measure].append(values.cpu())
    names = dict.fromkeys(name for name, _ in numbers)
    rates = {name: {case: _means(numbers[name, case]) for case in cases} for name in names}
    by_light = {}
    for illumination in sorted(set(illuminations) - {""}):
        those = torch.tensor([one == illumination for one in illuminations])
        by_light[illumination] = {name: _means(numbers[name, COMPLETE], those) for name in names}
    count = len(foreground)
    # The mean over all ordered pairs of two different images.
    cosines = {
        modality: (total.square().sum().item() - count) / max(1, count * (count - 1))
        for modality, total in sums.items()
    }
    return Quality(
        rates.pop(SDTPS_NAME, {}),
        random_order(foreground),
        cosines,
        count,
        int((~foreground.any(dim=1)).sum()),
        rates,
        by_light,
    )


def check_selection(cfg: CfgNode) -> None:
    """Raise `UserError` for a configuration with neither SDTPS nor slimming."""
    if not selects_patches(cfg):
        raise UserError(
            "MODEL.USE_SDTPS is False and MODEL.SLIM_BLOCKS [], so no patches are selected; use a configuration "
            "with SDTPS or with slimming."
        )


def selects_patches(cfg: CfgNode) -> bool:
    """Whether a configuration has SDTPS or slimming."""
    return bool(cfg.MODEL.USE_SDTPS or cfg.MODEL.SLIM_BLOCKS)


def choices(
    model: DeMo, encoded: EncodedTriplets, missing: frozenset[str] = frozenset()
) -> dict[str, dict[str, Choice]]:
    """What is kept of every present modality, by the name of the stage, "stage 1" first, and of SDTPS, by modality; without the
    parts of a score that are named after `missing` modalities."""
    context = encoded.context
    features = [*context.tokens.values(), *context.global_feats.values()]
    check_features("The network's features", features)
    by_place: dict[str, dict[str, Choice]] = {}
    present = [modality for modality in model.modalities if modality not in missing]
    for number, stage in enumerate(encoded.stages, start=1):
        by_place[f"stage {number}"] = {
            modality: Choice(
                stage.scored[modality],
                stage.mask(modality, prod(context.grid)).gather(1, stage.scored[modality]) > 0,
                {"score": stage.score[modality]},
            )
            for modality in present
        }
    if model.sdtps:
        selections, by_place[SDTPS_NAME] = model.select_patches(context), {}
        for modality in present:
            selection = selections[modality]
            terms = {name: each for name, each in selection.terms.items() if name not in missing}
            scores = {"score": selection.score, **terms}
            choice = Choice(context.places(modality), selection.mask > 0, scores)
            by_place[SDTPS_NAME][modality] = choice
    for by_modality in by_place.values():
        for choice in by_modality.values():
            check_finite("The scores of the patches", choice.scores.values())
    return by_place


def measures(choice: Choice, foreground: torch.Tensor) -> dict[str, torch.Tensor]:
    """One number (B,) float64 per image and measure; foreground (B, N) bool. NaN: the image has no number."""
    relevant, kept = foreground.gather(1, choice.positions), choice.kept.double()
    hits = (kept * relevant).sum(dim=1)
    return {
        "base_rate": relevant.double().mean(dim=1),
        "kept": hits / kept.sum(dim=1),
        "recall": hits / foreground.sum(dim=1),
        **{name: average_precision(score, relevant) for name, score in choice.scores.items()},
    }


def _means(numbers: Numbers, images: torch.Tensor | slice = slice(None)) -> Measures:
    """Means over `images` by modality and measure, without NaN."""
    rows: Measures = {modality: {} for modality, _ in numbers}
    for (modality, measure), blocks in numbers.items():
        values = torch.cat(blocks)[images]
        if not values.isnan().all():
            rows[modality][measure] = values.nanmean().item()
    return rows


def average_precision(scores: torch.Tensor, relevant: torch.Tensor) -> torch.Tensor:
    """Average precision, the highest score first: scores (B, N), relevant (B, N) bool → (B,) float64; NaN: none is relevant.
    The mean, over the relevant, of the precision among all with an equal or higher score: a constant score gives the share of
    the relevant, whatever the order."""
    scores, order = scores.sort(dim=1, descending=True)
    relevant = relevant.gather(1, order)
    last = torch.searchsorted(-scores, -scores, right=True) - 1  # index of the last equal score
    precision = relevant.cumsum(dim=1).gather(1, last).double() / (last + 1)
    return (precision * relevant).sum(dim=1) / relevant.sum(dim=1)


def random_order(relevant: torch.Tensor) -> float:
    """Expected average precision of a random order: the mean over the rows of relevant (B, N) bool with R > 0 relevant. At rank
    k of N a relevant one has (k - 1)·(R - 1)/(N - 1) relevant before it on average, which gives the mean over k of
    (1 + (k - 1)·(R - 1)/(N - 1))/k."""
    counts = relevant.sum(dim=1)
    counts = counts[counts > 0].double().unsqueeze(1)
    before = torch.arange(relevant.shape[1])  # k - 1
    return ((1 + before * (counts - 1) / max(1, len(before) - 1)) / (before + 1)).mean().item()


def foreground(cfg: CfgNode, backbone: Backbone, samples: list[Sample]) -> torch.Tensor:
    """Whether at least half of a patch's pixels are on the person: (images, N) bool."""
    paths = mask_paths(samples)
    if absent := next((path for path in paths if not path.exists()), None):
        raise UserError(
            f"The foreground mask {absent} is missing, so it is not known where the person is; write the masks "
            "with demo-sdtps masks, or set DATASETS.ROOT_DIR to data of demo-sdtps synthetic."
        )
    patch, stride = backbone.vit.patch_embed.patch_size, cfg.MODEL.STRIDE_SIZE

    def on_person(path: Path) -> torch.Tensor:
        mask = (decode(str(path), scale=None)[:1] > 127).byte()  # black and white: 0 and 255
        # By the nearest pixel, so that it stays a mask.
        resized = resize(mask, list(cfg.INPUT.SIZE_TEST), InterpolationMode.NEAREST_EXACT)
        return F.avg_pool2d(resized.float(), patch, stride).flatten() >= 0.5

    are_on_person = torch.stack(list(parallel(on_person, paths, "reading masks", "mask")))
    if not are_on_person.any():
        raise UserError(
            f"No mask in {paths[0].parent} has a patch that is at least half on the person, so there is nothing to "
            "find; check the masks, or use smaller patches."
        )
    return are_on_person


def caption(cfg: CfgNode, quality: Quality, split: str) -> str:
    left_out = guide = where = ""
    if quality.left_out:
        left_out = (
            f", {quality.left_out} of them without a patch on the person and not in AP or recall"
        )
    if not cfg.MODEL.SDTPS_GUIDE_MISSING:
        guide = ", global features of missing modalities do not guide"
    if len(quality.choices) > 1:
        where = "; after the first stage, base rate and AP are among the patches that are left"
    return (
        f"{cfg.DATASETS.NAMES} in {cfg.DATASETS.ROOT_DIR}, {quality.images} {split} triplets{left_out}, "
        f"{cfg.TEST.WEIGHT}{guide}, in percent{where}; a random order has AP {100 * quality.random_order:.1f}"
    )


def as_tables(quality: Quality) -> list[str]:
    """A table per stage and for SDTPS, under their names where there are stages, and the globals' mean cosines."""
    lines = []
    for name, cases in quality.choices.items():
        groups = {case_name(case): rows for case, rows in cases.items()}
        groups |= {f"nothing, {light}": rates[name] for light, rates in quality.lights.items()}
        lines += [*([f"{name}:"] if quality.stages else []), as_table(groups)]
    cosines = [f"{name} {value:.3f}" for name, value in quality.mean_global_cosine.items()]
    return [*lines, f"mean cosine of the globals of two different images: {', '.join(cosines)}"]


def as_table(groups: dict[str, Measures]) -> str:
    """One row per group and present modality, in percent."""
    measured = [name for rows in groups.values() for row in rows.values() for name in row]
    columns = {name: name.replace("_", " ") for name in SHARES}
    columns |= {name: f"AP {name}" for name in measured if name not in SHARES}

    def line(title: str, modality: str, cells: Iterable[str]) -> str:
        return f"{title:{CASE_WIDTH}}{modality:10}" + "".join(f"{cell:>11}" for cell in cells)

    lines = [line("missing", "patches of", columns.values())]
    for title, rows in groups.items():
        for index, (modality, row) in enumerate(rows.items()):
            cells = (f"{100 * row[name]:.1f}" if name in row else "–" for name in columns)
            lines.append(line("" if index else title, modality, cells))
    return "\n".join(lines)
