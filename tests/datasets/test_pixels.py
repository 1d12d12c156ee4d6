"""The reader of pixels: every depth, order of bytes and channels is read whole or refused, and turned as its header says."""

import struct
import zlib
from itertools import product

import numpy as np
import pytest
from PIL import Image
from triplets import catch_message

from demo_sdtps.config.ranges import PERCENTILES, Range
from demo_sdtps.datasets.images import decode, unreadable
from demo_sdtps.datasets.pixels import image_size, to_8_bits

HEIGHT, WIDTH = 12, 7
SCALE = Range(20000, 45000)
VALUES = np.random.default_rng(0).integers(19000, 46000, size=(HEIGHT, WIDTH, 4), dtype=np.uint16)
TURNS = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: np.fliplr(np.rot90(a, -1)),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.fliplr(np.rot90(a)),
    8: np.rot90,
}
"""By orientation in EXIF's numbers, what turns an image upright."""
CHANNELS = {
    "grey": (0, 1),
    "grey and alpha": (4, 2),
    "colours": (2, 3),
    "colours and alpha": (6, 4),
}
"""PNG's numbers of kinds of colours, and the number of channels."""


def read(path, scale=SCALE):
    return decode(path, scale=scale).permute(1, 2, 0).numpy()


def as_expected(values):
    """uint8 (H, W, 3) that values must become, in float64."""
    scaled = (values.astype(np.float64) - SCALE.low) * 255 / (SCALE.high - SCALE.low)
    grey = np.rint(scaled.clip(0, 255)).astype(np.uint8)
    return grey[..., :3] if grey.shape[2] > 2 else np.repeat(grey[..., :1], 3, axis=2)


def write_png(path, values, kind, orientation=1):
    """Of 16 bits, which Pillow writes in grey alone."""

    def chunk(name, data):
        checksum = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + checksum

    head = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 16, kind, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row.astype(">u2").tobytes() for row in values))
    exif = Image.Exif()
    exif[274] = orientation
    chunks = [(b"IHDR", head), (b"eXIf", exif.tobytes()[6:]), (b"IDAT", body), (b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks))


def write_tiff(path, values, order="<", compressed=False, orientation=1, **tags):
    """An array (H, W, C) of any type; `tags` by name replace those that fit it."""
    height, width, channels = values.shape
    data = values.astype(values.dtype.newbyteorder(order)).tobytes()
    data = zlib.compress(data) if compressed else data
    numbers = {"bits": 258, "photometric": 262, "extra": 338, "formats": 339, "planar": 284}
    kinds = {"u": 1, "i": 2, "f": 3}
    content = {
        256: (width,),
        257: (height,),
        258: (8 * values.itemsize,) * channels,
        259: (8 if compressed else 1,),
        262: (2 if channels > 2 else 1,),
        274: (orientation,),
        277: (channels,),
        278: (height,),
        279: (len(data),),
        339: (kinds[values.dtype.kind],) * channels,
    } | {numbers[name]: value for name, value in tags.items()}
    place = 8 + 2 + 12 * (len(content) + 1) + 4
    extra, entries = b"", {}
    for tag, shorts in content.items():
        packed = struct.pack(f"{order}{len(shorts)}H", *shorts)
        if len(packed) > 4:
            packed, extra = struct.pack(f"{order}I", place + len(extra)), extra + packed
        entries[tag] = struct.pack(f"{order}HHI", tag, 3, len(shorts)) + packed.ljust(4, b"\0")
    entries[273] = struct.pack(f"{order}HHII", 273, 4, 1, place + len(extra))
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, len(entries))
    body = b"".join(entries[tag] for tag in sorted(entries))
    path.write_bytes(head + body + bytes(4) + extra + data)


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("kind", CHANNELS)
def test_pngs_of_16_bits_are_read_whole(tmp_path, kind, orientation):
    number, channels = CHANNELS[kind]
    values, path = VALUES[..., :channels], tmp_path / "x.png"
    write_png(path, values, number, orientation)
    expected = TURNS[orientation](as_expected(values))
    assert len(np.unique(expected)) > 50
    if kind == "grey and alpha":
        assert str(path) in catch_message(read, str(path))
        return
    assert np.array_equal(read(str(path)), expected)
    colours = values[..., :1] if channels < 3 else values[..., :3]
    percentiles = TURNS[orientation](to_8_bits(colours, PERCENTILES))
    assert np.array_equal(
        read(str(path), PERCENTILES), np.broadcast_to(percentiles, expected.shape)
    )
    # of published data sets: as it is stored, the upper 8 bits
    assert np.array_equal(read(str(path), None)[..., 0], (values >> 8)[..., 0])


