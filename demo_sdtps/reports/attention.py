"""Maps of attention over images, with the shares and gates of the fusion."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config.common import ATTENTION_METHODS as METHODS
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import batches, collate, test_loader
from demo_sdtps.evaluation.attention import (
    FusionWeights,
    Maps,
    fusion_weights,
    grad_cam,
    rollout,
    similarity_to,
)
from demo_sdtps.evaluation.extraction import extract_features
from demo_sdtps.evaluation.missing import encode_cases
from demo_sdtps.evaluation.protocol import exclude_key
from demo_sdtps.evaluation.tables import PATTERN_NAMES, options
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.slimming.tokens import ByModality
from demo_sdtps.reports.figures import (
    BLANK,
    HALO,
    heat_bar,
    heat_map,
    hide_ticks,
    images,
    label,
    np,
    plt,
    room,
    save,
)
from demo_sdtps.reports.palette import MODALITY, PLAIN, TEXT
from demo_sdtps.runtime.progress import progress

SCALES = {
    "rollout": "share of a patch in the attention, on a scale of each image",
    "gradcam": "weight of a patch for the similarity, on one scale in a triplet",
}
BAR_ROOM = 2.6  # inches across


def matches_of(cfg: CfgNode, query: Sample, gallery: Sequence[Sample]) -> list[Sample]:
    """The gallery samples of a query's identity that the protocol allows."""
    key = exclude_key(cfg)
    return [
        sample
        for sample in gallery
        if sample.identity == query.identity and getattr(sample, key) != getattr(query, key)
    ]


def attention_maps(
    cfg: CfgNode,
    model: DeMo,
    samples: Sequence[Sample],
    matches: Sequence[Sequence[Sample]],
    method: str,
) -> list[tuple[Maps, FusionWeights]]:
    """Maps and weights of each sample, as of a batch of one; `matches` are the samples that Grad-CAM's similarity is with."""
    device, missing = next(model.parameters()).device, missing_modalities(cfg.TEST.MISS)
    dataset = test_loader(cfg, samples).dataset  # with masks, where the score reads them
    loader = DataLoader(dataset, 1, collate_fn=collate)
    features = (
        [] if method == "rollout" else class_features(cfg, model, matches).to(device).split(1)
    )
    results = []
    for number, (pixels, _, cameras) in enumerate(
        progress(batches(loader), METHODS[method], len(loader), unit="triplet")
    ):
        inputs = (
            {modality: image.to(device) for modality, image in pixels.items()},
            cameras.to(device),
        )
        if method == "rollout":
            maps = rollout(model, *inputs, missing)
        else:
            target = similarity_to(
                model, features[number], cfg.TEST.RETURN_PATTERN, cfg.TEST.NECK_FEAT
            )
            maps = grad_cam(model, *inputs, target, missing)
        with torch.no_grad():
            (encoded,) = encode_cases(model, *inputs, [missing])
        results.append((maps, fusion_weights(model, encoded.context)))
    return results


def class_features(cfg: CfgNode, model: DeMo, groups: Sequence[Sequence[Sample]]) -> torch.Tensor:
    """Mean of the normalised features of each group of samples, (groups, D)."""
    distinct = {
        sample: number
        for number, sample in enumerate(
            dict.fromkeys(sample for group in groups for sample in group)
        )
    }
    (features,) = extract_features(cfg, model, test_loader(cfg, list(distinct)))
    normalised = F.normalize(features[cfg.TEST.RETURN_PATTERN], dim=1)
    return torch.stack(
        [normalised[[distinct[sample] for sample in group]].mean(dim=0) for group in groups]
    )


