"""Decoding and verifying images: of every kind, the pixels are right, or it is refused (docs/train.md)."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from triplets import (
    FIRST,
    a_text,
    catch_message,
    config,
    cut_short,
    head_alone,
    image_folder,
    zero_bytes,
)

from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.images import decode, verify


@pytest.mark.parametrize("damage", [zero_bytes, a_text, cut_short, head_alone])
def test_a_damaged_image_is_reported_by_name(own_root, damage):
    path = image_folder(own_root, modality="NI") / FIRST
    damage(path)
    message = catch_message(decode, str(path))
    assert message.startswith(f"The image {path} cannot be read") and "\n" not in message


def test_verify_lists_all_damaged_images_and_no_other(own_root):
    samples = read_splits(config(own_root), ("train",))["train"]
    verify(path for sample in samples for path in sample.paths)
    damaged = [Path(samples[3].paths[1]), Path(samples[17].paths[0]), Path(samples[40].paths[2])]
    for path, damage in zip(damaged, (zero_bytes, a_text, cut_short), strict=True):
        damage(path)
    head, *lines = catch_message(
        verify, [path for sample in samples for path in sample.paths]
    ).splitlines()
    assert head.startswith("3 of 144 images") and "replace them or remove their triplets" in head
    assert len(lines) == 3
    assert all(any(str(path) in line for line in lines) for path in damaged)


# Kinds of images

HEIGHT, WIDTH = 8, 12
COLOURS = np.random.default_rng(0).integers(256, size=(HEIGHT, WIDTH, 3), dtype=np.uint8)
GREY_16 = np.random.default_rng(1).integers(65536, size=(HEIGHT, WIDTH), dtype=np.uint16)
GREY = np.random.default_rng(3).integers(256, size=(HEIGHT, WIDTH), dtype=np.uint8)


def three(grey):
    return np.repeat(grey[..., None], 3, axis=2)


def make_writer(pixels, format="PNG", **options):
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    return lambda path: image.save(path, format, **options)


def palette(**options):
    """Of three colours."""
    image = Image.frombytes("P", (WIDTH, HEIGHT), (GREY % 3).tobytes())
    image.putpalette([200, 30, 40, 10, 250, 60, 5, 6, 7])
    return make_writer(image, **options)


PALETTE = np.array([(200, 30, 40), (10, 250, 60), (5, 6, 7)], np.uint8)[GREY % 3]
TURNED = Image.Exif()
TURNED[0x0112] = 6
CMYK = Image.fromarray(np.dstack([COLOURS, GREY // 4]), "CMYK")
EXACT = {
    "PNG, grey": (make_writer(GREY), three(GREY)),
    "PNG, colours and alpha": (make_writer(np.dstack([COLOURS, GREY])), COLOURS),
    "PNG, black and white": (
        make_writer(Image.fromarray(GREY > 99)),
        three(np.uint8(255) * (GREY > 99)),
    ),
    "PNG, palette with transparent colours": (palette(transparency=b"\x00\x80\xff"), PALETTE),
    "PNG, grey of 16 bits": (make_writer(GREY_16), three(GREY_16 >> 8)),
    "PNG, turned by its header": (make_writer(COLOURS, exif=TURNED), COLOURS),
    "TIFF, grey of 16 bits": (make_writer(GREY_16, "TIFF"), three(GREY_16 >> 8)),
    "TIFF, CMYK": (make_writer(CMYK, "TIFF"), np.asarray(CMYK.convert("RGB"))),
    "BMP": (make_writer(COLOURS, "BMP"), COLOURS),
    "GIF": (palette(format="GIF"), PALETTE),
    "WebP": (make_writer(COLOURS, "WEBP", lossless=True), COLOURS),
}
"""How a file is written, and its pixels."""


@pytest.mark.parametrize("name", EXACT)
def test_pixels_are_those_of_the_image(name, tmp_path):
    write, expected = EXACT[name]
    write(tmp_path / "image.jpg")
    with warnings.catch_warnings():
        # such as Pillow's of transparency, which would be one per image
        warnings.simplefilter("error")
        actual = decode(str(tmp_path / "image.jpg"), scale=None).permute(1, 2, 0).numpy()
    assert actual.dtype == np.uint8 and np.array_equal(actual, expected)


def postscript(path):
    path.write_text(
        "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(executed) (w) file\n%%EOF\n"
    )


def test_postscript_is_refused_for_which_pillow_would_run_ghostscript(tmp_path):
    postscript(tmp_path / "image.jpg")
    assert "cannot identify" in catch_message(decode, str(tmp_path / "image.jpg"), "", None)
