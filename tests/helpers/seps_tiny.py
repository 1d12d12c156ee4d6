"""A tiny SEPS on tiny synthetic shapes: the words of its commands, and its runs in this process."""

import json
import shlex

import torch
import transformers
from commands import ROOT, call
from numeric import shift_seed
from tiny import ENCODER, WIDTH

from demo_sdtps.config import load_cfg
from seps import __main__ as seps
from seps.schema import SEPS_SCHEMA

CONFIG = ROOT / "configs" / "SEPS" / "shapes.yml"
SIZES = {"train": 12, "dev": 6, "test": 8}
CAPTIONS = 2
"""Of each image."""
SEED = shift_seed(1111)
WORDS, TOKENS = 128, 16
BERT = (WIDTH, WIDTH, 32, WORDS, WORDS, WIDTH, WIDTH, WIDTH, 2 * WIDTH)
NETWORK = (*4 * (16, TOKENS), WORDS, 16, TOKENS, 5, 10)
PATH = (*ENCODER, WIDTH, *2 * BERT, WIDTH, WIDTH, *NETWORK)
"""Lengths of the sums from images and captions to similarities: test_vit, the blocks and the norm of the BERT of up to WORDS
words, projections, and the network's cosines, scores, weights, means and relevance of TOKENS patches of 16 numbers."""
SMALL = shlex.split(
    "MODEL.TRANSFORMER_TYPE test_vit MODEL.PATCH_SIZE 8 MODEL.EMBED_SIZE 16 INPUT.SIZE '[32,32]' "
    "SOLVER.IMS_PER_BATCH 8 SOLVER.MAX_EPOCHS 3 SOLVER.STEPS '(1,2)' SOLVER.EVAL_PERIOD 1 "
    "SOLVER.ALL_NEGATIVES_EPOCHS 1 DATALOADER.NUM_WORKERS 0 MODEL.DEVICE cpu SOLVER.AMP off "
    f"TEST.IMS_PER_BATCH 5 SOLVER.SEED {SEED}"
)


def cli_args_for(root, *more):
    """A command's words for the data in `root`."""
    data = ("DATASETS.ROOT_DIR", root, "MODEL.TEXT_TOWER", root / "shapes" / "bert")
    return ["--config_file", *map(str, (CONFIG, *data, *SMALL, *more))]


def cfg_for(root, *more):
    return load_cfg(CONFIG, cli_args_for(root, *more)[2:], SEPS_SCHEMA)


def train(root, output, *more):
    """Train SEPS: → the folder of the run."""
    words = cli_args_for(root, "OUTPUT_DIR", output, *more)
    assert call(words, seps.train) == 0
    return output


def save_bert(folder, **changed):
    """A tiny BERT with random weights, as save_pretrained leaves it."""
    torch.manual_seed(shift_seed(5))
    sizes = {"vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 64, **changed}
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "blue", "star"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
