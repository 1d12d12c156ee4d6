"""How well SDTPS's choice of patches finds a foreground that is known, such as the synthetic pedestrians' (docs/method.md)."""
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.progress import progress
from demo_sdtps.datasets.loaders import batches
from demo_sdtps.engine.evaluation.extraction import CASES
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.demo import ByModality
from demo_sdtps.modeling.sdtps import STATE_NAMES, cosine_guidance

DETECTORS = ("score", "MLP", *MODALITIES)
"""What ranks the patches: the score, and each of its parts alone; a modality stands for the guidance of its global."""


@dataclass(frozen=True)
class Quality:
    """What was measured, all shares in [0, 1].

    `cases` has by case and modality that is present: "base_rate", the share of all patches in the foreground; "kept", that of
    the kept patches; and the average precision of each of DETECTORS, without those that are missing. `random_order` is the
    average precision to expect of patches in random order. `mean_global_cosine` is the mean cosine of the globals of two
    different images, by modality: near 1 a global says next to nothing of its image, and guides no better than a constant.
    `left_out` of the `images` have no patch in the foreground and do not count in average precisions.
    """

    cases: dict[str, dict[str, dict[str, float]]]
    random_order: float
    mean_global_cosine: dict[str, float]
    images: int
    left_out: int


@torch.no_grad()
def measure_selection(model: DeMo, loader: DataLoader, foreground: torch.Tensor) -> Quality:
    """Complete triplets and every case of missing modalities; the backbone sees every image once.

    foreground (images, N) bool: whether a patch, in the backbone's order, is in it; images in the loader's order, one for the
    three of a triplet. Raises `UserError` for an image that cannot be read, and for scores that are not finite.
    """
    device = next(model.parameters()).device
    numbers = defaultdict(list)  # one per image, which is all that stays of a batch
    sums = defaultdict(float)
    seen_batches = progress(batches(loader), "measuring the selection", len(loader), unit="batch")
    for (images, _, cameras), relevant in zip(seen_batches, foreground.split(loader.batch_size), strict=True):
        images = {modality: image.to(device, non_blocking=True) for modality, image in images.items()}
        cameras, relevant = cameras.to(device), relevant.to(device)
        for (case, missing), seen in zip(CASES.items(), model.encode_cases(images, cameras, list(CASES.values())), strict=True):
            masks, scores = selected_by(model, seen, missing)
            if not missing:
                for modality, vectors in seen[1].items():
                    sums[modality] += F.normalize(vectors.double(), dim=1).sum(dim=0)
            for modality, detectors in scores.items():
                kept = masks[modality].double()
                numbers[case, modality, "kept"].append((kept * relevant).sum(dim=1) / kept.sum(dim=1))
                for name, score in detectors.items():
                    numbers[case, modality, name].append(average_precision(score, relevant))
    cases = {case: {modality: {"base_rate": foreground.double().mean().item()} for modality in MODALITIES
                    if modality not in missing} for case, missing in CASES.items()}
    for (case, modality, name), parts in numbers.items():
        cases[case][modality][name] = torch.cat(parts).nanmean().item()  # NaN is the average precision of what is left out
    count = len(foreground)
    # Of all ordered pairs, without those of an image with itself.
    cosines = {modality: (total.square().sum().item() - count) / max(1, count * (count - 1))
               for modality, total in sums.items()}
    return Quality(cases, random_order(foreground), cosines, count, int((~foreground.any(dim=1)).sum()))


def selected_by(model: DeMo, seen: tuple[ByModality, ByModality],
                missing: frozenset[str]) -> tuple[ByModality, dict[str, ByModality]]:
    """What SDTPS keeps of patches and globals, and by what: decision masks (B, N) by modality, and for every modality that is
    present its DETECTORS (B, N) by name, with the guidance of the globals that are present.

    Raises `UserError` for scores that are not finite.
    """
    sparse = {modality: getattr(model.sdtps, f"{name}_sparse") for modality, name in zip(MODALITIES, STATE_NAMES, strict=True)}
    given = {}
    # Watched rather than worked out again: these are the tokens, guides and weights of the very choice that is measured.
    with ExitStack() as watching:
        for modality, module in sparse.items():
            watching.enter_context(module.register_forward_pre_hook(
                lambda _, inputs, modality=modality: given.update({modality: inputs})))
        masks = model.select_tokens(*seen, missing)[1]
    present = [modality for modality in MODALITIES if modality not in missing]
    scores = {}
    for modality in present:
        tokens, guides, weights = given[modality]
        others = [other for other in MODALITIES if other != modality]  # guides_of: the others and then its own
        guidance = dict(zip((*others, modality), cosine_guidance(tokens, guides), strict=True))
        scores[modality] = {"score": sparse[modality].score(tokens, guides, weights), "MLP": sparse[modality].predict(tokens),
                            **{guide: guidance[guide] for guide in present}}
        if not all(score.isfinite().all() for score in scores[modality].values()):
            raise UserError("The scores of the patches are not finite: the weights are damaged or their training diverged; use "
                            "other weights, or train with a lower SOLVER.BASE_LR.")
    return masks, scores


def average_precision(scores: torch.Tensor, relevant: torch.Tensor) -> torch.Tensor:
    """Average precision of rankings, the highest score first: scores (B, N), relevant (B, N) bool → (B,) float64.

    The mean, over the relevant, of the share of relevant among all that score as high or higher. Equal scores share the last
    of their ranks, so that a constant score gets the share of the relevant, whatever their order. NaN where none is relevant.
    """
    scores, order = scores.sort(dim=1, descending=True)
    relevant = relevant.gather(1, order)
    last = torch.searchsorted(-scores, -scores, right=True) - 1  # of those with an equal score
    precision = relevant.cumsum(dim=1).gather(1, last).double() / (last + 1)
    return (precision * relevant).sum(dim=1) / relevant.sum(dim=1)


def random_order(relevant: torch.Tensor) -> float:
    """The expected average precision of a random ranking: the mean over the rows of relevant (B, N) bool that have any.

    A relevant one of R at rank k of N has (k - 1)·(R - 1)/(N - 1) relevant before it on average, so it is the mean over k of
    (1 + (k - 1)·(R - 1)/(N - 1))/k: a little more than R/N.
    """
    counts = relevant.sum(dim=1)
    counts = counts[counts > 0].double().unsqueeze(1)
    before = torch.arange(relevant.shape[1])  # k - 1
    return ((1 + before * (counts - 1) / max(1, len(before) - 1)) / (before + 1)).mean().item()
