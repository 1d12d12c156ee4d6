"""The synthetic shapes: files, determinism, and that images and captions say the same."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import contents
from PIL import Image
from transformers import AutoTokenizer, BertModel

from demo_sdtps.commands import make_synthetic_captions
from demo_sdtps.seps.image_text import read_image_texts
from demo_sdtps.synthetic.shapes import (
    CAPTION_WORDS,
    NUMBER_WORDS,
    OUTLINES,
    PLACES,
    SHAPE_COLOURS,
    SIZES,
    TEXTURES,
    Shape,
    draw_scene,
    long_caption,
    random_scene,
    relations,
    short_captions,
)

SMALL = ["--images", "4", "--dev_images", "2", "--test_images", "3", "--size", "32"]
SHAPE = re.compile(
    rf"an? (?:({'|'.join(SIZES)}) )?(?:({'|'.join(TEXTURES)}) )?({'|'.join(SHAPE_COLOURS)}) ({'|'.join(OUTLINES)})"
    rf"(?: (?:is )?({'|'.join(PLACES)}))?"
)
RELATION = re.compile(r" (next to|above|below|to the left of|to the right of) ")


def make(root, *more):
    make_synthetic_captions.main(["--root", str(root), *SMALL, *more])
    return Path(root) / "shapes"


def shapes_of(caption):
    """The shapes that a caption names, each (size, texture, colour, kind, place), "" for what it does not say."""
    return SHAPE.findall(caption)


def fits(named, whole):
    """Whether the shapes named in a caption are among a scene's, which a long caption tells."""
    by_colour = {shape[2]: shape for shape in whole}
    return all(
        shape[2] in by_colour
        and all(said in ("", true) for said, true in zip(shape, by_colour[shape[2]], strict=True))
        for shape in named
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def scenes():
    """200 scenes, as many as the test split has by default: (scene, image, captions)."""
    actual = []
    for index in range(200):
        rng = np.random.default_rng([7, index])
        scene = random_scene(rng)
        actual.append((scene, draw_scene(scene, 64, rng), short_captions(scene, 5, rng)))
    return actual


def test_the_reader_reads_it(made):
    seen = set()
    for split, count in (("train", 4), ("dev", 2), ("test", 3)):
        texts = read_image_texts(made.parent, "shapes", split, long_captions="yes")
        assert len(texts.paths) == count and texts.image_of == tuple(
            image for image in range(count) for _ in range(5)
        )
        assert not seen & set(texts.paths)
        seen |= set(texts.paths)
        for caption, image in zip(texts.captions, texts.image_of, strict=True):
            assert fits(shapes_of(caption), shapes_of(texts.long_captions[image]))
    assert {path.name for path in (made / "images").iterdir()} == {Path(path).name for path in seen}
    with Image.open(next(iter(seen))) as image:
        assert image.size == (32, 32)


def near(image, colour):
    """Pixels (H, W) of a colour in full light or, as stripes and dots are, in the shade."""
    rgb = image.astype(float)
    return (
        np.min(
            [
                np.abs(rgb - np.array(SHAPE_COLOURS[colour]) * shade).max(axis=2)
                for shade in (0.92, 0.98, 1.04)
            ],
            axis=0,
        )
        < 26
    )


def test_images_show_what_long_captions_say(scenes):
    """Each colour where it is said to be and nowhere else, large shapes larger than small ones, textures as named."""
    areas, lit = {}, {}
    for scene, image, _ in scenes:
        caption = long_caption(scene)
        assert (
            f"there are {NUMBER_WORDS[len(scene.shapes)]} shapes on a {scene.background} background"
            in caption
        )
        assert [Shape(*said) for said in shapes_of(caption)] == list(scene.shapes)
        for shape in scene.shapes:
            row, column = PLACES[shape.place]
            seen = near(image, shape.colour)
            cell = np.zeros_like(seen)
            cell[
                max(0, 21 * row - 5) : 21 * row + 28, max(0, 21 * column - 5) : 21 * column + 28
            ] = True
            assert (seen & cell).sum() > 20, (shape, caption)
            assert (seen & ~cell).sum() <= 0.25 * seen.sum(), (shape, caption)
            areas.setdefault((shape.kind, shape.texture, shape.size), []).append(
                (seen & cell).sum()
            )
            lit.setdefault(shape.kind, {}).setdefault((shape.size, shape.texture), []).append(
                (seen & cell).sum()
            )
    for kind in OUTLINES:
        for texture in TEXTURES:
            assert np.mean(areas[kind, texture, "large"]) > 1.6 * np.mean(
                areas[kind, texture, "small"]
            )
        for size in SIZES:
            plain = np.mean(lit[kind][size, "plain"])
            assert (
                np.mean(lit[kind][size, "striped"]) < 0.85 * plain
                and np.mean(lit[kind][size, "dotted"]) < 0.95 * plain
            )


def test_captions_are_true_of_a_part(scenes):
    shares = []
    for scene, _, captions in scenes:
        by_colour = {shape.colour: shape for shape in scene.shapes}
        assert len(set(captions)) == 5
        for caption in captions:
            named = shapes_of(caption)
            assert 2 <= len(named) <= 3 and fits(named, shapes_of(long_caption(scene)))
            assert "background" not in caption
            shares.append(
                sum(map(bool, (word for shape in named for word in shape)))
                / (5 * len(scene.shapes))
            )
            if said := RELATION.search(caption):
                assert said[1] in relations(*(by_colour[shape[2]] for shape in named))
            for number in NUMBER_WORDS.values():
                assert (
                    f"{number} shapes" not in caption or number == NUMBER_WORDS[len(scene.shapes)]
                )
            assert not re.search(r"\ban [^aeiou]|\ba [aeiou]", caption)
    assert 0.3 < np.mean(shares) < 0.7


def test_a_caption_nearly_always_tells_its_image(scenes):
    """Among the 200 of the test split, by its shapes alone."""
    wholes = [shapes_of(long_caption(scene)) for scene, _, _ in scenes]
    named = [shapes_of(caption) for _, _, captions in scenes for caption in captions[:2]]
    fitting = [sum(fits(shapes, whole) for whole in wholes) for shapes in named]
    assert min(fitting) == 1 and np.mean(np.array(fitting) > 1) < 0.06


def test_the_tower_loads_and_knows_every_word(made, scenes):
    tokenizer = AutoTokenizer.from_pretrained(made / "bert")
    tower = BertModel.from_pretrained(made / "bert").eval()
    assert tokenizer.is_fast and (tokenizer.pad_token_id, tokenizer.vocab_size) == (
        0,
        len(CAPTION_WORDS) + 5,
    )
    for scene, _, captions in scenes[:20]:
        for text in (*captions, long_caption(scene)):
            tokens = tokenizer(text)["input_ids"]
            assert (
                tokenizer.convert_ids_to_tokens(tokens) == ["[CLS]", *text.split(), "[SEP]"]
                and len(tokens) < 128
            )
    with torch.no_grad():
        assert tower(torch.tensor([tokens])).last_hidden_state.shape == (1, len(tokens), 64)


def test_same_arguments_same_bytes(made, tmp_path):
    state = torch.get_rng_state()
    again = make(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert contents(again) == contents(made)
