"""Pictures: training curves of a run, rank lists, features as points of a plane, and kept patches; and what they share:
colours, each with one meaning, style, images as arrays, and saving."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from torchvision.transforms.v2.functional import resize
from yacs.config import CfgNode

from demo_sdtps.config import RETURN_PATTERNS, UserError
from demo_sdtps.config.common import EMBEDDING_METHODS
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.datasets.images import decode_triplet
from demo_sdtps.datasets.loaders import batches, image_scales, test_loader
from demo_sdtps.evaluation import metrics, tables
from demo_sdtps.evaluation.protocol import (
    TestData,
    encode_cases,
    exclude_key,
    normalise,
    ranked_distances,
)
from demo_sdtps.modeling.demo import DeMo, missing_modalities
from demo_sdtps.modeling.modalities import ByModality
from demo_sdtps.modeling.precision import inference
from demo_sdtps.runtime.device import choose_precision
from demo_sdtps.runtime.files import atomic_write
from demo_sdtps.runtime.progress import progress

TEMPLATES = Path(__file__).resolve().parent / "templates"
COLOURS = json.loads((TEMPLATES / "colours.json").read_text())
"""Of pictures and pages, each with one meaning; those of a group differ for colour-blind readers too: of return patterns, of
hits and misses, of what has no kind, of the cover of a dropped patch (red, green, blue, opacity), which is visible on a black
night image, and in "series" of anything else: identities, variants, runs."""
SERIES = COLOURS["series"]

matplotlib.use("Agg")  # no screen is needed
plt.style.use(TEMPLATES / "figures.mplstyle")
plt.rcParams["axes.prop_cycle"] = plt.cycler(color=SERIES)
BLANK = 160  # grey value in place of a missing image, seen on light and on dark pages
MARKERS = "osD^vP*X<>ph"
BEST = 10  # hits of a query
MOST_IN_LEGEND = 60  # colours of points
PERPLEXITY = 30  # of t-SNE, lowered for fewer points
REDUCED = 50  # principal components that t-SNE sees: the others are noise to it, and cost time


def kind(place: int) -> dict[str, Any]:
    """Colour and marker of one of many: a pair of its own for each of 84."""
    return {"color": SERIES[place % len(SERIES)], "marker": MARKERS[place % len(MARKERS)]}


def spread(total: int, count: int) -> list[int]:
    """`count` indices spread evenly over `total`, away from both ends; all indices where `count` is not smaller."""
    if count >= total:
        return list(range(total))
    return [index * total // (count + 1) for index in range(1, count + 1)]


def images(
    cfg: CfgNode, sample: Sample, modalities: Sequence[str] | None = None
) -> list[np.ndarray]:
    """The images of `modalities`, by default MODEL.MODALITIES, at INPUT.SIZE_TEST, each uint8 (H, W, 3), or grey."""
    placeholder = torch.full((3, 1, 1), BLANK, dtype=torch.uint8)
    triplet = decode_triplet(sample.paths, modalities or cfg.MODEL.MODALITIES, image_scales(cfg))
    shown = (placeholder if image is None else image for image in triplet)
    sized = (resize(image, list(cfg.INPUT.SIZE_TEST), antialias=True) for image in shown)
    return [image.permute(1, 2, 0).numpy() for image in sized]


def label(cfg: CfgNode, sample: Sample) -> str:
    """Identity, and camera, from 1, or scene, whichever the protocol excludes by; the file of a sample without labels."""
    if sample.identity == UNKNOWN:
        return Path(sample.files[0]).name
    by_scene = exclude_key(cfg) == "scene"
    where = f"scene {sample.scene}" if by_scene else f"camera {sample.camera + 1}"
    return f"id {sample.identity}, {where}"


def image_grid(
    cfg: CfgNode, rows: Sequence[Sequence[np.ndarray]], side: float
) -> tuple[plt.Figure, np.ndarray]:
    """A figure of rows of images (H, W, 3), and its axes (rows, columns). INPUT.SIZE_TEST's longer side is `side` inches."""
    columns, inches = max(map(len, rows)), side / max(cfg.INPUT.SIZE_TEST)
    height, width = (0.2 + inches * length for length in rows[0][0].shape[:2])
    size = columns * width, len(rows) * height + 1
    figure, axes = plt.subplots(len(rows), columns, figsize=size, squeeze=False)
    for axis in axes.flat:  # of which a short row leaves some empty
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    for row, row_images in zip(axes, rows, strict=True):
        for axis, image in zip(row, row_images, strict=False):
            axis.imshow(image)
    return figure, axes


def save(figure: plt.Figure, path: Path) -> Path:
    """Write the figure by `atomic_write`, in the format of the path's suffix, and close it."""
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], bbox_inches="tight")
    plt.close(figure)
    return path


