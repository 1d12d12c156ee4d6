"""Draw which patches the selector keeps: python tools/draw_tokens.py --weight W --output tokens.png"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES
from demo_sdtps.config.cli import config_parser, output_file, parse, positive_int, run
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import TripletDataset, batches, collate
from demo_sdtps.datasets.transforms import test_transform
from demo_sdtps.engine.checkpoint import weight_flag
from demo_sdtps.engine.evaluation.reports import options
from demo_sdtps.engine.evaluation.selection import check_selection
from demo_sdtps.engine.load import load_model_and_data
from demo_sdtps.engine.runtime import choose_precision, inference
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.tools.figures import hide_ticks, images, label, np, plt, room, save, spread

DROPPED, OPACITY = (96, 88, 148), 0.75  # cover of a dropped patch: a colour that is visible on a black night image too


def main() -> None:
    parser = config_parser("Draw triplets, and beside them the patches that the selector keeps; the others are covered.",
                           checkpoint=weight_flag())
    parser.add_argument("--output", type=output_file(".png"), default="tokens.png", metavar="X.png", help="default: tokens.png")
    parser.add_argument("--samples", type=positive_int, default=8, metavar="N",
                        help="triplets, spread over the split (default: 8)")
    arguments, cfg = parse(parser)
    check_selection(cfg)
    model, splits = load_model_and_data(cfg, ("query",))
    print(draw_tokens(cfg, model, splits["query"], arguments.output, arguments.samples))


def draw_tokens(cfg: CfgNode, model: DeMo, samples: list[Sample], path: Path, count: int = 8) -> Path:
    """A row per triplet: each modality's image and, beside it, the same with the dropped patches covered."""
    chosen = [samples[index] for index in spread(len(samples), count)]
    masks = kept_patches(cfg, model, chosen)
    counts = {int(kept) for mask in masks.values() for kept in mask.sum(dim=(1, 2))}
    kept = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    columns, (width, height) = 2 * len(MODALITIES), room(cfg, 2.1)
    inches = (0.2 + width) * columns, (0.2 + height) * len(chosen)
    figure, axes = plt.subplots(len(chosen), columns, figsize=inches, squeeze=False)
    for row, sample in enumerate(chosen):
        for index, (modality, image) in enumerate(zip(MODALITIES, images(cfg, sample), strict=True)):
            mask = F.interpolate(masks[modality][row, None, None], tuple(cfg.INPUT.SIZE_TEST))[0, 0].numpy()[..., None]
            left, right = axes[row, 2 * index:2 * index + 2]
            left.imshow(image)
            right.imshow(image + (OPACITY * (1 - mask) * (np.array(DROPPED) - image)).astype(int))
            for axis, title in ((left, modality), (right, "kept")):
                hide_ticks(axis)
                if row == 0:
                    axis.set_title(title, fontsize=10)
        axes[row, 0].set_ylabel(label(cfg, sample).replace(", ", "\n"), fontsize=7)
    figure.suptitle(f"patches kept by {type(model.selector).__name__}: {kept} of {model.backbone.num_patches} per modality"
                    f"{options(cfg)}", y=0.998)
    figure.tight_layout(pad=0.3, rect=(0, 0, 1, 0.995))
    return save(figure, path)


def kept_patches(cfg: CfgNode, model: DeMo, samples: list[Sample]) -> dict[str, torch.Tensor]:
    """Decision masks of the samples by modality, (samples, rows, columns): 1 = kept."""
    dataset = TripletDataset(samples, [0] * len(samples), test_transform(cfg), cache=False)
    ((images, _, cameras),) = batches(DataLoader(dataset, len(samples), collate_fn=collate))
    device, missing = next(model.parameters()).device, missing_modalities(cfg.TEST.MISS)
    images = {modality: image.to(device) for modality, image in images.items()}
    with inference(model, choose_precision(cfg.TEST.AMP, device)):
        (context,) = model.encode_cases(images, cameras.to(device), [missing])
        selections = model.select_tokens(context)
    return {modality: (selection.mask > 0).float().view(-1, *context.grid).cpu() for modality, selection in selections.items()}


if __name__ == "__main__":
    run(main)
