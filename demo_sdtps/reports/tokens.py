"""The patches that slimming and SDTPS keep, over their images."""

from collections.abc import Sequence
from math import prod
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import batches, collate, test_loader
from demo_sdtps.datasets.synthetic import illumination
from demo_sdtps.evaluation.extraction import encode_cases
from demo_sdtps.evaluation.tables import options
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.inference import inference
from demo_sdtps.modeling.modalities import ByModality
from demo_sdtps.reports import figures
from demo_sdtps.reports.figures import DROPPED, OPACITY, np
from demo_sdtps.runtime.device import choose_precision
from demo_sdtps.runtime.errors import UserError

SHARED = "shared"


def check_selection(cfg: CfgNode) -> None:
    """Raise `UserError` for a configuration with neither SDTPS nor token pruning."""
    if not (cfg.MODEL.USE_SDTPS or cfg.MODEL.SLIM_BLOCKS):
        raise UserError(
            "MODEL.USE_SDTPS is False and MODEL.SLIM_BLOCKS [], so no patches are selected; use a configuration "
            "with SDTPS or with slimming."
        )


def draw_tokens(
    models: Sequence[tuple[CfgNode, DeMo]], samples: list[Sample], path: Path, count: int = 8
) -> Path:
    """A row per triplet: its images, and for every stage of slimming and for SDTPS the score of the patches over an image, and
    the image with the dropped patches covered; a set that the modalities share once, over their mean. Of models the last."""
    chosen = token_samples(samples, count)
    layers = [patch_grids(*each, chosen) for each in models]
    cfg, model = models[0]
    if len(models) == 1:
        grids, what = layers[0], description(cfg, model, layers[0])
    else:
        grids, what = {}, "What the last stage of each of the models keeps"
        for number, ((model_cfg, each), stages) in enumerate(zip(models, layers, strict=True), 1):
            name = model_cfg.MODEL.SLIM_SCORE.rpartition(":")[2] if each.slimming else "SDTPS"
            grids[f"{number} {name}"] = list(stages.values())[-1]
    rows = [panels(cfg, sample, grids, row) for row, sample in enumerate(chosen)]
    labels = [f"{figures.label(cfg, sample)}, {illumination(sample)}" for sample in chosen]
    images = [list(row.values()) for row in rows]
    figure, axes = figures.image_grid(cfg, images, 2.1, list(rows[0]), labels)
    meaning = "score of a patch among those of its image; not coloured: dropped before"
    figures.heat_bar(figure, axes, meaning)
    figure.suptitle(what + options(cfg))
    return figures.save(figure, path)


def token_samples(samples: list[Sample], count: int) -> list[Sample]:
    """`count` of the samples, spread; half of them by day where the data tell day from night (`illumination`)."""
    night = [place for place, sample in enumerate(samples) if illumination(sample) == "night"]
    day = sorted({*range(len(samples))} - {*night})
    dark = figures.spread(len(night), count // 2 if day else count)
    bright = figures.spread(len(day), count - len(dark))
    places = [night[place] for place in dark] + [day[place] for place in bright]
    return [samples[place] for place in sorted(places)]


def panels(
    cfg: CfgNode, sample: Sample, grids: dict[str, ByModality], row: int
) -> dict[str, np.ndarray]:
    """The images (H, W, 3) of a row of the picture by their titles; the sample is `row` of the grids."""
    images = dict(zip(cfg.MODEL.MODALITIES, figures.images(cfg, sample), strict=True))
    present = [image for modality, image in images.items() if modality in sample.modalities]
    images[SHARED] = np.mean(present, axis=0).astype(np.uint8)
    layers: dict[str, np.ndarray] = {}
    for name, image in images.items():
        if name != SHARED:
            layers[name] = image
        for title, by_modality in grids.items():
            if is_shared(by_modality):
                by_modality = {SHARED: next(iter(by_modality.values()))}
            if name in by_modality:
                kept, score = by_modality[name][row]
                layers[f"{title}:\nscore, {name}"] = figures.heat_map(image, score)
                layers[f"{title}:\nkept, {name}"] = cover_patches(image, kept)
    return layers


def is_shared(by_modality: ByModality) -> bool:
    """Whether several modalities have one score and one set."""
    first, *others = (grid.nan_to_num() for grid in by_modality.values())
    return bool(others) and all(torch.equal(first, other) for other in others)


def cover_patches(image: np.ndarray, mask: torch.Tensor) -> np.ndarray:
    """The image (H, W, 3) with the patches covered where mask (rows, columns) is 0."""
    kept = F.interpolate(mask[None, None], image.shape[:2])[0, 0].numpy()[..., None]
    return image + (OPACITY * (1 - kept) * (np.array(DROPPED) - image)).astype(int)


def description(cfg: CfgNode, model: DeMo, grids: dict[str, ByModality]) -> str:
    """What keeps patches, and how many of them at each of the `patch_grids`, as a sentence without its full stop."""
    counts = []
    for by_modality in grids.values():
        kept = torch.stack(list(by_modality.values()))[:, :, 0].sum(dim=(2, 3)).int()
        ends = dict.fromkeys([int(kept.min()), int(kept.max())])
        counts.append(" to ".join(map(str, ends)))
    parts = []
    if model.slimming:
        blocks = model.slimming.blocks
        places = [f"after block {block}" if block else "before the first block" for block in blocks]
        stages = " and ".join(map(" ".join, zip(counts, places, strict=False)))
        parts.append(f"slimming ({cfg.MODEL.SLIM_SCORE}) keeps {stages}")
    if model.sdtps:
        parts.append(f"{type(model.sdtps).__name__} {counts[-1]}")
    return f"Of the {model.backbone.num_patches} patches of each image, {', and '.join(parts)}"


def patch_grids(cfg: CfgNode, model: DeMo, samples: Sequence[Sample]) -> dict[str, ByModality]:
    """What every stage of token pruning ("stage 1", …) and SDTPS make of the samples, by present modality, (samples, 2, rows,
    columns): 1 for a kept patch and 0 for another, and its score, NaN for one that was dropped before."""
    dataset = test_loader(cfg, samples).dataset
    (batch,) = batches(DataLoader(dataset, len(samples), collate_fn=collate))
    device, missing = next(model.parameters()).device, missing_modalities(cfg.TEST.MISS)
    batch = batch.to(device)
    with inference(model, choose_precision(cfg.TEST.AMP, device)):
        (encoded,) = encode_cases(model, batch.images, batch.cameras, [missing])
        context = encoded.context
        selections = model.select_patches(context) if model.sdtps else {}
    patches = prod(context.grid)
    present = [modality for modality in model.modalities if modality not in missing]

    def on_grid(positions: torch.Tensor, kept: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
        """`kept` and `score` (samples, n) of the patches at `positions` (samples, n) of the grid."""
        values = torch.stack([kept.float(), score.float()], dim=1)
        whole = values.new_tensor([[0], [torch.nan]]).repeat(len(values), 1, patches)
        whole.scatter_(2, positions[:, None].expand_as(values), values)
        return whole.view(-1, 2, *context.grid).cpu()

    grids = {}
    for number, stage in enumerate(encoded.stages, start=1):
        grids[f"stage {number}"] = {
            name: on_grid(
                stage.scored[name],
                stage.mask(name, patches).gather(1, stage.scored[name]),
                stage.score[name],
            )
            for name in present
        }
    if selections:
        grids["SDTPS"] = {
            name: on_grid(context.places(name), selections[name].mask, selections[name].score)
            for name in present
        }
    return grids