def draw_curves(records: list[dict[str, Any]], path: Path) -> Path:
    """Loss and accuracy on the left, mAP and Rank-1 by return pattern on the right, of the records of metrics.json."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    trained = [record for record in records if record.get("loss") is not None]
    epochs = [record["epoch"] for record in trained]
    left.plot(epochs, [record["loss"] for record in trained], color="black", marker=".")
    left.set(xlabel="epoch", ylabel="training loss (solid)", title="training")
    accuracy = left.twinx()
    accuracies = [100 * record["accuracy"] for record in trained]
    accuracy.plot(epochs, accuracies, "--", color=COLOURS["plain"], marker=".")
    accuracy.set_ylim(0, 100)
    accuracy.set_ylabel("training accuracy (%, dashed)", color=COLOURS["plain"])
    accuracy.grid(False)

    tested = tables.evaluated_records(records)
    epochs = [record["epoch"] for record in tested]
    for pattern, colour in zip(RETURN_PATTERNS, COLOURS["patterns"], strict=True):
        for name, style in (("mAP", "-"), ("Rank-1", ":")):
            values = [100 * record["patterns"][str(pattern)][name] for record in tested]
            text = f"{name}, {tables.PATTERN_NAMES[pattern]}"
            right.plot(epochs, values, style, color=colour, marker=".", label=text)
    right.set(xlabel="epoch", ylabel="%", ylim=(0, 100), title="test split, by return pattern")
    right.legend(fontsize=8)
    return save(figure, path)


def draw_ranks(
    cfg: CfgNode, features: torch.Tensor, data: TestData, path: Path, queries: Sequence[int]
) -> Path:
    """A row for each of the `queries`, by number: the query, and the nearest of the protocol; features (samples, D)."""
    shown, samples = np.array(queries), data.samples
    ranking = ranked_distances(cfg, features, data), *data.labels
    nearest = metrics.nearest_samples(*ranking, shown, BEST)
    first_matches = metrics.score_queries(*ranking).first_match[shown]
    cells = []  # of each row: (sample, title, colour of the frame)
    for query, hits, first in zip(data.query[shown].tolist(), nearest, first_matches, strict=True):
        late = f"\nfirst hit at rank {first}" if first > len(hits) else ""
        cells.append([(samples[query], f"query{late}", "black")])
        for place, (index, distance, is_match) in enumerate(hits, start=1):
            mark, colour = ("✓", "match") if is_match else ("✗", "wrong")
            text = f"{place} {mark} d = {distance:.3g}"
            cells[-1].append((samples[data.gallery[index]], text, COLOURS[colour]))
    stacks = [[np.concatenate(images(cfg, sample)) for sample, *_ in row] for row in cells]
    figure, axes = image_grid(cfg, stacks, 1.8)
    for axes_of_row, row in zip(axes, cells, strict=True):
        for axis, (sample, text, colour) in zip(axes_of_row, row, strict=False):
            axis.set_title(f"{text}\n{label(cfg, sample)}", fontsize=7)
            axis.spines[:].set(visible=True, color=colour, linewidth=3)
    names = cfg.MODEL.MODALITIES
    order = f"; {', '.join(names)} from top to bottom" if len(names) > 1 else ""
    kind = "k-reciprocal" if cfg.TEST.RE_RANKING == "yes" else "squared Euclidean"
    figure.suptitle(
        f"queries and their best ten, ✓ match, ✗ another identity{order}\n"
        f"return pattern {tables.PATTERN_NAMES[cfg.TEST.RETURN_PATTERN]}; d: {kind} distance{tables.options(cfg)}"
    )
    return save(figure, path)


def draw_embedding(
    cfg: CfgNode, features: torch.Tensor, samples: Sequence[Sample], method: str, path: Path
) -> Path:
    """Panels of the features (n, D) as points of a plane, by identity and by camera; or, without labels, by modalities."""
    points = embed(normalise(cfg, features).numpy(), method, cfg.SOLVER.SEED)
    labels: dict[str, list[Any]] = {
        "identity": [sample.identity for sample in samples],
        "camera": [sample.camera + 1 for sample in samples],  # as in file names
    }
    if samples[0].identity == UNKNOWN:
        labels = {"modalities": ["+".join(sample.modalities) for sample in samples]}
    figure, axes = plt.subplots(1, len(labels), figsize=(7.5 * len(labels), 6), squeeze=False)
    figure.suptitle(
        f"{EMBEDDING_METHODS[method]} of {len(samples)} samples of {cfg.DATASETS.NAMES}, return pattern "
        f"{tables.PATTERN_NAMES[cfg.TEST.RETURN_PATTERN]}{tables.options(cfg)}"
    )
    for axis, (title, values) in zip(axes[0], labels.items(), strict=True):
        distinct = np.unique(values)
        for place, value in enumerate(distinct):
            style = {**kind(place), "s": 16, "linewidths": 0, "alpha": 0.8}
            axis.scatter(*points[np.array(values) == value].T, label=str(value), **style)
        axis.set(xticks=[], yticks=[], title=f"by {title} ({len(distinct)})")
        axis.spines[:].set_visible(True)
        if len(distinct) <= MOST_IN_LEGEND:
            columns = 1 + len(distinct) // 20
            axis.legend(title=title, loc="center left", bbox_to_anchor=(1, 0.5), ncols=columns)
    return save(figure, path)


def embed(features: np.ndarray, method: str, seed: int) -> np.ndarray:
    """features (n, D) → (n, 2) float32 by one of `EMBEDDING_METHODS`; zeros where all features are equal.

    The same seed gives the same result on the same machine.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    values = features.astype(np.float64)
    if not np.ptp(values, axis=0).any():
        return np.zeros((len(values), 2), np.float32)
    components = PCA(min(REDUCED, *values.shape), svd_solver="full").fit_transform(values)
    if method == "tsne":
        perplexity = min(PERPLEXITY, (len(values) - 1) / 3)  # less than the number of samples
        reducer = TSNE(2, random_state=seed, perplexity=perplexity)
        components = reducer.fit_transform(components)
    return components[:, :2].astype(np.float32)


