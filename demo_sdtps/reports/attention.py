"""Maps of attention over images, with the shares and gates of the fusion."""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.colors import to_rgb
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config.common import ATTENTION_METHODS as METHODS
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import batches, collate, test_loader
from demo_sdtps.evaluation import attention
from demo_sdtps.evaluation.extraction import encode_cases, extract_features
from demo_sdtps.evaluation.protocol import exclude_key
from demo_sdtps.evaluation.tables import PATTERN_NAMES, options
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.reports import figures
from demo_sdtps.reports.figures import MODALITY, NEUTRAL, np
from demo_sdtps.runtime.progress import progress

SCALES = {
    "rollout": "share of a patch in the attention, on a scale of each image",
    "gradcam": "weight of a patch for the similarity, on one scale in a triplet",
}
CHART_TITLES = ("HDM: share of each modality", "ATMoE: gates (dots: heads)")


def gallery_matches(cfg: CfgNode, query: Sample, gallery: Sequence[Sample]) -> list[Sample]:
    """The gallery samples of a query's identity that the protocol allows."""
    key = exclude_key(cfg)
    same = (sample for sample in gallery if sample.identity == query.identity)
    return [sample for sample in same if getattr(sample, key) != getattr(query, key)]


def attention_maps(
    cfg: CfgNode,
    model: DeMo,
    samples: Sequence[Sample],
    matches: Sequence[Sequence[Sample]],
    method: str,
) -> list[tuple[attention.Maps, attention.FusionWeights]]:
    """Maps and weights of each sample, as of a batch of one; `matches` are the samples that Grad-CAM's similarity is with."""
    device, missing = next(model.parameters()).device, missing_modalities(cfg.TEST.MISS)
    dataset = test_loader(cfg, samples).dataset
    loader = DataLoader(dataset, 1, collate_fn=collate)
    features = [] if method == "rollout" else mean_features(cfg, model, matches).split(1)
    triplets = progress(batches(loader), METHODS[method], len(loader), unit="triplet")
    results = []
    for number, batch in enumerate(triplets):
        batch = batch.to(device)
        pixels, cameras = batch.images, batch.cameras
        if method == "rollout":
            maps = attention.rollout(model, pixels, cameras, missing)
        else:
            feature = features[number].to(device)
            target = attention.similarity_to(
                model, feature, cfg.TEST.RETURN_PATTERN, cfg.TEST.NECK_FEAT
            )
            maps = attention.grad_cam(model, pixels, cameras, target, missing)
        with torch.no_grad():
            (encoded,) = encode_cases(model, pixels, cameras, [missing])
        results.append((maps, attention.fusion_weights(model, encoded.context)))
    return results


def mean_features(cfg: CfgNode, model: DeMo, groups: Sequence[Sequence[Sample]]) -> torch.Tensor:
    """Mean of the normalised features of each group of samples, (groups, D)."""
    distinct = list(dict.fromkeys(sample for group in groups for sample in group))
    (features,) = extract_features(cfg, model, test_loader(cfg, distinct))
    normalised = F.normalize(features[cfg.TEST.RETURN_PATTERN], dim=1)
    by_sample = dict(zip(distinct, normalised, strict=True))
    means = [torch.stack([by_sample[one] for one in group]).mean(dim=0) for group in groups]
    return torch.stack(means)


def draw_attention(
    cfg: CfgNode,
    samples: Sequence[Sample],
    results: Sequence[tuple[attention.Maps, attention.FusionWeights]],
    method: str,
    path: Path,
) -> Path:
    """A row per triplet: each modality's image and its map over it, then the weights as bars."""
    missing, names = missing_modalities(cfg.TEST.MISS), cfg.MODEL.MODALITIES
    # of a single modality there is nothing to weigh
    charts = sum(weights is not None for weights in results[0][1]) if len(names) > 1 else 0
    pairs = zip(samples, results, strict=True)
    rows = [image_pairs(cfg, sample, maps, method) for sample, (maps, _) in pairs]
    titles = []
    for modality in names:
        titles += [f"{modality} (missing)" if modality in missing else modality, ""]
    labels = [figures.label(cfg, sample) for sample in samples]
    heads = [*titles, *CHART_TITLES[:charts]]
    figure, axes = figures.image_grid(cfg, rows, 2.4, heads, labels, charts)
    gates = [float(weights.gates.max()) for _, weights in results if weights.gates is not None]
    for row, (_, weights) in zip(axes, results, strict=True):
        if charts:
            draw_weights(row[len(titles) :], weights, max(gates, default=1.0))
    what = METHODS[method]
    if method != "rollout":
        what += f" ({PATTERN_NAMES[cfg.TEST.RETURN_PATTERN].partition(' ')[2]} features)"
    dropped = "; not coloured: dropped by slimming" if cfg.MODEL.SLIM_BLOCKS else ""
    figures.heat_bar(figure, axes, f"{SCALES[method]}{dropped}", "none")
    figure.suptitle(f"{what}{options(cfg)}")
    return figures.save(figure, path)


def image_pairs(
    cfg: CfgNode, sample: Sample, maps: attention.Maps, method: str
) -> list[np.ndarray]:
    """Each image (H, W, 3) and its map over it, grey for a missing one. The most coloured value is each image's own in rollout,
    the triplet's in Grad-CAM, where the images have one target."""
    present = {*sample.modalities} - missing_modalities(cfg.TEST.MISS)
    names = cfg.MODEL.MODALITIES
    largest = {name: float(maps.values[name].max()) for name in names if name in present}
    if method != "rollout":
        largest = dict.fromkeys(largest, max(largest.values()))
    pairs = []
    for modality, image in zip(names, figures.images(cfg, sample), strict=True):
        if modality not in present:
            pairs += [np.full_like(image, figures.BLANK)] * 2
            continue
        values = maps.values[modality][0].where(maps.kept[modality][0] > 0, torch.nan)
        limits = (0, max(largest[modality], 1e-12))
        pairs += [image, figures.heat_map(image, values, limits)]
    return pairs


def draw_weights(axes: np.ndarray, weights: attention.FusionWeights, largest: float) -> None:
    """Horizontal bars of HDM's subsets, the first at the top: parted by the share of the attention on each modality; and on a
    second axis ATMoE's gates, the mean over the heads, a dot for each head, and a line at equal gates."""
    assert weights.hdm
    for place, shares in enumerate(weights.hdm.values()):
        start = 0.0
        for modality, share in shares.items():
            axes[0].barh(place, float(share), left=start, color=MODALITY[modality])
            start += float(share)
            if len(shares) == 1:  # in place of a legend; a halo would join T and I
                colour = "white" if np.mean(to_rgb(MODALITY[modality])) < 0.5 else "black"
                axes[0].text(0.5, place, modality, fontsize=8, color=colour, **figures.CENTRED)
    axes[0].set(xlim=(0, 1), xticks=[0, 0.5, 1])
    places = range(len(weights.hdm))
    if weights.gates is not None:
        gates = weights.gates[0].cpu()  # (heads, subsets)
        axes[1].barh(places, gates.mean(dim=0).numpy(), color=NEUTRAL)
        for gate in gates:
            axes[1].plot(gate.numpy(), places, ".", color=figures.ink(), markersize=3)
        axes[1].axvline(1 / len(places), color=figures.ink(), linewidth=0.5, linestyle=":")
        axes[1].set(xlim=(0, 1.05 * largest))
    for axis in axes:
        axis.set(yticks=places, yticklabels=map(" + ".join, weights.hdm.values()))
        axis.invert_yaxis()
        axis.tick_params(labelsize=6)
