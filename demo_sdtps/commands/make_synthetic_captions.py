"""Write synthetic images with captions and a tiny text tower: python tools/make_synthetic_captions.py --root data"""

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from demo_sdtps.config import cli
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.progress import progress
from demo_sdtps.seps.image_text import IMAGES, MAPPING
from demo_sdtps.synthetic import shapes
from demo_sdtps.synthetic.folder import Number, make_data_set, parse_flags

FOLDER, TOWER = "shapes", "bert"
# each split and the flag of its number of images
SPLIT_SIZES = {"train": "images", "dev": "dev_images", "test": "test_images"}
CAPTION_FLAGS = (
    # Matching needs at least one other image.
    Number("images", 800, "images of the training split", least=2),
    Number("dev_images", 100, "other images, of the dev split", least=2),
    Number("test_images", 200, "other images, of the test split", least=2),
    # A scene of two shapes has few more.
    Number("captions", 5, "short captions of each image, at most 20", most=20),
    Number("size", 64, "height and width of the images", shapes.MINIMUM_SIDE, metavar="PIXELS"),
    Number("seed", 0, "another seed gives other images and captions", least=0),
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def main(arguments: list[str] | None = None) -> None:
    options = parse_flags(
        arguments,
        "Write images of coloured shapes with short and long captions, in the layout of "
        "image-text data sets, and a tiny BERT with random weights and their vocabulary.",
        FOLDER,
        CAPTION_FLAGS,
    )
    target = options.root / FOLDER
    recipe = {
        "version": shapes.SHAPES_VERSION,
        "tower": BERT,
        "arguments": {number.name: getattr(options, number.name) for number in CAPTION_FLAGS},
    }
    if not make_data_set(target, recipe, options.overwrite, partial(write, options=options)):
        return
    cli.print_lines(
        f"Wrote {options.images} training, {options.dev_images} dev and {options.test_images} test images of "
        f"{options.size}x{options.size} pixels, {options.captions} captions and a long one each, and a text tower, to "
        f"{target}",
        f"To train on it, give DATASETS.ROOT_DIR {options.root} DATASETS.NAMES {FOLDER} MODEL.TEXT_TOWER "
        f"{target / TOWER}",
    )


def write(folder: Path, options: argparse.Namespace) -> None:
    """Write all splits and the text tower."""
    (folder / IMAGES).mkdir()
    mapping: dict[str, str] = {}
    for index, split in enumerate(SPLIT_SIZES):
        write_split(folder, split, [options.seed, index], mapping, options)
    write_text(folder / MAPPING, json.dumps(mapping, indent=0))
    write_tower(folder / TOWER, options.seed)


def write_split(
    folder: Path, split: str, seed: list[int], mapping: dict[str, str], options: argparse.Namespace
) -> None:
    """Draw the images of a split, write its captions, and add its images to `mapping`."""
    captions, ids, dense = [], [], []
    for index in progress(
        range(getattr(options, SPLIT_SIZES[split])), f"drawing {split}", unit="image"
    ):
        rng = np.random.default_rng([*seed, index])
        scene = shapes.random_scene(rng)
        image_id = str(len(mapping))
        mapping[image_id] = f"{split}_{index:06d}.jpg"
        image = Image.fromarray(shapes.draw_scene(scene, options.size, rng))
        # The usual chroma subsampling would blur the edges of small shapes.
        image.save(folder / IMAGES / mapping[image_id], quality=92, subsampling=0)
        captions += shapes.short_captions(scene, options.captions, rng)
        ids.append(image_id)
        dense.append(json.dumps({"id": image_id, "caption": shapes.long_caption(scene)}))
    for name, lines in (("caps.txt", captions), ("ids.txt", ids), ("dense.jsonl", dense)):
        write_text(folder / f"{split}_{name}", "\n".join(lines))


def write_text(file: Path, text: str) -> None:
    """Write the text and a line break; the bytes are the same on every system."""
    file.write_text(text + "\n", encoding="utf-8", newline="\n")


def write_tower(folder: Path, seed: int) -> None:
    """Write a tiny BERT with random weights and a tokenizer with the vocabulary of the captions."""
    check_extra("The text tower", "seps", {"transformers": "transformers"})
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder.mkdir()
    vocabulary = (*SPECIAL, *shapes.CAPTION_WORDS)
    write_text(folder / "vocab.txt", "\n".join(vocabulary))
    # Every release of transformers makes a tokenizer of these two files; the constructors differ between releases.
    write_text(
        folder / "tokenizer_config.json",
        json.dumps(
            {
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": True,
                "model_max_length": BERT["max_position_embeddings"],
            }
        ),
    )
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tower = BertModel(BertConfig.from_dict({"vocab_size": len(vocabulary), **BERT}))
    tower.config.save_pretrained(folder)
    # Same file as the model's save_pretrained, without its progress bar.
    save_file(tower.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
