"""Every kind of image: its pixels are right, or it is refused (docs/data.md)."""
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image
from triplets import message_of

from demo_sdtps.datasets.images import decode

HEIGHT, WIDTH = 8, 12
COLOURS = np.random.default_rng(0).integers(256, size=(HEIGHT, WIDTH, 3), dtype=np.uint8)
GREY_16 = np.random.default_rng(1).integers(65536, size=(HEIGHT, WIDTH), dtype=np.uint16)
COLOURS_16 = np.random.default_rng(2).integers(65536, size=(HEIGHT, WIDTH, 3), dtype=np.uint16)
GREY = np.random.default_rng(3).integers(256, size=(HEIGHT, WIDTH), dtype=np.uint8)


def three(grey):
    return np.repeat(grey[..., None], 3, axis=2)


def saved(pixels, format="PNG", **options):
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    return lambda path: image.save(path, format, **options)


def png_of_16_bits(path):
    """In colours, which Pillow does not write."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, 2, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row.astype(">u2").tobytes() for row in COLOURS_16))
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", body), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def palette(**options):
    """Of three colours."""
    image = Image.frombytes("P", (WIDTH, HEIGHT), (GREY % 3).tobytes())
    image.putpalette([200, 30, 40, 10, 250, 60, 5, 6, 7])
    return saved(image, **options)


PALETTE = np.array([(200, 30, 40), (10, 250, 60), (5, 6, 7)], np.uint8)[GREY % 3]
TURNED = Image.Exif()
TURNED[0x0112] = 6
CMYK = Image.fromarray(np.dstack([COLOURS, GREY // 4]), "CMYK")
EXACT = {
    "PNG, grey": (saved(GREY), three(GREY)),
    "PNG, colours and alpha": (saved(np.dstack([COLOURS, GREY])), COLOURS),
    "PNG, black and white": (saved(Image.fromarray(GREY > 99)), three(np.uint8(255) * (GREY > 99))),
    "PNG, palette with transparent colours": (palette(transparency=b"\x00\x80\xff"), PALETTE),
    "PNG, grey of 16 bits": (saved(GREY_16), three(GREY_16 >> 8)),
    "PNG, colours of 16 bits": (png_of_16_bits, COLOURS_16 >> 8),
    "PNG, turned by its header": (saved(COLOURS, exif=TURNED), COLOURS),
    "TIFF, grey of 16 bits": (saved(GREY_16, "TIFF"), three(GREY_16 >> 8)),
    "TIFF, CMYK": (saved(CMYK, "TIFF"), np.asarray(CMYK.convert("RGB"))),
    "BMP": (saved(COLOURS, "BMP"), COLOURS),
    "GIF": (palette(format="GIF"), PALETTE),
    "WebP": (saved(COLOURS, "WEBP", lossless=True), COLOURS),
}
"""How a file is written, and its pixels."""


@pytest.mark.parametrize("name", EXACT)
def test_pixels_are_those_of_the_image(name, tmp_path):
    write, expected = EXACT[name]
    write(tmp_path / "image.jpg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as Pillow's of transparency, which would be one per image
        found = decode(str(tmp_path / "image.jpg")).permute(1, 2, 0).numpy()
    assert found.dtype == np.uint8 and np.array_equal(found, expected)


def postscript(path):
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(executed) (w) file\n%%EOF\n")


@pytest.mark.parametrize(("write", "said"), [
    (saved(GREY_16.astype(np.int32), "TIFF"), "32 bits"), (saved(GREY_16.astype(np.float32), "TIFF"), "32 bits"),
    (postscript, "cannot identify")], ids=["32 bits", "floats", "PostScript, for which Pillow would run Ghostscript"])
def test_what_has_no_pixels_is_refused(write, said, tmp_path):
    write(tmp_path / "image.jpg")
    assert said in message_of(decode, str(tmp_path / "image.jpg"))
