"""RGBNT100: one image per triplet, cut into three where it is decoded."""
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import CONFIG, cli_args_for
from layouts import SIDE_BY_SIDE, pixels, save, write_rgbnt100
from numeric import assert_close
from PIL import Image
from triplets import PLAIN, SCALED, config, cut_short, message_of, normalised

from demo_sdtps.config import load_cfg
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.images import decode_all, decode_triplet, verify
from demo_sdtps.datasets.loaders import ImageDataset, batches, test_loader, train_loader
from demo_sdtps.datasets.transforms import Each, test_transform
from demo_sdtps.modeling import make_model
from demo_sdtps.reports import figures
from demo_sdtps.tools import draw_ranks

NAME = ("DATASETS.NAMES", "RGBNT100")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("rgbnt100")
    write_rgbnt100(root)
    return root


@pytest.fixture
def own(tmp_path):
    """A copy that a test may damage: its root and its samples."""
    return tmp_path, write_rgbnt100(tmp_path)


def parts_of(path):
    """The image's three parts as PIL and numpy see them, (256, 128) each."""
    with Image.open(path) as image:
        whole = np.asarray(image.convert("RGB"))
    return [torch.from_numpy(whole[:, start:start + 256].copy()).permute(2, 0, 1) for start in (0, 256, 512)]


def test_the_three_parts_of_an_image_are_its_modalities(root):
    samples = read_splits(config(root, *NAME), ("gallery",))["gallery"]
    for sample in samples:
        found = decode_triplet(sample.paths)
        assert [(part.dtype, tuple(part.shape)) for part in found] == [(torch.uint8, (3, 128, 256))] * 3
        assert all(torch.equal(part, expected) for part, expected in zip(found, parts_of(sample.paths[0]), strict=True))
    for number, part in enumerate(decode_triplet(samples[0].paths)):
        written = torch.from_numpy(pixels(2, 201, ("RGB", "NI", "TI")[number], 256, 128)).permute(2, 0, 1)
        assert (part.int() - written.int()).abs().float().mean() < 3  # JPEG
    paths = [sample.paths for sample in samples]
    assert all(torch.equal(ours, theirs) for triplet, (path,) in zip(decode_all(paths), paths, strict=True)
               for ours, theirs in zip(triplet, parts_of(path), strict=True))


@pytest.mark.parametrize("cache", ["yes", "no"])
def test_batches_hold_the_three_parts(root, cache):
    cfg = config(root, *NAME, "INPUT.SIZE_TRAIN", "[128, 256]", "INPUT.SIZE_TEST", "[128, 256]", "DATASETS.CACHE", cache)
    samples = read_splits(cfg, ("query",))["query"]
    images, labels, cameras = zip(*batches(test_loader(cfg, samples)), strict=True)
    assert torch.cat(labels).tolist() == [sample.identity for sample in samples]
    assert torch.cat(cameras).tolist() == [sample.camera for sample in samples]
    for number, modality in enumerate(("RGB", "NI", "TI")):
        expected = torch.stack([parts_of(sample.paths[0])[number] for sample in samples])
        assert_close(torch.cat([image[modality] for image in images]), normalised(expected), *SCALED)


def test_resizing_a_part_is_resizing_it_alone(root):
    """No pixel of a neighbour comes in over the edge."""
    cfg = config(root, *NAME, *PLAIN)
    sample = read_splits(cfg, ("query",))["query"][0]
    images = ImageDataset([sample.paths], [(0, 0)], Each(test_transform(cfg)), cache=False)[0][0]
    for image, part in zip(images, parts_of(sample.paths[0]), strict=True):
        assert torch.equal(image, test_transform(cfg)(part))


def test_junk_is_left_out_of_every_split_whatever_its_width(own):
    root, expected = own
    for split, size in (("bounding_box_train", SIDE_BY_SIDE), ("query", SIDE_BY_SIDE), ("bounding_box_test", (8, 8))):
        save(root / "RGBNT100" / "rgbir" / split / "-1_c2_0007.jpg", pixels(99, 1, "NI", *size))
    assert read_splits(config(root, *NAME)) == expected


@pytest.mark.parametrize("width", [256, 767, 769])
def test_an_image_that_is_not_three_side_by_side_is_reported(tmp_path, width):
    save(tmp_path / "0001_c1.jpg", np.zeros((128, width, 3), np.uint8))
    message = message_of(decode_triplet, (str(tmp_path / "0001_c1.jpg"),))
    assert f"0001_c1.jpg is {width} pixels wide, but it must hold RGB, NI, TI side by side" in message


def test_what_only_decoding_finds_is_left_to_verify(own):
    root, expected = own
    damaged = [Path(expected["train"][number].paths[0]) for number in (3, 11)]
    for path in damaged:
        cut_short(path)
    samples = read_splits(config(root, *NAME), ("train",))["train"]
    said = message_of(verify, [path for sample in samples for path in sample.paths])
    assert said.startswith("2 of 30 images") and all(str(path) in said for path in damaged)
    for make, cache in ((train_loader, "yes"), (test_loader, "yes"), (test_loader, "no")):
        cfg = config(root, *NAME, "DATASETS.CACHE", cache)
        assert f"The image {damaged[0]} cannot be read" in message_of(lambda: list(batches(make(cfg, samples))))  # noqa: B023


def test_the_three_parts_are_drawn(root, tmp_path, command):
    large = config(root, *NAME, "INPUT.SIZE_TRAIN", "[128, 256]", "INPUT.SIZE_TEST", "[128, 256]")
    sample = read_splits(large, ("query",))["query"][2]
    for drawn, part in zip(figures.images(large, sample), parts_of(sample.paths[0]), strict=True):
        assert np.array_equal(drawn, part.permute(1, 2, 0).numpy())

    words, path = cli_args_for(root, *NAME), tmp_path / "ranks.png"
    torch.save({"model": make_model(load_cfg(CONFIG, words[2:]), 5, 8).state_dict()}, tmp_path / "w.pth")
    code, stdout, stderr = command(draw_ranks.main, *words, "--weight", tmp_path / "w.pth", "--output", path, "--queries", "2")
    assert code == 0 and stdout.strip() == str(path), stderr
    with Image.open(path) as image:
        assert np.asarray(image.convert("L")).std() > 10
