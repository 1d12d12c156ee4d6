"""The patches that slimming and SDTPS keep, over their images."""
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import batches, collate, test_loader
from demo_sdtps.datasets.synthetic import light
from demo_sdtps.evaluation.selection import check_context
from demo_sdtps.evaluation.tables import options
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.inference import inference
from demo_sdtps.modeling.tokens import ByModality
from demo_sdtps.reports.figures import heat_bar, heated, hide_ticks, images, label, np, plt, room, save, spread
from demo_sdtps.reports.palette import DROPPED, OPACITY
from demo_sdtps.runtime.device import choose_precision

SHARED = "all three"


class Choice(NamedTuple):
    """What a stage of slimming or SDTPS keeps of the patches, by modality: (samples, rows, columns) each."""

    kept: ByModality  # 1: kept
    score: ByModality  # NaN for a patch that was dropped before

    @property
    def is_shared(self) -> bool:
        """Whether the modalities have one score and one set."""
        return all(torch.equal(found.nan_to_num(), one.nan_to_num()) for by_modality in self
                   for found, one in pairwise(by_modality.values()))


def draw_tokens(cfg: CfgNode, model: DeMo, samples: list[Sample], path: Path, count: int = 8) -> Path:
    """A row per triplet: its images, and for every stage of slimming and for SDTPS the score of the patches over an image, and
    the image with the dropped patches covered; a set that the modalities share once, over the mean of the images."""
    chosen = shown_samples(samples, count)
    choices = patch_choices(cfg, model, chosen)
    rows = [panels(cfg, sample, choices, row) for row, sample in enumerate(chosen)]
    width, height = room(cfg, 2.1)
    inches = (0.15 + width) * len(rows[0]), (0.1 + height) * len(chosen) + 1
    figure, axes = plt.subplots(len(chosen), len(rows[0]), figsize=inches, squeeze=False, layout="constrained")
    for sample, row, own in zip(chosen, axes, rows, strict=True):
        for axis, panel in zip(row, own.values(), strict=True):
            axis.imshow(panel)
            hide_ticks(axis)
        row[0].set_ylabel("\n".join([*label(cfg, sample).split(", "), light(sample)]).strip(), fontsize=8)
    for axis, title in zip(axes[0], rows[0], strict=True):
        axis.set_title(title, fontsize=9)
    heat_bar(figure, axes, "score of a patch among those of its image; not coloured: dropped before")
    figure.suptitle(f"{description(cfg, model, {title: choice.kept for title, choice in choices.items()})} "
                    f"of {model.backbone.num_patches} patches per modality are kept{options(cfg)}")
    return save(figure, path)


def shown_samples(samples: list[Sample], count: int) -> list[Sample]:
    """`count` of the samples, spread; half of them by day where the data tell day from night (`light`)."""
    night = {place for place, sample in enumerate(samples) if light(sample) == "night"}
    day = [place for place in range(len(samples)) if place not in night]
    at_night = spread(len(night), count // 2 if day else count)
    chosen = [*(sorted(night)[place] for place in at_night), *(day[place] for place in spread(len(day), count - len(at_night)))]
    return [samples[place] for place in sorted(chosen)]


def panels(cfg: CfgNode, sample: Sample, choices: dict[str, Choice], row: int) -> dict[str, np.ndarray]:
    """The images (H, W, 3) of a row of the picture by their titles; the sample is `row` of the choices."""
    found = dict(zip(MODALITIES, images(cfg, sample), strict=True))
    seen = found | {SHARED: np.mean(list(found.values()), axis=0).astype(np.uint8)}
    shared = {title for title, choice in choices.items() if choice.is_shared}
    parts: dict[str, np.ndarray] = {}
    for modality, image in seen.items():
        parts |= {} if modality == SHARED else {modality: image}
        for title, choice in choices.items():
            if (title in shared) == (modality == SHARED):
                kept, score = (by_modality[MODALITIES[0] if title in shared else modality][row] for by_modality in choice)
                parts[f"{title}:\nscore, {modality}"] = heated(image, in_range(score))
                parts[f"{title}:\nkept, {modality}"] = covered(image, kept)
    return parts


def in_range(score: torch.Tensor) -> torch.Tensor:
    """A score, NaN where there is none, in [0, 1]."""
    known = score[~score.isnan()]
    return (score - known.min()) / (known.max() - known.min()).clamp_min(1e-12)


def covered(image: np.ndarray, mask: torch.Tensor) -> np.ndarray:
    """The image (H, W, 3) with the patches covered where mask (rows, columns) is 0."""
    kept = F.interpolate(mask[None, None], image.shape[:2])[0, 0].numpy()[..., None]
    return image + (OPACITY * (1 - kept) * (np.array(DROPPED) - image)).astype(int)


def description(cfg: CfgNode, model: DeMo, masks: dict[str, ByModality]) -> str:
    """What keeps patches, and how many of them at each of `masks`."""
    by = [f"slimming ({cfg.MODEL.SLIM_SCORE}, after {list(model.slimming.blocks)})"] if model.slimming else []
    by += [type(model.sdtps).__name__] if model.sdtps else []
    counts = [{int(kept) for mask in by_modality.values() for kept in mask.sum(dim=(1, 2))} for by_modality in masks.values()]
    numbers = (f"{min(kept)}" if len(kept) == 1 else f"{min(kept)} to {max(kept)}" for kept in counts)
    return f"{' and '.join(by)}: {', '.join(numbers)}"


def kept_patches(cfg: CfgNode, model: DeMo, samples: list[Sample]) -> dict[str, ByModality]:
    """`Choice.kept` of `patch_choices`."""
    return {title: choice.kept for title, choice in patch_choices(cfg, model, samples).items()}


def patch_choices(cfg: CfgNode, model: DeMo, samples: list[Sample]) -> dict[str, Choice]:
    """What every stage of slimming keeps, and SDTPS, by its title. Raises `UserError` as `check_context`."""
    dataset = test_loader(cfg, samples).dataset  # with masks, where the score reads them
    ((images, _, cameras),) = batches(DataLoader(dataset, len(samples), collate_fn=collate))
    device, missing = next(model.parameters()).device, missing_modalities(cfg.TEST.MISS)
    images = {modality: image.to(device) for modality, image in images.items()}
    with inference(model, choose_precision(cfg.TEST.AMP, device)):
        (context,) = model.encode_cases(images, cameras.to(device), [missing])
        check_context(context)
        patches = model.backbone.num_patches

        def on_grid(values: torch.Tensor, positions: torch.Tensor | None, fill: float) -> torch.Tensor:
            """values (B, n) of the patches at `positions` (B, n), None: all → (B, rows, columns), `fill` elsewhere."""
            grid = values.new_full((len(values), patches), fill)
            whole = values if positions is None else grid.scatter_(1, positions, values)
            return whole.view(-1, *context.grid).cpu()

        found = {f"stage {number}": Choice(
            {modality: on_grid(stage.mask(modality, patches), None, 0) for modality in MODALITIES},
            {modality: on_grid(stage.score[modality].float(), stage.scored[modality], torch.nan) for modality in MODALITIES})
            for number, stage in enumerate(context.stages, start=1)}
        if model.sdtps:
            places, chosen = context.positions.get, model.sdtps(context)
            found["SDTPS"] = Choice(
                {modality: on_grid((one.mask > 0).float(), places(modality), 0) for modality, one in chosen.items()},
                {modality: on_grid(one.score.float(), places(modality), torch.nan) for modality, one in chosen.items()})
    return found
