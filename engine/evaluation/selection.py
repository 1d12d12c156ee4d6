"""How well a selector's choice of patches finds a known foreground, such as the synthetic pedestrians' (docs/method.md)."""
from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.progress import progress
from demo_sdtps.datasets.loaders import batches
from demo_sdtps.engine.evaluation.extraction import CASES
from demo_sdtps.engine.runtime import check_finite
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.selectors import selector_name
from demo_sdtps.modeling.selectors.base import ByModality, Context, Selection

SHARES = ("base_rate", "kept")


@dataclass(frozen=True)
class Quality:
    """The result of `measure_selection`, all shares in [0, 1].

    `cases` has, by case and present modality: "base_rate", the share of all patches in the foreground; "kept", that of the kept
    patches; and the average precision of every detector: the score and its parts (`Selector.parts`), without those of missing
    modalities. `random_order` is the expected average precision of a random order. `mean_global_cosine` is the mean cosine of
    the global features of two images, by modality: near 1 a global feature hardly depends on its image. `left_out` of the
    `images` have no patch in the foreground and are not in average precisions.
    """

    cases: dict[str, dict[str, dict[str, float]]]
    random_order: float
    mean_global_cosine: dict[str, float]
    images: int
    left_out: int

    @property
    def detectors(self) -> list[str]:
        """The detectors of complete triplets, the score first."""
        return [name for name in self.cases["nothing"][MODALITIES[0]] if name not in SHARES]


@torch.no_grad()
def measure_selection(model: DeMo, loader: DataLoader, foreground: torch.Tensor) -> Quality:
    """Complete triplets and every case of missing modalities; the backbone sees every image once.

    foreground (images, N) bool: whether a patch is in it; images in the loader's order, one for the three of a triplet. Raises
    `UserError` for an image that cannot be read, and for scores that are not finite.
    """
    device = next(model.parameters()).device
    numbers: dict[tuple[str, str, str], list[torch.Tensor]] = defaultdict(list)  # one number per image
    sums: dict[str, torch.Tensor] = {}
    seen_batches = progress(batches(loader), "measuring the selection", len(loader), unit="batch")
    for (images, _, cameras), relevant in zip(seen_batches, foreground.split(loader.batch_size or 1), strict=True):
        images = {modality: image.to(device, non_blocking=True) for modality, image in images.items()}
        cameras, relevant = cameras.to(device), relevant.to(device)
        for case, context in zip(CASES, model.encode_cases(images, cameras, list(CASES.values())), strict=True):
            if not context.missing:
                for modality, vectors in context.global_feats.items():
                    sums[modality] = sums.get(modality, 0) + F.normalize(vectors.double(), dim=1).sum(dim=0)
            selections = model.select_tokens(context)
            for modality, scores in detectors(model, context, selections).items():
                kept = (selections[modality].mask > 0).double()
                numbers[case, modality, "kept"].append((kept * relevant).sum(dim=1) / kept.sum(dim=1))
                for name, score in scores.items():
                    numbers[case, modality, name].append(average_precision(score, relevant))
    cases = {case: {modality: {"base_rate": foreground.double().mean().item()} for modality in MODALITIES
                    if modality not in missing} for case, missing in CASES.items()}
    for (case, modality, name), parts in numbers.items():
        cases[case][modality][name] = torch.cat(parts).nanmean().item()  # NaN: an image without foreground
    count = len(foreground)
    # The mean over all ordered pairs of two different images.
    cosines = {modality: (total.square().sum().item() - count) / max(1, count * (count - 1))
               for modality, total in sums.items()}
    return Quality(cases, random_order(foreground), cosines, count, int((~foreground.any(dim=1)).sum()))


def check_selector(cfg: CfgNode) -> None:
    """Raise `UserError` for a configuration without a selector."""
    if not selector_name(cfg):
        raise UserError("MODEL.USE_SDTPS is False and MODEL.SELECTOR '', so no patches are selected; use a configuration with "
                        "a selector.")


def detectors(model: DeMo, context: Context, selections: dict[str, Selection]) -> dict[str, ByModality]:
    """The score (B, N) and its parts by name, of every present modality; without parts named after missing modalities.

    Raises `UserError` for scores that are not finite.
    """
    selector, found = model.selector, {}
    assert selector is not None
    for modality, selection in selections.items():
        if modality in context.missing:
            continue
        parts = selector.parts(context.tokens[modality], context.of(modality))
        found[modality] = {"score": selection.score} | {name: part for name, part in parts.items()
                                                        if name not in context.missing}
        allowed = context.mask.get(modality, ...)  # patches that must not be kept have the score -inf
        check_finite("The scores of the patches", (part[allowed] for part in found[modality].values()))
    return found


def average_precision(scores: torch.Tensor, relevant: torch.Tensor) -> torch.Tensor:
    """Average precision, the highest score first: scores (B, N), relevant (B, N) bool → (B,) float64; NaN: none is relevant.

    The mean, over the relevant, of the precision among all with an equal or higher score: a constant score gives the share of
    the relevant, whatever the order.
    """
    scores, order = scores.sort(dim=1, descending=True)
    relevant = relevant.gather(1, order)
    last = torch.searchsorted(-scores, -scores, right=True) - 1  # index of the last equal score
    precision = relevant.cumsum(dim=1).gather(1, last).double() / (last + 1)
    return (precision * relevant).sum(dim=1) / relevant.sum(dim=1)


def random_order(relevant: torch.Tensor) -> float:
    """Expected average precision of a random order: the mean over the rows of relevant (B, N) bool with R > 0 relevant.

    At rank k of N a relevant one has (k - 1)·(R - 1)/(N - 1) relevant before it on average, which gives the mean over k of
    (1 + (k - 1)·(R - 1)/(N - 1))/k.
    """
    counts = relevant.sum(dim=1)
    counts = counts[counts > 0].double().unsqueeze(1)
    before = torch.arange(relevant.shape[1])  # k - 1
    return ((1 + before * (counts - 1) / max(1, len(before) - 1)) / (before + 1)).mean().item()