def draw_attention(
    cfg: CfgNode,
    samples: Sequence[Sample],
    results: Sequence[tuple[Maps, FusionWeights]],
    method: str,
    path: Path,
) -> Path:
    """A row per triplet: each modality's image and its map over it, then the weights as bars."""
    missing, names = missing_modalities(cfg.TEST.MISS), cfg.MODEL.MODALITIES
    bars = sum(weights is not None for weights in results[0][1])
    width, height = room(cfg, 2.4)
    widths = [width] * (2 * len(names)) + [BAR_ROOM] * bars
    size = sum(widths) + 0.8 * bars + 0.3, (0.1 + height) * len(samples) + 1.2
    figure, axes = plt.subplots(
        len(samples),
        len(widths),
        figsize=size,
        squeeze=False,
        width_ratios=widths,
        layout="constrained",
    )
    largest = max(
        (float(weights.gates.max()) for _, weights in results if weights.gates is not None),
        default=1.0,
    )
    for row, (sample, (maps, weights)) in enumerate(zip(samples, results, strict=True)):
        scales = scales_of(
            {
                modality: values
                for modality, values in maps.values.items()
                if modality not in missing
            },
            method,
        )
        for column, (modality, image) in enumerate(zip(names, images(cfg, sample), strict=True)):
            is_missing = modality in missing or modality not in sample.modalities
            panels = (
                [np.full_like(image, BLANK)] * 2
                if is_missing
                else [
                    image,
                    heat_map(
                        image,
                        maps.values[modality][0].where(maps.kept[modality][0] > 0, torch.nan),
                        (0, scales[modality]),
                    ),
                ]
            )
            for axis, panel in zip(axes[row, 2 * column :], panels, strict=False):
                axis.imshow(panel)
                hide_ticks(axis)
            if row == 0:
                axes[0, 2 * column].set_title(
                    f"{modality} (missing)" if modality in missing else modality, fontsize=10
                )
        axes[row, 0].set_ylabel(label(cfg, sample).replace(", ", "\n"), fontsize=7)
        if weights.hdm:
            shares = {
                subset: {name: float(share) for name, share in map_of_subset.items()}
                for subset, map_of_subset in weights.hdm.items()
            }
            draw_shares(axes[row, 2 * len(names)], shares, row == 0)
        if weights.hdm and weights.gates is not None:
            draw_gates(
                axes[row, -1], weights.gates[0].cpu(), weights.hdm.values(), largest, row == 0
            )
    what = METHODS[method] + (
        f" ({PATTERN_NAMES[cfg.TEST.RETURN_PATTERN].partition(' ')[2]} features)"
        if method != "rollout"
        else ""
    )
    dropped = "; not coloured: dropped by slimming" if cfg.MODEL.SLIM_BLOCKS else ""
    heat_bar(figure, axes, f"{SCALES[method]}{dropped}", "none")
    figure.suptitle(f"{what}{options(cfg)}")
    return save(figure, path)


def scales_of(values: ByModality, method: str) -> dict[str, float]:
    """The value that is drawn as the most, given values (1, rows, columns): each image's own in rollout, the triplet's in
    Grad-CAM, where the images have one target."""
    scales = {
        modality: max(float(values_of.max()), 1e-12) for modality, values_of in values.items()
    }
    return scales if method == "rollout" else dict.fromkeys(scales, max(scales.values()))


def draw_shares(axis: plt.Axes, shares: dict[str, dict[str, float]], first: bool) -> None:
    """Horizontal bars of HDM's subsets, parted by the share of the attention on each modality."""
    for place, by_modality in enumerate(shares.values()):
        start = 0.0
        for modality, share in by_modality.items():
            axis.barh(place, share, left=start, color=MODALITY[modality])
            if len(by_modality) == 1:  # in place of a legend
                axis.text(
                    0.5, place, modality, fontsize=7, ha="center", va="center", path_effects=HALO
                )
            start += share
    axis.set(
        yticks=range(len(shares)),
        yticklabels=map(" + ".join, shares.values()),
        xlim=(0, 1),
        xticks=[0, 0.5, 1],
    )
    axis.invert_yaxis()
    axis.tick_params(labelsize=6)
    if first:
        axis.set_title("HDM: share of each modality", fontsize=8)


def draw_gates(
    axis: plt.Axes,
    gates: torch.Tensor,
    subsets: Iterable[Iterable[str]],
    largest: float,
    first: bool,
) -> None:
    """Horizontal bars of ATMoE's gates (heads, subsets), the mean over the heads, a dot for each head, and a line at equal
    gates."""
    places = range(gates.shape[1])
    axis.barh(places, gates.mean(dim=0).numpy(), color=PLAIN)
    for gate in gates:
        axis.plot(gate.numpy(), places, ".", color=TEXT, markersize=3)
    axis.axvline(1 / len(places), color=TEXT, linewidth=0.5, linestyle=":")
    axis.set(yticks=places, yticklabels=map(" + ".join, subsets), xlim=(0, 1.05 * largest))
    axis.invert_yaxis()
    axis.tick_params(labelsize=6)
    if first:
        axis.set_title("ATMoE: gates (dots: heads)", fontsize=8)
