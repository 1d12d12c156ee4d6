"""The data of image-text matching: files and mistakes in them, crops, and batches of captions (see also test_loaders.py)."""

import json
import random
from collections import Counter
from itertools import chain

import pytest
import seps_tiny
import torch
from numeric import assert_close, shift_seed
from seps_tiny import SIZES
from triplets import SCALED, catch_message, normalise

from demo_sdtps.datasets.images import decode
from seps.captions import (
    CropTransform,
    ImageTexts,
    caption_batches,
    caption_loader,
    encode_captions,
    image_loader,
    read_image_texts,
)
from seps.model import load_tokenizer

IDS = ("7", "cat", "40")
CAPTIONS = tuple(f"caption {number} of {image}" for image in IDS for number in (1, 2))
DENSE = {image: f"all that {image} shows" for image in IDS}
MAPPING = {"7": "seven.jpg", "cat": "deep/er/cat.jpg", "40": "forty.png", "unused": "gone.jpg"}


def write_data(root, ids=IDS, captions=CAPTIONS):
    """A data set "set" of three images with two captions each."""
    folder = root / "set"
    for image in ("seven.jpg", "deep/er/cat.jpg", "forty.png"):
        path = folder / "images" / image
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not decoded by the reader")
    (folder / "id_mapping.json").write_text(json.dumps(MAPPING))
    dense = [json.dumps({"id": image, "caption": DENSE[image]}) for image in reversed(IDS)]
    texts = {"train_caps.txt": captions, "train_ids.txt": ids, "train_dense.jsonl": dense}
    for file, lines in texts.items():
        (folder / file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def read(root, **options):
    return read_image_texts(root, "set", "train", **options)


@pytest.mark.parametrize(
    ("ids", "image_of"),
    [(IDS, (0, 0, 1, 1, 2, 2)), (("7", "cat", "7", "40", "40", "cat"), (0, 1, 0, 2, 2, 1))],
    ids=["an id for each image", "an id for each caption"],
)
def test_images_are_numbered_by_their_ids(tmp_path, ids, image_of):
    folder = write_data(tmp_path, ids=ids)
    paths = tuple(str(folder / "images" / MAPPING[image]) for image in IDS)
    assert read(tmp_path) == ImageTexts(
        paths, CAPTIONS, image_of, tuple(DENSE[image] for image in IDS)
    )


def test_long_captions_where_wanted(tmp_path):
    write_data(tmp_path)
    assert read(tmp_path, long_captions="yes") == read(tmp_path)
    assert read(tmp_path, long_captions="no").long_captions is None
    (tmp_path / "set" / "train_dense.jsonl").unlink()
    assert read(tmp_path).long_captions is None
    message = catch_message(lambda: read(tmp_path, long_captions="yes"))
    assert str(tmp_path / "set" / "train_dense.jsonl") in message and "missing" in message


def test_texts_are_unicode_and_lines_end_at_line_breaks_alone(tmp_path):
    captions = ("Zwei Hunde – ein Stöckchen", "a\u2028b", "c\x0bd", "e\x85f", "猫", "g h")
    folder = write_data(tmp_path, captions=captions)
    assert read(tmp_path).captions == captions
    (folder / "train_caps.txt").write_bytes(("\ufeff" + "\r\n".join((*captions, ""))).encode())
    assert read(tmp_path).captions == captions


@pytest.mark.parametrize(
    ("file", "lines", "reason"),
    [
        ("train_caps.txt", (*CAPTIONS[:3], " \t", *CAPTIONS[4:]), ", line 4"),
        ("images/deep/er/cat.jpg", None, ""),
        ("train_caps.txt", "a" * 7, ""),
        ("train_dense.jsonl", ['{"id": "dog", "caption": "x"}'], ""),
        ("id_mapping.json", ["[]"], ""),
    ],
)
def test_a_mistake_is_reported_with_its_file(tmp_path, file, lines, reason):
    folder = write_data(tmp_path)
    (folder / file).unlink()
    if lines:
        (folder / file).write_text("\n".join(lines))
    message = catch_message(read, tmp_path)
    assert f"{folder / file}{reason}" in message and "\n" not in message


@pytest.fixture(scope="module")
def tokenizer(shapes_root):
    return load_tokenizer(seps_tiny.cfg_for(shapes_root))


def test_a_batch_holds_captions_with_their_images(shapes_root, tokenizer):
    opts = ("INPUT.PROB", "0.0", "INPUT.MIN_CROP", "1.0", "SOLVER.IMS_PER_BATCH", 5)
    cfg = seps_tiny.cfg_for(shapes_root, *opts)
    split = read_image_texts(shapes_root, "shapes", "train")
    loader = caption_loader(cfg, encode_captions(cfg, split, tokenizer))
    loader.batch_sampler.epoch = 1
    counts = Counter()
    for batch in caption_batches(loader):
        assert batch.images.dtype == torch.float32 and batch.images.shape == (5, 3, 32, 32)
        assert {t.dtype for t in (*chain(*batch.texts), batch.image_ids)} == {torch.int64}
        captions, dense = (
            [
                " ".join(tokenizer.convert_ids_to_tokens(ids[1 : length - 1]))
                for ids, length in zip(*text, strict=True)
            ]
            for text in batch.texts
        )
        for number, image, caption, text in zip(
            batch.image_ids.tolist(), batch.images, captions, dense, strict=True
        ):
            assert_close(image, normalise(decode(split.paths[number])), *SCALED)
            assert split.image_of[split.captions.index(caption)] == number
            assert text == split.long_captions[number]
            counts[caption] += 1
    # 24 captions in batches of 5: the last four are dropped.
    assert set(counts.values()) == {1} and len(counts) == 20


def test_captions_are_truncated(shapes_root, tokenizer):
    texts = ["a red circle", "an orange ring next to a small blue star", "zebra"]
    split = ImageTexts((), texts, (), texts[:1])
    cfg = seps_tiny.cfg_for(shapes_root, "INPUT.MAX_WORDS", "6", "INPUT.MAX_LONG_WORDS", "4")
    actual = encode_captions(cfg, split, tokenizer)
    words = [tokenizer.convert_ids_to_tokens(tokens) for tokens in actual.captions]
    assert words[0] == ["[CLS]", "a", "red", "circle", "[SEP]"]
    assert words[1] == ["[CLS]", "an", "orange", "ring", "next", "[SEP]"]
    assert words[2][1] == tokenizer.unk_token
    assert actual.long_captions == [[*actual.captions[0][:3], tokenizer.sep_token_id]]


def test_evaluation_takes_every_image_once_in_order(shapes_root):
    split = read_image_texts(shapes_root, "shapes", "test")
    loaded = [images for ((images,),) in image_loader(seps_tiny.cfg_for(shapes_root), split)]
    assert [len(images) for images in loaded] == [5, SIZES["test"] - 5]
    expected = torch.stack([decode(path) for path in split.paths])
    assert_close(torch.cat(loaded), normalise(expected), *SCALED)


def test_crops_are_parts_half_of_them_flipped_by_the_samples_seed(shapes_root):
    """A ramp shows where a crop begins and ends; its first column is the darkest, or the last one of a flipped crop."""
    ramp = torch.arange(0, 240, 5, dtype=torch.uint8).expand(3, 48, 48)
    transform = CropTransform(
        seps_tiny.cfg_for(shapes_root, "INPUT.MIN_CROP", "0.3", "INPUT.PROB", "0.5")
    )
    flips, spans = 0, []
    for seed in range(shift_seed(), shift_seed(200)):
        before = torch.get_rng_state()
        actual = transform(ramp, random.Random(seed))
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(transform(ramp, random.Random(seed)), actual)
        assert actual.shape == (3, 32, 32) and actual.dtype == torch.float32
        step = float(actual[0, 0, -1] - actual[0, 0, 0])
        flips += step < 0
        spans.append(abs(step) * 127.5 / 5)  # columns of the crop
    assert abs(flips - 100) < 6 * 50**0.5  # standard errors
    # of at least 0.3 of the area, and 3:4 to 4:3
    assert min(spans) > 48 * (0.3 * 3 / 4) ** 0.5 - 2 and max(spans) < 48 and len(set(spans)) > 20