@pytest.mark.parametrize(("order", "compressed"), [*product("<>", [False, True])])
@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_tiffs_of_16_bits_are_read_whole(tmp_path, channels, orientation, order, compressed):
    path, values = tmp_path / "x.tif", VALUES[..., :channels]
    expected = TURNS[orientation](as_expected(values))
    for extra in [{}, {"extra": (0,)}, {"extra": (2,)}] if channels == 4 else [{}]:
        write_tiff(path, values, order, compressed, orientation, **extra)
        assert np.array_equal(read(str(path)), expected)


@pytest.mark.parametrize(("order", "compressed"), [*product("<>", [False, True])])
def test_signed_numbers_and_those_of_32_bits_have_their_sign_and_range(tmp_path, order, compressed):
    values = np.linspace(0, 4_000_000_000, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH, 1)
    expected = np.rint(values * (255 / 4e9)).astype(np.uint8)
    unsigned = [(np.uint32, 0)] if order == "<" else []  # else Pillow cannot read it
    for dtype, low in (*unsigned, (np.int32, -2_000_000_000), (np.float32, 0)):
        write_tiff(tmp_path / "x.tif", (values + low).astype(dtype), order, compressed)
        actual = read(str(tmp_path / "x.tif"), Range(low, 4_000_000_000 + low))
        assert np.abs(actual.astype(int) - expected).max() <= 1
        assert actual.max() == 255 and not actual[0, 0].any()
    signed = (VALUES[..., :1].astype(np.int32) - 30000).astype(np.int16)
    write_tiff(tmp_path / "x.tif", signed, order, compressed)
    shifted = Range(SCALE.low - 30000, SCALE.high - 30000)
    assert np.array_equal(read(str(tmp_path / "x.tif"), shifted), as_expected(VALUES[..., :1]))


def tiff(values, **tags):
    return lambda path: write_tiff(path, values, **tags)


REFUSED = {
    "CMYK": tiff(VALUES, photometric=(5,)),
    "premultiplied alpha": tiff(VALUES, extra=(1,)),
    "planes": tiff(VALUES[..., :3], planar=(2,)),
    "compressed planes": tiff(VALUES[..., :3], planar=(2,), compressed=True),
    "white is zero": tiff(VALUES[..., :1], photometric=(0,)),
    "white is zero, floats": tiff(VALUES[..., :1].astype(np.float32), photometric=(0,)),
    "floats in colours": tiff(VALUES[..., :3].astype(np.float32)),
    "64 bits": tiff(VALUES[..., :1].astype(np.float64)),
    "uint32 of other machines": tiff(VALUES[..., :1].astype(np.uint32), order=">"),
}
"""What Pillow gives other values of, or none."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_lose_values_is_refused(tmp_path, name):
    REFUSED[name](tmp_path / "x.img")
    assert str(tmp_path / "x.img") in catch_message(read, str(tmp_path / "x.img"))


@pytest.mark.parametrize("ending", ["jpg", "tif"])
def test_the_header_limits_the_size_for_every_decoder(tmp_path, monkeypatch, ending):
    """At twice Pillow's limit, as Pillow has it."""
    path = str(tmp_path / f"x.{ending}")
    Image.fromarray(np.uint8(VALUES >> 8)[..., :3]).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", HEIGHT * WIDTH // 2)
    assert read(path).shape == (HEIGHT, WIDTH, 3) and image_size(path) == (WIDTH, HEIGHT)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", HEIGHT * WIDTH // 2 - 1)
    message = catch_message(read, path)
    assert path in message and "84 pixels" in message and "limit of 82" in message
    assert [*unreadable([path])] == [path]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert read(path).shape == (HEIGHT, WIDTH, 3)