def check_selection(cfg: CfgNode) -> None:
    """Raise `UserError` for a configuration with neither SDTPS nor token pruning."""
    if not (cfg.MODEL.USE_SDTPS or cfg.MODEL.SLIM_BLOCKS):
        raise UserError(
            "MODEL.USE_SDTPS is False and MODEL.SLIM_BLOCKS [], so no patches are selected; use a configuration "
            "with SDTPS or with token pruning."
        )


def draw_tokens(cfg: CfgNode, model: DeMo, samples: Sequence[Sample], path: Path) -> Path:
    """A row per triplet: its images, each followed by those with the patches covered that stages of pruning and SDTPS drop."""
    grids, rows = kept_patches(cfg, model, samples), []
    for row, sample in enumerate(samples):
        layers = {}
        for name, image in zip(cfg.MODEL.MODALITIES, images(cfg, sample), strict=True):
            layers[name] = image
            for title, by_modality in grids.items():
                if name in by_modality:
                    layers[f"{title}, {name}"] = cover_patches(image, by_modality[name][row])
        rows.append(layers)
    figure, axes = image_grid(cfg, [list(layers.values()) for layers in rows], 2.1)
    for axis, title in zip(axes[0], rows[0], strict=True):
        axis.set_title(title, fontsize=9)
    for axis, sample in zip(axes[:, 0], samples, strict=True):
        axis.set_ylabel(label(cfg, sample).replace(", ", "\n"), fontsize=8)
    figure.suptitle(description(model, grids) + tables.options(cfg))
    return save(figure, path)


def cover_patches(image: np.ndarray, mask: torch.Tensor) -> np.ndarray:
    """The image (H, W, 3) with the patches covered where mask (rows, columns) is 0."""
    kept = F.interpolate(mask[None, None], image.shape[:2])[0, 0].numpy()[..., None]
    *colour, opacity = COLOURS["dropped"]
    return image + (opacity * (1 - kept) * (np.array(colour) - image)).astype(int)


def description(model: DeMo, grids: dict[str, ByModality]) -> str:
    """How many patches are kept at each of the `kept_patches`, as a sentence without its full stop."""
    stages = []
    for title, by_modality in grids.items():
        kept = torch.cat(list(by_modality.values())).sum(dim=(1, 2)).int()
        ends = dict.fromkeys([int(kept.min()), int(kept.max())])
        stages.append(f"{title} keeps {' to '.join(map(str, ends))}")
    return f"Of the {model.backbone.num_patches} patches of each image, {', '.join(stages)}"


def kept_patches(cfg: CfgNode, model: DeMo, samples: Sequence[Sample]) -> dict[str, ByModality]:
    """What every stage of token pruning ("stage 1", …) and SDTPS keep of the samples, by present modality: (samples, rows,
    columns) float32 on the CPU, 1 for a kept patch and 0 for another."""
    loader, missing = test_loader(cfg, samples), missing_modalities(cfg.TEST.MISS)
    device = next(model.parameters()).device
    parts: dict[str, dict[str, list[torch.Tensor]]] = {}
    for batch in progress(batches(loader), "kept patches", len(loader), unit="batch"):
        with inference(model, choose_precision(cfg.TEST.AMP, device)):
            (encoded,) = encode_cases(model, batch.to(device).images, batch.cameras, [missing])
            selections = model.select_patches(encoded) if model.sdtps else {}
        for name in (modality for modality in model.modalities if modality not in missing):
            stages = [stage.kept[name] for stage in encoded.stages]
            none = torch.zeros(len(batch.labels), model.backbone.num_patches, device=device)
            masks = {f"stage {n}": none.scatter(1, kept, 1.0) for n, kept in enumerate(stages, 1)}
            if selections:
                mask = selections[name].mask.float()
                masks["SDTPS"] = none.scatter(1, stages[-1], mask) if stages else mask
            for title, mask in masks.items():
                grid = mask.view(-1, *model.backbone.grid_size).cpu()
                parts.setdefault(title, {}).setdefault(name, []).append(grid)
    return {
        title: {name: torch.cat(grids) for name, grids in by_modality.items()}
        for title, by_modality in parts.items()
    }
