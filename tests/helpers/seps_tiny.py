"""A tiny SEPS on tiny synthetic shapes: the words of its commands, and its runs in this process."""

import sys
from unittest import mock

from commands import ROOT
from numeric import seeded, tolerance
from tiny import ENCODER, WIDTH

from demo_sdtps.commands import train_seps
from demo_sdtps.config import load_cfg
from demo_sdtps.config.cli import run
from demo_sdtps.seps.schema import SEPS_SCHEMA

CONFIG = ROOT / "configs" / "SEPS" / "shapes.yml"
SIZES = {"train": 12, "dev": 6, "test": 8}
CAPTIONS = 2
"""Of each image."""
SEED = seeded(1111)
WORDS, TOKENS = 128, 16
PATH = (
    *ENCODER,
    WIDTH,
    *2 * (WIDTH, WIDTH, 32, WORDS, WORDS, WIDTH, WIDTH, WIDTH, 2 * WIDTH),
    WIDTH,
    WIDTH,
    *4 * (16, TOKENS),
    WORDS,
    16,
    TOKENS,
    5,
    10,
)
"""Lengths of the sums from images and captions to similarities: test_vit, the blocks and the norm of the BERT of up to WORDS
words, projections, and the network's cosines, scores, weights, means and relevance of TOKENS patches of 16 numbers."""
SMALL = (
    "MODEL.TRANSFORMER_TYPE",
    "test_vit",
    "MODEL.PATCH_SIZE",
    "8",
    "MODEL.EMBED_SIZE",
    "16",
    "INPUT.SIZE",
    "[32,32]",
    "SOLVER.IMS_PER_BATCH",
    "8",
    "SOLVER.MAX_EPOCHS",
    "3",
    "SOLVER.STEPS",
    "(1,2)",
    "SOLVER.EVAL_PERIOD",
    "1",
    "SOLVER.ALL_NEGATIVES_EPOCHS",
    "1",
    "SOLVER.SEED",
    str(SEED),
    "DATALOADER.NUM_WORKERS",
    "0",
    "MODEL.DEVICE",
    "cpu",
    "SOLVER.AMP",
    "off",
    "TEST.IMS_PER_BATCH",
    "5",
)


def cli_args_for(root, *more):
    """A command's words for the data in `root`."""
    return [
        "--config_file",
        str(CONFIG),
        "DATASETS.ROOT_DIR",
        str(root),
        "MODEL.TEXT_TOWER",
        str(root / "shapes" / "bert"),
        *SMALL,
        *map(str, more),
    ]


def cfg_for(root, *more):
    return load_cfg(CONFIG, cli_args_for(root, *more)[2:], SEPS_SCHEMA)


def assert_similar(found, expected, margins):
    """Similarities of two computations differ by roundings, but for as many pairs as have patches whose choice is not clear,
    by the `margins` (choices.py) of one."""
    allowed = tolerance(*PATH, *PATH)
    differ = (found.double() - expected.double()).abs() > allowed * float(expected.abs().max())
    assert differ.sum() <= sum(margin <= allowed for margin in margins)


def train(root, output, *more):
    """Call train_seps.py: → the folder of the run."""
    with mock.patch.object(
        sys, "argv", ["train_seps.py", *cli_args_for(root, "OUTPUT_DIR", output, *more)]
    ):
        run(train_seps.main)
    return output
