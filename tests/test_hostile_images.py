"""Every kind of image: its pixels are right, or it is reported in one sentence before anything is written."""
import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from commands import cli_args_for
from hostile import Case, run_case, tree, weights_for
from PIL import Image
from triplets import message_of

from demo_sdtps import train_net
from demo_sdtps.datasets.images import decode

HEIGHT, WIDTH = 8, 12
COLOURS = np.random.default_rng(0).integers(256, size=(HEIGHT, WIDTH, 3), dtype=np.uint8)
GREY_16 = np.random.default_rng(1).integers(65536, size=(HEIGHT, WIDTH), dtype=np.uint16)
COLOURS_16 = np.random.default_rng(2).integers(65536, size=(HEIGHT, WIDTH, 3), dtype=np.uint16)
GREY = np.random.default_rng(3).integers(256, size=(HEIGHT, WIDTH), dtype=np.uint8)
ALPHA = np.random.default_rng(4).integers(256, size=(HEIGHT, WIDTH), dtype=np.uint8)


def three(grey):
    return np.repeat(grey[..., None], 3, axis=2)


def saved(pixels, format="PNG", **options):
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    return lambda path: image.save(path, format, **options)


def png(colour_type, depth, rows, width=WIDTH, *chunks):
    """A PNG of these raw rows, which Pillow could not write."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, len(rows), depth, colour_type, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows))
    parts = (chunk(b"IHDR", head), *chunks, chunk(b"IDAT", body), chunk(b"IEND", b""))
    return lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def rows_of(pixels):
    return [np.ascontiguousarray(row).astype(">u2").tobytes() for row in pixels]


def palette(**options):
    """Of three colours, the first two see-through in part."""
    image = Image.frombytes("P", (WIDTH, HEIGHT), (GREY % 3).tobytes())
    image.putpalette([200, 30, 40, 10, 250, 60, 5, 6, 7])
    return saved(image, **options)


PALETTE = np.array([(200, 30, 40), (10, 250, 60), (5, 6, 7)], np.uint8)[GREY % 3]
TURNED = Image.Exif()
TURNED[0x0112] = 6
CMYK = np.dstack([COLOURS, GREY // 4])
EXACT = {
    "PNG": (saved(COLOURS), COLOURS),
    "PNG, grey": (saved(GREY), three(GREY)),
    "PNG, grey and alpha": (saved(np.dstack([GREY, ALPHA])), three(GREY)),
    "PNG, colours and alpha": (saved(np.dstack([COLOURS, ALPHA])), COLOURS),
    "PNG, black and white": (saved(Image.fromarray(GREY > 99)), three(np.uint8(255) * (GREY > 99))),
    "PNG, palette": (palette(), PALETTE),
    "PNG, palette with a transparent colour": (palette(transparency=1), PALETTE),
    "PNG, palette with several": (palette(transparency=b"\x00\x80\xff"), PALETTE),
    "PNG, grey of 16 bits": (saved(GREY_16), three(GREY_16 >> 8)),
    "PNG, colours of 16 bits": (png(2, 16, rows_of(COLOURS_16)), COLOURS_16 >> 8),
    "PNG, grey of 16 bits and alpha": (png(4, 16, rows_of(np.dstack([GREY_16, GREY_16]))), three(GREY_16 >> 8)),
    "PNG, colours of 16 bits and alpha": (png(6, 16, rows_of(np.dstack([COLOURS_16, GREY_16]))), COLOURS_16 >> 8),
    "PNG, turned by its header": (saved(COLOURS, exif=TURNED), COLOURS),
    "TIFF": (saved(COLOURS, "TIFF"), COLOURS),
    "TIFF, grey of 16 bits": (saved(GREY_16, "TIFF"), three(GREY_16 >> 8)),
    "TIFF, the other way round": (
        saved(Image.frombytes("I;16B", (WIDTH, HEIGHT), GREY_16.astype(">u2").tobytes()), "TIFF"), three(GREY_16 >> 8)),
    "TIFF, CMYK": (saved(Image.fromarray(CMYK, "CMYK"), "TIFF"), np.asarray(Image.fromarray(CMYK, "CMYK").convert("RGB"))),
    "PGM of 16 bits": (
        lambda path: path.write_bytes(b"P5 12 8 65535\n" + GREY_16.astype(">u2").tobytes()), three(GREY_16 >> 8)),
    "BMP": (saved(COLOURS, "BMP"), COLOURS),
    "GIF": (palette(format="GIF"), PALETTE),
    "GIF, moving": (palette(format="GIF", save_all=True, append_images=[Image.new("P", (WIDTH, HEIGHT))]), PALETTE),
    "WebP": (saved(COLOURS, "WEBP", lossless=True), COLOURS),
    "1×1": (saved(COLOURS[:1, :1]), COLOURS[:1, :1]),
    "1 high": (saved(COLOURS[:1]), COLOURS[:1]),
    "4000 wide": (saved(np.tile(COLOURS[:1], (1, 4000, 1))), np.tile(COLOURS[:1], (1, 4000, 1))),
}
"""How a file is written, and its pixels."""
def pixels_of(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as Pillow's of transparency, which would be one per image
        return decode(str(path)).permute(1, 2, 0).numpy()


@pytest.mark.parametrize("name", EXACT)
def test_pixels_are_those_of_the_image(name, tmp_path):
    write, expected = EXACT[name]
    write(tmp_path / "image.jpg")
    found = pixels_of(tmp_path / "image.jpg")
    assert found.dtype == np.uint8 and np.array_equal(found, expected)


def in_place(write):
    def change(place):
        path = place.image()
        path.unlink()
        write(path)

    return change


@pytest.mark.parametrize("modes", ["0", "1"], ids=["by a thread", "by a process"])
def test_all_kinds_together_are_evaluated(modes, place, command):
    """A test split of which every image of NI is of another kind."""
    images = sorted((place.test / "NI").iterdir())
    for path, (write, _) in zip(images, EXACT.values(), strict=False):
        path.unlink()
        write(path)
    assert len(EXACT) <= len(images)
    weights = weights_for(place.root, place.folder / "w.pth")
    words = ("--weight", str(weights), "DATALOADER.NUM_WORKERS", modes, "DATASETS.CACHE", "no")
    stdout, stderr = run_case(Case("", "test", lambda place: None, words, ()), place, command)
    assert "32 queries" in stdout and "Warning" not in stderr


def cut(part):
    """The image as it was, but for what is missing at its end."""
    def change(place):
        data = place.image().read_bytes()
        place.image().write_bytes(data[:int(len(data) * part)])

    return change


def postscript(path):
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(executed) (w) file\n%%EOF\n")


BROKEN = [
    ("an image cut short", cut(0.7), ["cannot be read"]),
    ("a text", in_place(lambda path: path.write_text("this is a text")), ["cannot identify"]),
    ("an empty file", in_place(Path.touch), ["it is empty"]),
    ("a PNG that is cut short", in_place(lambda path: (saved(COLOURS)(path), os.truncate(path, 150))), ["cannot be read"]),
    ("32 bits of grey", in_place(saved(GREY_16.astype(np.int32), "TIFF")), ["32 bits", "save it with 8 or 16 bits"]),
    ("grey of floats", in_place(saved(GREY_16.astype(np.float32), "TIFF")), ["32 bits"]),
    ("PostScript", in_place(postscript), ["cannot identify"]),
]


def test_verifying_finds_them_all_before_anything_is_written(place, command):
    images = sorted((place.test / "NI").iterdir())[:len(BROKEN)]
    for (_, make, _), path in zip(BROKEN, images, strict=True):
        make(place._replace(number=images.index(path)))
    before = tree(place.folder.parent)
    words = cli_args_for(place.root, "OUTPUT_DIR", place.folder / "output", "DATASETS.VERIFY", "True")
    code, _, stderr = command(train_net.main, *words)
    assert code == 2 and f"error: {len(BROKEN)} of {(48 + 32) * 3} images cannot be read; replace them" in stderr
    for (_, _, says), path in zip(BROKEN, images, strict=True):
        (line,) = (line for line in stderr.splitlines() if str(path) in line)
        assert all(part in line for part in ("cannot be read", *says))
    assert tree(place.folder.parent) == before


def test_postscript_runs_no_ghostscript(tmp_path, monkeypatch):
    """Pillow would call `gs` on it, whatever the file's name ends in."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\n")
    (tmp_path / "bin" / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    postscript(tmp_path / "image.jpg")
    with pytest.raises(OSError), Image.open(tmp_path / "image.jpg") as image:
        image.load()
    assert (tmp_path / "executed").exists()  # the trap works
    (tmp_path / "executed").unlink()
    assert "cannot identify" in message_of(decode, str(tmp_path / "image.jpg"))
    assert not (tmp_path / "executed").exists()
