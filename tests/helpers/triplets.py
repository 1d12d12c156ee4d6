"""What the tests of the data share: the tiny data set, its configuration and ways to damage it."""

import random
import shlex
from pathlib import Path

import torch
from numeric import generator

from demo_sdtps.config import UserError, load_cfg

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "Synthetic" / "DeMo_SDTPS.yml"
SIZE = ["INPUT.SIZE_TRAIN", "[32, 16]", "INPUT.SIZE_TEST", "[32, 16]"]
PLAIN = ["INPUT.PROB", "0.0", "INPUT.PADDING", "0", "INPUT.RE_PROB", "0.0"]
FIRST = "000001_cam1_0_00.jpg"


def config(root, *opts):
    return load_cfg(
        CONFIG,
        [
            "DATASETS.ROOT_DIR",
            str(root),
            *SIZE,
            *shlex.split(
                "MODEL.STRIDE_SIZE '[4, 4]' SOLVER.IMS_PER_BATCH 8 DATALOADER.NUM_WORKERS 0"
            ),
            *opts,
        ],
    )


def catch_message(call, *arguments):
    """The sentence of the `UserError` that a call must raise. Not by pytest.raises, which keeps the error's frames, and so
    the loading processes."""
    try:
        call(*arguments)
    except UserError as error:
        assert type(error) is UserError
        return str(error)
    raise AssertionError("no error")


def image_folder(root, split="train_171", modality="RGB"):
    return root / "RGBNT201" / split / modality


def zero_bytes(path):
    path.write_bytes(b"")


def a_text(path):
    path.write_text("this is a text")


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-200])


def head_alone(path):
    path.write_bytes(path.read_bytes()[:30])


def draw_epoch(sampler, epoch):
    sampler.epoch = epoch
    return list(sampler)


def random_image(height=32, width=16, seed=0):
    return torch.randint(256, (3, height, width), dtype=torch.uint8, generator=generator(seed))


SCALED = (1, 1, 1)
"""The roundings of a normalised pixel (tests/helpers/numeric.py)."""


def normalise(image):
    """A uint8 image with values from -1 to 1, in float64."""
    return (image.double() / 255 - 0.5) / 0.5


def states():
    return torch.get_rng_state(), random.getstate()
