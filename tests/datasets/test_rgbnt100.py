"""RGBNT100: one image per triplet, cut into three where it is decoded."""

import shlex

import numpy as np
import pytest
import torch
from layouts import write_rgbnt100
from numeric import assert_close
from PIL import Image
from triplets import SCALED, config, normalise

from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.loaders import batches, test_loader

NAME = ("DATASETS.NAMES", "RGBNT100")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("rgbnt100")
    write_rgbnt100(root)
    return root


def read_parts(path):
    """The image's three parts as PIL and numpy see them, (256, 128) each."""
    with Image.open(path) as image:
        whole = np.asarray(image.convert("RGB"))
    return [
        torch.from_numpy(whole[:, start : start + 256].copy()).permute(2, 0, 1)
        for start in (0, 256, 512)
    ]


@pytest.mark.parametrize("cache", ["yes", "no"])
def test_batches_hold_the_three_parts(root, cache):
    cfg = config(
        root,
        *NAME,
        *shlex.split("INPUT.SIZE_TRAIN [128,256] INPUT.SIZE_TEST [128,256] DATASETS.CACHE"),
        cache,
    )
    samples = read_splits(cfg, ("query",))["query"]
    images = [batch.images for batch in batches(test_loader(cfg, samples))]
    for number, modality in enumerate(("RGB", "NI", "TI")):
        expected = torch.stack([read_parts(sample.paths[0])[number] for sample in samples])
        actual = torch.cat([batch[modality] for batch in images])
        assert_close(actual, normalise(expected), *SCALED)
