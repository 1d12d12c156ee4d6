"""Write a synthetic image-text data set: images of coloured shapes, captions, long captions, and a tiny text tower.

    python tools/make_synthetic_captions.py --root data
"""
if not __package__:  # run as a script: of its checkout demo_sdtps alone is found, no folder under its common name
    import sys
    from pathlib import Path

    ROOT = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(ROOT))
    import demo_sdtps  # noqa: F401

    sys.path[:] = [folder for folder in sys.path if folder not in (str(ROOT), str(Path(__file__).resolve().parent))]

import argparse
import json
import signal
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import run
from demo_sdtps.config.progress import progress
from demo_sdtps.seps.image_text import IMAGES, MAPPING
from demo_sdtps.synthetic.folder import check_free, marker_of, written_folder
from demo_sdtps.synthetic.shapes import (
    MINIMUM_SIZE,
    VERSION,
    VOCABULARY,
    draw_scene,
    long_caption,
    random_scene,
    short_captions,
)

FOLDER, TOWER = "shapes", "bert"
SPLITS = {"train": "images", "dev": "dev_images", "test": "test_images"}
"""Each split and the argument that says how many images it has."""
MOST_CAPTIONS = 20  # a scene of two shapes has not many more sentences to it
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
        "max_position_embeddings": 128, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description="Write images of coloured shapes with short and long captions, in the files of image-text matching, and "
                    "a tiny BERT with random weights that knows their words. The same arguments give the same images and "
                    "texts, byte for byte.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--root", required=True, type=Path, help=f"folder that will hold {FOLDER}/", metavar="DIR",
                      default=argparse.SUPPRESS)
    made.add_argument("--images", type=int, default=800, metavar="N", help="images to train on")
    made.add_argument("--dev_images", type=int, default=100, metavar="N", help="others, to choose an epoch by")
    made.add_argument("--test_images", type=int, default=200, metavar="N", help="others, to test on")
    made.add_argument("--captions", type=int, default=5, metavar="N", help="short captions of each image")
    made.add_argument("--size", type=int, default=64, metavar="PIXELS", help="height and width of the images")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="another seed gives other images and captions")
    made.add_argument("--overwrite", action="store_true",
                      help=f"replace DIR/{FOLDER} if this tool made it; anything else there is left alone")
    return made


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    check(options)
    target = options.root / FOLDER
    # Everything that decides what is in the files, and nothing else.
    recipe = {"version": VERSION, "tower": BERT, "arguments": {name: getattr(options, name) for name in (
        *SPLITS.values(), "captions", "size", "seed")}}
    if is_up_to_date(target, recipe):
        print(f"{target} is up to date: it was made with these arguments, nothing was written.")
        return
    check_free(target, options.overwrite)
    write(target, recipe, options)
    print(f"Wrote {options.images} training, {options.dev_images} dev and {options.test_images} test images of "
          f"{options.size}x{options.size} pixels, {options.captions} captions and a long one each, and a text tower, to "
          f"{target}\n"
          f"To train on it, give DATASETS.ROOT_DIR {options.root} DATASETS.NAMES {FOLDER} MODEL.TEXT_TOWER {target / TOWER}")


def check(options: argparse.Namespace) -> None:
    """Raise UserError for a number that cannot be drawn."""
    # Matching needs another image to be told from.
    leasts = {**dict.fromkeys(SPLITS.values(), 2), "captions": 1, "size": MINIMUM_SIZE, "seed": 0}
    for name, least in leasts.items():
        if getattr(options, name) < least:
            raise UserError(f"--{name} is {getattr(options, name)}; it must be {least} or more.")
    if options.captions > MOST_CAPTIONS:
        raise UserError(f"--captions is {options.captions}; a scene has {MOST_CAPTIONS} at most.")


def is_up_to_date(target: Path, recipe: dict) -> bool:
    """Whether this tool made `target` by this recipe and no file has gone since."""
    marker = marker_of(target, recipe)
    return (marker is not None and all((target / name).is_file() for name in marker.get("files", ()))
            and len(list((target / IMAGES).glob("*"))) == sum(marker["arguments"][name] for name in SPLITS.values()))


def write(target: Path, recipe: dict, options: argparse.Namespace) -> None:
    """Draw and write everything into a folder that takes the place of `target` when it is complete."""
    with written_folder(target) as (fresh, marker):
        (fresh / IMAGES).mkdir()
        mapping: dict[str, str] = {}
        for place, (split, argument) in enumerate(SPLITS.items()):
            write_split(fresh, split, [options.seed, place], getattr(options, argument), mapping, options)
        write_text(fresh / MAPPING, json.dumps(mapping, indent=0))
        write_tower(fresh / TOWER, options.seed)
        files = sorted(str(path.relative_to(fresh)) for path in fresh.rglob("*") if path.is_file() and path.suffix != ".jpg")
        marker.update(recipe, files=files)


def write_split(folder: Path, split: str, seed: list[int], count: int, mapping: dict[str, str],
                options: argparse.Namespace) -> None:
    """Draw the images of a split, write its captions, and enter its images into `mapping`."""
    captions, ids, dense = [], [], []
    for index in progress(range(count), f"drawing {split}", unit="image"):
        rng = np.random.default_rng([*seed, index])
        scene = random_scene(rng)
        image_id = str(len(mapping))
        mapping[image_id] = f"{split}_{index:06d}.jpg"
        image = Image.fromarray(draw_scene(scene, options.size, rng))
        # Colours in full: halved, as is usual, the edges of small shapes would lose theirs.
        image.save(folder / IMAGES / mapping[image_id], quality=92, subsampling=0)
        captions += short_captions(scene, options.captions, rng)
        ids.append(image_id)
        dense.append(json.dumps({"id": image_id, "caption": long_caption(scene)}))
    for name, lines in (("caps.txt", captions), ("ids.txt", ids), ("dense.jsonl", dense)):
        write_text(folder / f"{split}_{name}", "\n".join(lines))


def write_text(file: Path, text: str) -> None:
    """The text and a line break, the same bytes on every system."""
    file.write_text(text + "\n", encoding="utf-8", newline="\n")


def write_tower(folder: Path, seed: int) -> None:
    """A tiny BERT with random weights and its tokenizer, which knows the words of the captions."""
    try:
        import torch
        from safetensors.torch import save_file
        from transformers import AutoTokenizer, BertConfig, BertModel
    except ImportError:
        raise UserError("The text tower needs the package transformers, which is not installed; pip install '.[seps]'."
                        ) from None
    folder.mkdir()
    words = (*SPECIAL, *VOCABULARY)
    write_text(folder / "vocab.txt", "\n".join(words))
    # What makes a tokenizer of vocab.txt in every release of transformers; constructors differ between them.
    write_text(folder / "tokenizer_config.json", json.dumps({
        "tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": BERT["max_position_embeddings"]}))
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tower = BertModel(BertConfig(vocab_size=len(words), **BERT))
    tower.config.save_pretrained(folder)
    # As the model's own save_pretrained does, which shows a progress bar for it.
    save_file(tower.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an orderly exit removes the temporary folder
    run(main)
