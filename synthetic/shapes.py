"""Synthetic scenes with captions: two to four coloured shapes on a plain background, and sentences that describe them.

The shapes of a scene have different colours and positions. A caption names two or three shapes by some of their attributes,
which nearly always identifies the scene among a few hundred; a long caption names everything.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from demo_sdtps.runtime.progress import progress
from synthetic import read_tables

FOLDER, TEXT_TOWER = "shapes", "bert"
VERSION = 1  # incremented whenever the same seed gives other images or captions
TABLES = read_tables("shapes")
SHAPE_COLOURS, BACKGROUNDS = TABLES["colours"], TABLES["backgrounds"]
SIZES, TEXTURES, PLACES = TABLES["sizes"], TABLES["textures"], TABLES["places"]
NUMBER_WORDS, BERT = TABLES["numbers"], TABLES["bert"]
SPLITS = {"train": "images", "dev": "dev_images", "test": "test_images"}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SUPERSAMPLING = 3
TEXTURE_SHADE = 0.45  # of the colour: stripes and dots are dark, on every background
GRAIN = 5  # standard deviation of the noise, in grey levels


@dataclass(frozen=True)
class Shape:
    """One shape; every field is a word or phrase of the captions."""

    size: str
    texture: str
    colour: str
    kind: str
    place: str


@dataclass(frozen=True)
class Scene:
    """Content of an image; shapes from top left to bottom right."""

    shapes: tuple[Shape, ...]
    background: str


def random_scene(rng: np.random.Generator) -> Scene:
    count = int(rng.integers(2, 5))
    cells = sorted(rng.choice(len(PLACES), count, replace=False))
    colours = rng.choice(list(SHAPE_COLOURS), count, replace=False)
    shapes = []
    for cell, colour in zip(cells, colours, strict=True):
        size, texture = _choice(rng, SIZES), rng.choice(list(TEXTURES), p=list(TEXTURES.values()))
        kind = _choice(rng, OUTLINES)
        shapes.append(Shape(size, str(texture), str(colour), kind, list(PLACES)[cell]))
    return Scene(tuple(shapes), _choice(rng, BACKGROUNDS))


def _choice(rng: np.random.Generator, words: Collection[str]) -> str:
    return list(words)[rng.integers(len(words))]


def long_caption(scene: Scene) -> str:
    """Text that names every attribute of every shape, and the background."""
    nouns = (f"{_noun(shape, size=True, texture=True)} is {shape.place}" for shape in scene.shapes)
    number = NUMBER_WORDS[len(scene.shapes)]
    return TABLES["long"].format(
        number=number, background=scene.background, shapes=" , ".join(nouns)
    )


def short_captions(scene: Scene, number: int, rng: np.random.Generator) -> list[str]:
    """`number` different captions, each of which describes a part of the scene."""
    captions: dict[str, None] = {}
    while len(captions) < number:
        captions[_short_caption(scene, rng)] = None
    return list(captions)


def _short_caption(scene: Scene, rng: np.random.Generator) -> str:
    shapes = [scene.shapes[i] for i in rng.permutation(len(scene.shapes))]
    number, kind = NUMBER_WORDS[len(shapes)], rng.random()
    if len(shapes) > 2 and kind < 0.2:
        # Three colours and kinds with one more word each identify a scene.
        extra = ("size", "texture")
        a, b, c = (_noun(shape, **{_choice(rng, extra): True}) for shape in shapes[:3])
        return _choice(rng, TABLES["of_three"]).format(a=a, b=b, c=c, number=number)
    first, second = shapes[:2]
    if kind < 0.6:
        relation, sentence = _choice(rng, relations(first, second)), _choice(rng, TABLES["related"])
        return sentence.format(a=_describe(first, rng), b=_describe(second, rng), relation=relation)
    # The first of the two always with its position, the second sometimes.
    rates = ((first, 1), (second, 0.4))
    a, b = (_describe(shape, rng, rng.random() < rate) for shape, rate in rates)
    return _choice(rng, TABLES["sentences"]).format(a=a, b=b, number=number)


def _describe(shape: Shape, rng: np.random.Generator, place: bool = False) -> str:
    """Colour, kind and one or both of size and texture; with `place` also the position, and size and texture optional."""
    choices = ((True, False), (False, True), (True, True), (False, False))
    size, texture = choices[rng.integers(4 if place else 3)]
    return _noun(shape, size, texture) + (f" {shape.place}" if place else "")


def _noun(shape: Shape, size: bool = False, texture: bool = False) -> str:
    words = [*[shape.size] * size, *[shape.texture] * texture, shape.colour, shape.kind]
    return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])


def relations(a: Shape, b: Shape) -> list[str]:
    """All true relations of `a` to `b`: directions with at least the larger distance of both axes, and adjacency."""
    (row, column), (other_row, other_column) = PLACES[a.place], PLACES[b.place]
    down, right = row - other_row, column - other_column
    names = ["next to"] * (max(abs(down), abs(right)) == 1)
    if down and abs(down) >= abs(right):
        names.append("below" if down > 0 else "above")
    if right and abs(right) >= abs(down):
        names.append("to the right of" if right > 0 else "to the left of")
    return names


def draw_scene(scene: Scene, size: int, rng: np.random.Generator) -> np.ndarray:
    """Image of the scene, uint8 (size, size, 3); light, noise, and small offsets and rotations of the shapes are random."""
    side = size * SUPERSAMPLING
    canvas = np.full((side, side, 3), BACKGROUNDS[scene.background], np.uint8)
    for shape in scene.shapes:
        _draw_shape(canvas, shape, rng)
    pooled = Image.fromarray(canvas).resize((size, size), Image.Resampling.BOX)
    image = np.asarray(pooled, np.float32)
    # Linear light gradient.
    ramp, (down, right) = np.linspace(-6, 6, size), rng.uniform(-1, 1, 2)
    light = down * ramp[:, None, None] + right * ramp[None, :, None]
    return (image + light + rng.normal(0, GRAIN, image.shape)).round().clip(0, 255).astype(np.uint8)


def _draw_shape(canvas: np.ndarray, shape: Shape, rng: np.random.Generator) -> None:
    side = len(canvas)
    radius, turn = side * SIZES[shape.size], rng.uniform(-0.15, 0.15)
    row, column = side * ((np.array(PLACES[shape.place]) + 0.5) / 3 + rng.uniform(-0.012, 0.012, 2))
    image = Image.new("1", (side, side))
    draw = ImageDraw.Draw(image)
    for points, value in OUTLINES[shape.kind]:
        y, x = points.T
        across = column + radius * (x * np.cos(turn) - y * np.sin(turn))
        down = row + radius * (x * np.sin(turn) + y * np.cos(turn))
        draw.polygon(list(zip(across, down, strict=True)), fill=value)
    rows, columns = np.nonzero(np.asarray(image))
    down, right = (rows - row) / side, (columns - column) / side
    slant = turn + 0.7  # stripes and dots are diagonal
    along = right * np.cos(slant) + down * np.sin(slant)
    across = down * np.cos(slant) - right * np.sin(slant)
    is_dark = {
        "plain": np.zeros(along.shape, bool),
        "striped": along % 0.08 < 0.035,
        "dotted": np.hypot(along % 0.085 - 0.0425, across % 0.085 - 0.0425) < 0.024,
    }[shape.texture]
    colour = np.array(SHAPE_COLOURS[shape.colour]) * rng.uniform(0.92, 1.04)
    canvas[rows, columns] = np.where(is_dark[:, None], colour * TEXTURE_SHADE, colour).clip(0, 255)


def _regular(corners: int, *radii: float, turn: float = 0.0) -> np.ndarray:
    """Polygon around the origin, (corners, 2) rows and columns, from the top; the radii repeat over the corners."""
    angles = 2 * np.pi * np.arange(corners) / corners + turn
    radius = np.resize(radii, corners)
    return np.stack([-radius * np.cos(angles), radius * np.sin(angles)], axis=1)


_BAR = np.array([(-1, -0.33), (-1, 0.33), (1, 0.33), (1, -0.33)])
OUTLINES = {  # polygons of radius about 1 that are drawn (1) or cut out (0) in order
    "circle": [(_regular(40, 0.95), 1)],
    "square": [(_regular(4, 1.2, turn=np.pi / 4), 1)],
    "triangle": [(np.add(_regular(3, 1.2), (0.2, 0)), 1)],
    "star": [(_regular(10, 1.2, 0.5), 1)],
    "cross": [(_BAR, 1), (_BAR[:, ::-1], 1)],
    "ring": [(_regular(40, 1.05), 1), (_regular(40, 0.55), 0)],
    "diamond": [(_regular(4, 1.15, 0.8), 1)],
}


def vocabulary() -> list[str]:
    """All words of the captions, in the order of the alphabet."""
    templates = *TABLES["sentences"], *TABLES["related"], *TABLES["of_three"], TABLES["long"]
    attributes = *SHAPE_COLOURS, *BACKGROUNDS, *SIZES, *TEXTURES, *OUTLINES, *PLACES
    others = "a an is two three four next to below above to the right of to the left of"
    phrases = *templates, *attributes, others
    return sorted({word for word in " ".join(phrases).split() if not word.startswith("{")})


def write_captioned(folder: Path, captions: int, size: int, seed: int, **images: int) -> None:
    """Write images of `size` pixels and captions of all splits, and the text tower; `images` are numbers by SPLITS' flags."""
    from seps.captions import IMAGES, MAPPING  # which imports torch

    (folder / IMAGES).mkdir()
    mapping: dict[str, str] = {}
    for number, (split, flag) in enumerate(SPLITS.items()):
        lines: dict[str, list[str]] = {"caps.txt": [], "ids.txt": [], "dense.jsonl": []}
        for index in progress(range(images[flag]), f"drawing {split}", unit="image"):
            rng = np.random.default_rng([seed, number, index])
            scene = random_scene(rng)
            image_id = str(len(mapping))
            mapping[image_id] = f"{split}_{index:06d}.jpg"
            image = Image.fromarray(draw_scene(scene, size, rng))
            # The usual chroma subsampling would blur the edges of small shapes.
            image.save(folder / IMAGES / mapping[image_id], quality=92, subsampling=0)
            lines["caps.txt"] += short_captions(scene, captions, rng)
            lines["ids.txt"].append(image_id)
            long = {"id": image_id, "caption": long_caption(scene)}
            lines["dense.jsonl"].append(json.dumps(long))
        for name, texts in lines.items():
            write_text(folder / f"{split}_{name}", "\n".join(texts))
    write_text(folder / MAPPING, json.dumps(mapping, indent=0))
    write_tower(folder / TEXT_TOWER, seed)


def write_text(file: Path, text: str) -> None:
    """Write the text and a line break; the bytes are the same on every system."""
    file.write_text(text + "\n", encoding="utf-8", newline="\n")


def write_tower(folder: Path, seed: int) -> None:
    """Write a tiny BERT with random weights and a tokenizer with the vocabulary of the captions."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder.mkdir()
    words = (*SPECIAL, *vocabulary())
    write_text(folder / "vocab.txt", "\n".join(words))
    # Every release of transformers makes a tokenizer of these two files; the constructors differ between releases.
    write_text(folder / "tokenizer_config.json", json.dumps(TABLES["tokenizer"]))
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tower = BertModel(BertConfig.from_dict({"vocab_size": len(words), **BERT}))
    tower.config.save_pretrained(folder)
    # Same file as the model's save_pretrained, without its progress bar.
    save_file(tower.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
