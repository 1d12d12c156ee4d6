"""Norms of the patch tokens after every block: python tools/token_norms.py --weight W"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

from collections import defaultdict

import torch
from torch.utils.data import DataLoader

from demo_sdtps.config.cli import add_output, config_parser, parse, print_lines, run
from demo_sdtps.config.files import write_json
from demo_sdtps.config.progress import progress
from demo_sdtps.datasets import SPLITS
from demo_sdtps.datasets.loaders import batches, test_loader
from demo_sdtps.engine.evaluation.selection import average_precision
from demo_sdtps.engine.load import load_model_and_data, weight_flag
from demo_sdtps.engine.runtime import check_features, inference
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.backbones.base import Tokens
from demo_sdtps.modeling.sdtps import cosines
from demo_sdtps.tools.selection_quality import foreground

HIGH = 2.0  # times the median norm of the image
LEFT_OUT = 0.02  # share of the tokens, those of the largest norm


def main() -> None:
    parser = config_parser(
        "Measure the norms of the patch tokens after every block of the backbone, in percent of the image's median norm: the "
        "median on the person and on the background, the mean of the images' largest, and the share of the tokens above "
        f"{HIGH:g} times the median and on the background (large ViTs have such tokens: Darcet et al., Vision transformers "
        "need registers, ICLR 2024). And the average precision (AP) of `distinctness` as a detector of the person, as it is, "
        f"from a mean without the {LEFT_OUT:.0%} of the tokens of the largest norm, and from a mean of tokens of equal norm. "
        "Needs foreground masks; slimming and selectors are left out, so that every block has all patches.",
        checkpoint=weight_flag())
    parser.add_argument("--split", choices=SPLITS, default="query", help="default: query")
    add_output(parser, "--json", ".json", help="write it, in [0, 1], to this file")
    arguments, cfg = parse(parser)
    model, splits = load_model_and_data(cfg, (arguments.split,))
    samples = splits[arguments.split]
    found = measure_norms(model, test_loader(cfg, samples), foreground(cfg, model.backbone, samples))
    if arguments.json:
        write_json(arguments.json, {"weight": cfg.TEST.WEIGHT, "split": arguments.split, "blocks": found})
    print_lines(f"{cfg.DATASETS.NAMES} in {cfg.DATASETS.ROOT_DIR}, {len(samples)} {arguments.split} triplets, "
                f"{cfg.TEST.WEIGHT}, in percent, mean over images and modalities", *as_table(found))


def measure_norms(model: DeMo, loader: DataLoader, on_person: torch.Tensor) -> list[dict[str, float]]:
    """One record of `measures`' means per point of the backbone: the embedding, then each block.

    on_person (images, N) bool, in the loader's order. Raises `UserError` for tokens that are not finite.
    """
    backbone = model.backbone
    device, depth = next(model.parameters()).device, len(backbone.vit.blocks)
    sums: list[dict[str, list[torch.Tensor]]] = [defaultdict(list) for _ in range(depth + 1)]
    masks = on_person.split(loader.batch_size or 1)
    with inference(model, None), backbone.ready(device):
        for (images, _, cameras), mask in zip(progress(batches(loader), "measuring norms", len(loader), unit="batch"), masks,
                                              strict=True):
            for image in images.values():
                tokens = Tokens(backbone.embed(image.to(device), cameras.to(device)))
                for number in range(depth + 1):
                    tokens = backbone.run_blocks(tokens, number - 1, number) if number else tokens
                    patches = tokens.patches(mask.shape[1]).float()
                    check_features("The network's tokens", [patches])
                    for name, values in measures(patches, mask.to(device)).items():
                        sums[number][name].append(values.cpu())
    return [{name: torch.cat(parts).nanmean().item() for name, parts in one.items()} for one in sums]


def measures(tokens: torch.Tensor, on_person: torch.Tensor) -> dict[str, torch.Tensor]:
    """One number (B,) per image and measure of tokens (B, N, C); on_person (B, N) bool. NaN: the image has no such number."""
    norms = tokens.norm(dim=-1)
    relative = norms / norms.median(dim=1, keepdim=True).values
    high = relative > HIGH
    few = norms.argsort(dim=1)[:, :norms.shape[1] - max(1, round(LEFT_OUT * norms.shape[1]))]
    means = {"distinctness": tokens.mean(dim=1),
             "without the largest": tokens.gather(1, few[..., None].expand(-1, -1, tokens.shape[2])).mean(dim=1),
             "of equal norm": (tokens / norms[..., None].clamp(min=1e-12)).mean(dim=1)}
    # A mean of the others' values alone, as NaN where there are none.
    medians = {name: relative.masked_fill(~those, torch.nan).nanmedian(dim=1).values
               for name, those in (("median, person", on_person), ("median, background", ~on_person))}
    return {**medians, "largest": relative.amax(dim=1), "high": high.double().mean(dim=1),
            "high, background": (high & ~on_person).double().mean(dim=1),
            **{f"AP {name}": average_precision(1 - cosines(tokens, mean.unsqueeze(0))[0], on_person)
               for name, mean in means.items()}}


def as_table(found: list[dict[str, float]]) -> list[str]:
    """Lines of the records of `measure_norms`, in percent."""
    points = ["embedding", *(f"block {number}" for number in range(1, len(found)))]
    return [f"{'after':23}" + "".join(f"{point:>10}" for point in points),
            *(f"{name:23}" + "".join(f"{100 * one[name]:>10.1f}" for one in found) for name in found[0])]


if __name__ == "__main__":
    run(main)
