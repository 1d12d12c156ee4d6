"""The synthetic shapes: files, determinism, and that images and captions say the same."""

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from commands import contents
from PIL import Image

from seps.captions import read_image_texts
from synthetic import commands as synthetic
from synthetic.shapes import (
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
    vocabulary,
)

SMALL = ["--images", "4", "--dev_images", "2", "--test_images", "3", "--size", "32"]
SHAPE = re.compile(
    rf"an? (?:({'|'.join(SIZES)}) )?(?:({'|'.join(TEXTURES)}) )?({'|'.join(SHAPE_COLOURS)}) ({'|'.join(OUTLINES)})"
    rf"(?: (?:is )?({'|'.join(PLACES)}))?"
)
RELATION = re.compile(r" (next to|above|below|to the left of|to the right of) ")


def make(root, *more):
    synthetic.captioned(["--root", str(root), *SMALL, *more])
    return Path(root) / "shapes"


def named_shapes(caption):
    """The shapes that a caption names, each (size, texture, colour, kind, place), "" for what it does not say."""
    return SHAPE.findall(caption)


def fits(named, whole):
    """Whether the shapes named in a caption are among a scene's, which a long caption tells."""
    by_colour = {shape[2]: shape for shape in whole}
    return all(
        shape[2] in by_colour
        and all(word in ("", true) for word, true in zip(shape, by_colour[shape[2]], strict=True))
        for shape in named
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def scenes():
    """200 scenes, as many as the test split has by default: (scene, image, captions)."""
    actual = []
    for index in range(200):
        rng = np.random.default_rng([7, index])
        scene = random_scene(rng)
        actual.append((scene, draw_scene(scene, 64, rng), short_captions(scene, 5, rng)))
    return actual


def test_the_reader_reads_it(data):
    paths = []
    for split, count in (("train", 4), ("dev", 2), ("test", 3)):
        texts = read_image_texts(data.parent, "shapes", split, long_captions="yes")
        assert len(texts.paths) == count
        assert texts.image_of == tuple(image for image in range(count) for _ in range(5))
        paths += texts.paths
        for caption, image in zip(texts.captions, texts.image_of, strict=True):
            assert fits(named_shapes(caption), named_shapes(texts.long_captions[image]))
    assert sorted(map(str, (data / "images").iterdir())) == sorted(map(str, paths))
    assert np.asarray(Image.open(paths[0])).shape == (32, 32, 3)


def near(image, colour):
    """Pixels (H, W) of a colour in full light."""
    shades = np.multiply.outer((0.92, 0.98, 1.04), SHAPE_COLOURS[colour])
    errors = np.abs(image.astype(float) - shades[:, None, None]).max(axis=3)
    return errors.min(axis=0) < 26


def test_images_show_what_long_captions_say(scenes):
    """Each colour where it is said to be and nowhere else, large shapes larger than small ones, textures as named."""
    areas = defaultdict(list)
    for scene, image, _ in scenes:
        caption, number = long_caption(scene), NUMBER_WORDS[len(scene.shapes)]
        assert f"there are {number} shapes on a {scene.background} background" in caption
        assert [Shape(*words) for words in named_shapes(caption)] == list(scene.shapes)
        for shape in scene.shapes:
            row, column = PLACES[shape.place]
            pixels = near(image, shape.colour)
            top, left = max(0, 21 * row - 5), max(0, 21 * column - 5)
            inside = pixels[top : 21 * row + 28, left : 21 * column + 28].sum()
            assert inside > 20 and pixels.sum() - inside <= 0.25 * pixels.sum(), (shape, caption)
            areas[shape.kind, shape.texture, shape.size].append(inside)
    means = {key: np.mean(values) for key, values in areas.items()}
    for kind in OUTLINES:
        for texture in TEXTURES:
            assert means[kind, texture, "large"] > 1.6 * means[kind, texture, "small"]
        for size in SIZES:
            plain = means[kind, "plain", size]
            assert means[kind, "striped", size] < 0.85 * plain
            assert means[kind, "dotted", size] < 0.95 * plain


def test_captions_are_true_of_a_part(scenes):
    shares = []
    for scene, _, captions in scenes:
        by_colour = {shape.colour: shape for shape in scene.shapes}
        assert len(set(captions)) == 5
        for caption in captions:
            named = named_shapes(caption)
            assert 2 <= len(named) <= 3 and fits(named, named_shapes(long_caption(scene)))
            assert "background" not in caption
            words = sum(word != "" for shape in named for word in shape)
            shares.append(words / (5 * len(scene.shapes)))
            if match := RELATION.search(caption):
                assert match[1] in relations(*(by_colour[shape[2]] for shape in named))
            numbers = re.findall(r"(\w+) shapes", caption)
            assert set(numbers) <= {NUMBER_WORDS[len(scene.shapes)]}
            assert not re.search(r"\ban [^aeiou]|\ba [aeiou]", caption)
    assert 0.3 < np.mean(shares) < 0.7


def test_the_tower_loads_and_knows_every_word(data, scenes):
    tokenizer = transformers.AutoTokenizer.from_pretrained(data / "bert")
    tower = transformers.BertModel.from_pretrained(data / "bert").eval()
    assert tokenizer.is_fast and tokenizer.pad_token_id == 0
    assert tokenizer.vocab_size == len(vocabulary()) + 5
    for scene, _, captions in scenes[:20]:
        for text in (*captions, long_caption(scene)):
            tokens = tokenizer(text)["input_ids"]
            words = tokenizer.convert_ids_to_tokens(tokens)
            assert words == ["[CLS]", *text.split(), "[SEP]"] and len(tokens) < 128
    with torch.no_grad():
        assert tower(torch.tensor([tokens])).last_hidden_state.shape == (1, len(tokens), 64)


def test_same_arguments_same_bytes(data, tmp_path):
    state = torch.get_rng_state()
    again = make(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert contents(again) == contents(data)
