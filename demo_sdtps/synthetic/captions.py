"""Images of coloured shapes with captions, and a tiny BERT with their vocabulary, in the layout of image-text data sets."""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

from demo_sdtps.runtime.progress import progress
from demo_sdtps.seps.captions import IMAGES, MAPPING
from demo_sdtps.synthetic import shapes

TEXT_TOWER = "bert"
# each split and the flag of its number of images
SPLIT_SIZES = {"train": "images", "dev": "dev_images", "test": "test_images"}
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
TOKENIZER = {
    "tokenizer_class": "BertTokenizer",
    "do_lower_case": True,
    "model_max_length": BERT["max_position_embeddings"],
}


def write_captioned(folder: Path, options: argparse.Namespace) -> None:
    """Write images and captions of all splits, and the text tower."""
    (folder / IMAGES).mkdir()
    mapping: dict[str, str] = {}
    for number, (split, flag) in enumerate(SPLIT_SIZES.items()):
        captions, ids, dense = [], [], []
        for index in progress(range(getattr(options, flag)), f"drawing {split}", unit="image"):
            rng = np.random.default_rng([options.seed, number, index])
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
    write_text(folder / MAPPING, json.dumps(mapping, indent=0))
    write_tower(folder / TEXT_TOWER, options.seed)


def write_text(file: Path, text: str) -> None:
    """Write the text and a line break; the bytes are the same on every system."""
    file.write_text(text + "\n", encoding="utf-8", newline="\n")


def write_tower(folder: Path, seed: int) -> None:
    """Write a tiny BERT with random weights and a tokenizer with the vocabulary of the captions."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder.mkdir()
    vocabulary = (*SPECIAL, *shapes.CAPTION_WORDS)
    write_text(folder / "vocab.txt", "\n".join(vocabulary))
    # Every release of transformers makes a tokenizer of these two files; the constructors differ between releases.
    write_text(folder / "tokenizer_config.json", json.dumps(TOKENIZER))
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tower = BertModel(BertConfig.from_dict({"vocab_size": len(vocabulary), **BERT}))
    tower.config.save_pretrained(folder)
    # Same file as the model's save_pretrained, without its progress bar.
    save_file(tower.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
