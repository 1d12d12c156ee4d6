"""Own images: turned as their headers say, more than 8 bits scaled (INPUT.RANGES), and warnings of what tells little."""

import shutil
import statistics
from functools import partial

import numpy as np
import pytest
import torch
from commands import BASELINE, checkpoint_file, cli_args_for
from PIL import ExifTags, Image
from triplets import catch_message

import demo_sdtps
from demo_sdtps.config import MODALITIES, UserError, load_cfg
from demo_sdtps.config.ranges import PERCENTILES, Range, read_ranges
from demo_sdtps.datasets import SPLITS, data_name, read_splits
from demo_sdtps.datasets.images import decode
from demo_sdtps.datasets.loaders import batches, image_scales, test_loader

CELSIUS = Range(27315, 31315)
COUNTS = np.random.default_rng(0).normal(29500, 900, (32, 16)).clip(0, 65535).astype(np.uint16)
TURNS = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: np.rot90,
}
"""The picture of stored pixels, by the orientation of the header."""


def slowly_scaled(values, scale):
    """Pixel by pixel; percentiles by interpolation between neighbours."""
    low, high = scale[:2]
    if scale.of_image:
        cuts = statistics.quantiles(values.flatten().tolist(), n=100, method="inclusive")
        low, high = cuts[round(low) - 1], cuts[round(high) - 1]
    scaled = [[255 * (value - low) / (high - low) for value in row] for row in values.tolist()]
    return torch.tensor([[[round(min(max(value, 0), 255)) for value in row] for row in scaled]] * 3)


def header(orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


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
