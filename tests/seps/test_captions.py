"""Batches of captions with their images. What they share with batches of triplets: tests/datasets/test_loaders.py."""

from collections import Counter
from itertools import chain

import pytest
import seps_tiny
import torch
from numeric import assert_close
from seps_tiny import CAPTIONS, SIZES
from triplets import SCALED, normalise

from demo_sdtps.datasets.images import decode
from seps.captions import (
    caption_batches,
    caption_loader,
    encode_captions,
    encode_texts,
    image_batches,
    image_loader,
    read_image_texts,
)
from seps.model import load_tokenizer

IMAGES = SIZES["train"]
PLAIN = ("INPUT.PROB", "0.0", "INPUT.MIN_CROP", "1.0")
ALL = ("SOLVER.IMS_PER_BATCH", IMAGES * CAPTIONS)
"""One batch of all captions."""


@pytest.fixture(scope="module")
def tokenizer(shapes_root):
    return load_tokenizer(seps_tiny.cfg_for(shapes_root))


@pytest.fixture
def split(shapes_root):
    return read_image_texts(shapes_root, "shapes", "train")


@pytest.fixture
def load_epoch(shapes_root, tokenizer):
    """The batches of an epoch of a split."""

    def call(split, *opts):
        cfg = seps_tiny.cfg_for(shapes_root, *opts)
        loader = caption_loader(cfg, split)
        loader.batch_sampler.epoch = 1
        return list(caption_batches(loader, encode_captions(cfg, split, tokenizer)))

    return call


def decode_texts(tokenizer, tokens, lengths):
    return [
        " ".join(tokenizer.convert_ids_to_tokens(ids[1 : length - 1]))
        for ids, length in zip(tokens, lengths, strict=True)
    ]


def test_a_batch_holds_captions_with_their_images(split, tokenizer, load_epoch):
    loaded = load_epoch(split, *PLAIN, "SOLVER.IMS_PER_BATCH", 5)
    assert len(loaded) == IMAGES * CAPTIONS // 5
    counts = Counter()
    for batch in loaded:
        assert batch.images.dtype == torch.float32 and batch.images.shape == (5, 3, 32, 32)
        whole = (*chain(*batch.texts), batch.image_ids)
        assert {tensor.dtype for tensor in whole} == {torch.int64}
        captions, dense = (decode_texts(tokenizer, *text) for text in batch.texts)
        for number, image, caption, text in zip(
            batch.image_ids.tolist(), batch.images, captions, dense, strict=True
        ):
            assert_close(image, normalise(decode(split.paths[number])), *SCALED)
            assert split.image_of[split.captions.index(caption)] == number
            assert text == split.long_captions[number]
            counts[caption] += 1
    # 24 captions in batches of 5: the last four are dropped.
    assert set(counts.values()) == {1} and len(counts) == 20


def test_encoded_texts(tokenizer):
    texts = ["a red circle", "an orange ring next to a small blue star", "zebra"]
    encoded = encode_texts(tokenizer, texts, 64)
    assert [len(text) for text in encoded] == [5, 11, 3]
    assert tokenizer.convert_ids_to_tokens(encoded[0]) == ["[CLS]", "a", "red", "circle", "[SEP]"]
    assert encoded[2][1] == tokenizer.unk_token_id
    assert encode_texts(tokenizer, texts, 4)[1] == [*encoded[1][:3], tokenizer.sep_token_id]


def test_evaluation_takes_every_image_once_in_order(shapes_root):
    split = read_image_texts(shapes_root, "shapes", "test")
    loaded = list(image_batches(image_loader(seps_tiny.cfg_for(shapes_root), split)))
    assert [len(images) for images in loaded] == [5, 3]
    expected = torch.stack([decode(path) for path in split.paths])
    assert_close(torch.cat(loaded), normalise(expected), *SCALED)
