"""The patches that slimming and SDTPS keep, over their images."""
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import batches, collate, test_loader
from demo_sdtps.evaluation.selection import check_context
from demo_sdtps.evaluation.tables import options
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.inference import inference
from demo_sdtps.modeling.tokens import ByModality
from demo_sdtps.reports.figures import hide_ticks, images, label, np, plt, room, save, spread
from demo_sdtps.runtime.device import choose_precision

DROPPED, OPACITY = (96, 88, 148), 0.75  # cover of a dropped patch: a colour that is visible on a black night image too


def draw_tokens(cfg: CfgNode, model: DeMo, samples: list[Sample], path: Path, count: int = 8) -> Path:
    """A row per triplet: each modality's image and, beside it, the same with the dropped patches covered, after every stage of
    slimming and after SDTPS."""
    chosen = [samples[index] for index in spread(len(samples), count)]
    masks = kept_patches(cfg, model, chosen)
    each, (width, height) = 1 + len(masks), room(cfg, 2.1)
    inches = (0.2 + width) * each * len(cfg.MODEL.MODALITIES), (0.2 + height) * len(chosen)
    figure, axes = plt.subplots(len(chosen), each * len(cfg.MODEL.MODALITIES), figsize=inches, squeeze=False)
    for row, sample in enumerate(chosen):
        for index, (modality, image) in enumerate(zip(cfg.MODEL.MODALITIES, images(cfg, sample), strict=True)):
            panels = {modality: image} | {
                title: covered(image, mask[modality][row]) if modality in sample.modalities else image
                for title, mask in masks.items()}
            for axis, (title, panel) in zip(axes[row, each * index:], panels.items(), strict=False):
                axis.imshow(panel)
                hide_ticks(axis)
                if row == 0:
                    axis.set_title(title, fontsize=10)
        axes[row, 0].set_ylabel(label(cfg, sample).replace(", ", "\n"), fontsize=7)
    figure.suptitle(f"patches kept by {description(cfg, model, masks)} of {model.backbone.num_patches} per modality"
                    f"{options(cfg)}", y=0.998)
    figure.tight_layout(pad=0.3, rect=(0, 0, 1, 0.995))
    return save(figure, path)


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
    """Masks (samples, rows, columns) of the samples by modality, 1 = kept, by the title of their panel: of
    every stage and of SDTPS. Raises `UserError` as `check_context`."""
    dataset = test_loader(cfg, samples).dataset  # with masks, where the score reads them
    ((images, _, cameras),) = batches(DataLoader(dataset, len(samples), collate_fn=collate))
    device, missing = next(model.parameters()).device, missing_modalities(cfg.TEST.MISS)
    images = {modality: image.to(device) for modality, image in images.items()}
    with inference(model, choose_precision(cfg.TEST.AMP, device)):
        (context,) = model.encode_cases(images, cameras.to(device), [missing])
        check_context(context)
        patches = model.backbone.num_patches
        found = {f"stage {number}": {modality: stage.mask(modality, patches) for modality in model.modalities}
                 for number, stage in enumerate(context.stages, start=1)}
        if model.sdtps:
            found["SDTPS" if found else "kept"] = {
                modality: on_grid((selection.mask > 0).float(), context.positions.get(modality), patches)
                for modality, selection in model.sdtps(context).items()}
    return {title: {modality: mask.view(-1, *context.grid).cpu() for modality, mask in by_modality.items()}
            for title, by_modality in found.items()}


def on_grid(mask: torch.Tensor, positions: torch.Tensor | None, patches: int) -> torch.Tensor:
    """mask (B, n) of the patches at `positions` (B, n) → (B, patches), 0 elsewhere; None: the whole grid."""
    return mask if positions is None else mask.new_zeros(len(mask), patches).scatter_(1, positions, mask)
