"""Pixels: every kind of image, depth, order of bytes and channels is read whole or refused, and turned as its header says."""

import shutil
import statistics
import struct
import warnings
import zlib
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import BASELINE, checkpoint_file, cli_args_for
from PIL import Image
from torchvision.transforms import v2
from triplets import FIRST, catch_message, config, cut_short, image_folder

import demo_sdtps
from demo_sdtps.config import MODALITIES, UserError, load_cfg
from demo_sdtps.config.ranges import PERCENTILES, Range, read_ranges
from demo_sdtps.datasets import SPLITS, loaders, read_splits
from demo_sdtps.datasets.images import decode, to_8_bits, verify
from demo_sdtps.datasets.loaders import batches, image_scales, test_loader
from demo_sdtps.evaluation.protocol import data_name

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


def zero_bytes(path):
    path.write_bytes(b"")


def a_text(path):
    path.write_text("this is a text")


def head_alone(path):
    path.write_bytes(path.read_bytes()[:30])


def read(path, scale=SCALE):
    return decode(path, scale=scale, least=[1, 1]).permute(1, 2, 0).numpy()


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
        path = str(tmp_path / "image.jpg")  # and no JPEG, of which a smaller one is decoded
        actual = decode(path, scale=None, least=[1, 1]).permute(1, 2, 0).numpy()
    assert actual.dtype == np.uint8 and np.array_equal(actual, expected)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize(
    ("size", "orientation", "scale"),
    [((1100, 700), 1, 4), ((1100, 700), 6, 8), ((130, 250), 1, 1), ((60, 20), 8, 1)],
)
def test_jpegs_are_decoded_at_the_smallest_scale_that_suffices(
    tmp_path, monkeypatch, mode, size, orientation, scale
):
    """But for noise it is the whole image to the model, and the cache counts what it keeps."""
    least, path, exif = [128, 64], str(tmp_path / "x.jpg"), Image.Exif()
    exif[274] = orientation
    small = np.random.default_rng(1).integers(256, size=(5, 8, len(mode)), dtype=np.uint8)
    image = Image.fromarray(small.squeeze(), mode).resize(size, Image.Resampling.BICUBIC)
    image.save(path, exif=exif, quality=95)
    whole, actual = decode(path), decode(path, least=least)
    assert actual.shape[1:] == tuple(-(-side // scale) for side in whole.shape[1:])
    resized = [v2.functional.resize(each, least).float() for each in (whole, actual)]
    assert (resized[0] - resized[1]).abs().mean() < 2.5
    cfg = load_cfg(BASELINE, ["DATASETS.CACHE", "auto"])
    for less in (False, True):
        monkeypatch.setattr(loaders, "CACHE_LIMIT", actual.numel() - less)
        assert loaders.use_cache(cfg, [(path,)], least) is not less


def test_postscript_is_refused_for_which_pillow_would_run_ghostscript(tmp_path):
    path = tmp_path / "image.jpg"
    path.write_text(
        "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(executed) (w) file\n%%EOF\n"
    )
    assert "cannot identify" in catch_message(decode, str(path), "", None)


CELSIUS = Range(27315, 31315)
COUNTS = np.random.default_rng(0).normal(29500, 900, (32, 16)).clip(0, 65535).astype(np.uint16)


def slowly_scaled(values, scale):
    """Pixel by pixel; percentiles by interpolation between neighbours."""
    low, high = scale[:2]
    if scale.of_image:
        cuts = statistics.quantiles(values.flatten().tolist(), n=100, method="inclusive")
        low, high = cuts[round(low) - 1], cuts[round(high) - 1]
    scaled = [[255 * (value - low) / (high - low) for value in row] for row in values.tolist()]
    return torch.tensor([[[round(min(max(value, 0), 255)) for value in row] for row in scaled]] * 3)


@pytest.mark.parametrize("scale", [PERCENTILES, CELSIUS, Range(10, 90, True)], ids=str)
def test_more_than_8_bits_are_scaled_alike_from_files_and_arrays(tmp_path, scale):
    expected = slowly_scaled(COUNTS, scale)
    files = {"png": np.uint16, "tif": np.uint16, "float.tif": np.float32, "int.tif": np.int32}
    for ending, kind in files.items():
        Image.fromarray(COUNTS.astype(kind)).save(tmp_path / f"x.{ending}")
        assert torch.equal(decode(str(tmp_path / f"x.{ending}"), scale=scale).int(), expected)
    items = [COUNTS, COUNTS[..., None], COUNTS.astype(">u2"), torch.from_numpy(COUNTS)]
    for item in [*items, tmp_path / "x.float.tif"]:
        assert torch.equal(decode(item, scale=scale).int(), expected)
    with_gap = COUNTS.astype(np.float32)
    with_gap[3, 4] = np.nan
    Image.fromarray(with_gap).save(tmp_path / "gap.tif")
    assert not decode(str(tmp_path / "gap.tif"), scale=scale)[:, 3, 4].any()
    if scale == CELSIUS:
        assert torch.equal(decode(COUNTS.astype(float), scale=scale).int(), expected)
    else:
        for item in (COUNTS.astype(float), COUNTS.astype(np.uint32)):
            assert "INPUT.RANGES states" in catch_message(partial(decode, scale=scale), item)
    grey = np.uint8(COUNTS >> 8)  # 8 bits are not scaled
    assert torch.equal(decode(grey, scale=scale)[0], torch.from_numpy(grey))


@pytest.mark.parametrize("name", ["Folder", "CSV", "Images", "RGBNT201", "MSVR310"])
def test_published_images_alone_are_read_as_they_are_stored(name):
    scales = image_scales(load_cfg(BASELINE, ["DATASETS.NAMES", name]))
    is_own = name in ("Folder", "CSV", "Images")
    assert scales == dict.fromkeys(MODALITIES, PERCENTILES if is_own else None)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_a_damaged_header_does_not_matter(tmp_path):
    Image.new("RGB", (6, 9)).save(tmp_path / "x.jpg", exif=b"Exif\0\0MM\0*nonsense")
    assert decode(str(tmp_path / "x.jpg")).shape == (3, 9, 6)


@pytest.fixture
def own(tiny_root, tmp_path):
    """Own folders of the pictures of `tiny_root`, the thermal ones with 16 bits."""
    for split, source in zip(SPLITS, ("train_171", "test", "test"), strict=True):
        for name in MODALITIES:
            folder = tmp_path / "my_data" / split / name
            shutil.copytree(tiny_root / "RGBNT201" / source / name, folder)
    for path in (tmp_path / "my_data").glob("*/TI/*.jpg"):
        grey = np.asarray(Image.open(path).convert("L"))
        Image.fromarray(np.uint16(29000 + 8 * grey.astype(int))).save(path.with_suffix(".png"))
        path.unlink()
    return tmp_path / "my_data"


def own_words(own, *more):
    return cli_args_for(own, "DATASETS.NAMES", "Folder", *more, config=BASELINE)


def test_the_model_scales_features_as_its_data_were(own, tmp_path):
    """By the range that its checkpoint has, for images of the loader of its data and for arrays."""
    words = own_words(own, "INPUT.RANGES", "[TI=29000:31040]")
    cfg = load_cfg(words[1], words[2:])
    samples = read_splits(cfg)["gallery"][:3]
    images = next(batches(test_loader(cfg, samples))).images
    arrays = [np.asarray(Image.open(sample.paths[2])) for sample in samples]
    expected = torch.stack([torch.from_numpy((array - 29000.0) / 2040) for array in arrays])
    assert (images["TI"][:, 0] / 2 + 0.5 - expected).abs().max() < 1e-6
    reid = demo_sdtps.load(checkpoint_file(tmp_path / "w.pth", cfg), "MODEL.DEVICE", "cpu")
    paths = [sample.paths[2] for sample in samples]
    features = reid.features(ti=arrays)
    assert np.array_equal(features, reid.features(ti=paths))
    assert (
        np.abs(features.values - reid.features(ti=[array - 50 for array in arrays]).values).max()
        > 1e-3
    )
    assert read_ranges(reid.cfg) | {"TI": 0} == {"RGB": PERCENTILES, "NI": PERCENTILES, "TI": 0}


@pytest.mark.parametrize("entry", ["TI=5:5", "TI=9", "IR=1:2", "TI=1%:9", "TI=1%:101%", 3])
def test_a_range_is_stated_in_one_way(entry):
    with pytest.raises(UserError, match=r"INPUT\.RANGES .* such as TI=27315:31315"):
        load_cfg(None, ["INPUT.RANGES", f"[{entry}]"])


def test_the_data_have_their_name_whatever_they_are_read_as(own, tiny_root):
    for root, name, expected in (
        (tiny_root, "Synthetic", "synthetic pedestrians of python -m synthetic"),
        (tiny_root, "RGBNT201", "synthetic pedestrians of python -m synthetic"),
        (own, "Folder", "own images, my_data"),
        (own, "RGBNT201", "RGBNT201"),
    ):
        words = [*own_words(root), "DATASETS.NAMES", name]
        assert data_name(load_cfg(BASELINE, words[2:])) == expected
