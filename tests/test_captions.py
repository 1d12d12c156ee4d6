"""Batches of captions with their images: the same for any number of processes, with the cache and without."""
import random
from collections import Counter
from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from numeric import assert_close
from transformers import AutoTokenizer
from triplets import SCALED, cut_short, message_of, normalised, states
from yacs.config import CfgNode

from demo_sdtps.datasets.images import decode
from demo_sdtps.seps.captions import caption_batches, caption_loader, encode_texts, image_batches, image_loader, padded
from demo_sdtps.seps.image_text import ImageTexts, read_image_texts
from demo_sdtps.tools import make_synthetic_captions

IMAGES, CAPTIONS = 10, 3
PLAIN = ["INPUT.PROB", 0.0, "INPUT.MIN_CROP", 1.0]


def config(*opts):
    made = CfgNode({
        "INPUT": {"SIZE": [32, 32], "PROB": 0.5, "MIN_CROP": 0.5, "PIXEL_MEAN": [0.5] * 3, "PIXEL_STD": [0.5] * 3,
                  "MAX_WORDS": 64, "MAX_LONG_WORDS": 128},
        "DATASETS": {"CACHE": "auto"}, "DATALOADER": {"NUM_WORKERS": 0, "TIMEOUT": 0.0}, "MODEL": {"DEVICE": "cpu"},
        "SOLVER": {"SEED": 3, "IMS_PER_BATCH": 4}, "TEST": {"IMS_PER_BATCH": 4}})
    made.merge_from_list(list(opts))
    return made


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """A folder with the synthetic shapes, small; not to be changed by tests."""
    root = tmp_path_factory.mktemp("shapes")
    make_synthetic_captions.main(["--root", str(root), "--images", str(IMAGES), "--dev_images", "2", "--test_images", "6",
                                  "--captions", str(CAPTIONS), "--size", "32"])
    return root


@pytest.fixture(scope="module")
def tokenizer(shapes):
    return AutoTokenizer.from_pretrained(shapes / "shapes" / "bert")


@pytest.fixture
def split(shapes):
    return read_image_texts(shapes, "shapes", "train")


def load_epoch(split, tokenizer, *opts, epoch=1):
    loader = caption_loader(config(*opts), split, tokenizer)
    loader.batch_sampler.epoch = epoch
    return list(caption_batches(loader))


def assert_equal_batches(ours, theirs):
    assert len(ours) == len(theirs) > 1
    for one, other in zip(ours, theirs, strict=True):
        for ours_is, theirs_is in zip(astuple(one), astuple(other), strict=True):
            assert torch.equal(ours_is, theirs_is)


def texts_of(tokenizer, tokens, lengths):
    return [" ".join(tokenizer.convert_ids_to_tokens(ids[1:length - 1])) for ids, length in zip(tokens, lengths, strict=True)]


def test_a_batch_holds_captions_with_their_images(split, tokenizer):
    loaded = load_epoch(split, tokenizer, *PLAIN)
    assert len(loaded) == IMAGES * CAPTIONS // 4
    seen = Counter()
    for batch in loaded:
        assert batch.images.dtype == torch.float32 and batch.images.shape == (4, 3, 32, 32)
        assert batch.captions.dtype == batch.lengths.dtype == batch.image_ids.dtype == batch.long_lengths.dtype == torch.int64
        captions = texts_of(tokenizer, batch.captions, batch.lengths)
        dense = texts_of(tokenizer, batch.long_captions, batch.long_lengths)
        for number, image, caption, text in zip(batch.image_ids.tolist(), batch.images, captions, dense, strict=True):
            assert_close(image, normalised(decode(split.paths[number])), *SCALED)
            assert split.image_of[split.captions.index(caption)] == number and text == split.long_captions[number]
            seen[caption] += 1
    # 30 captions in batches of 4: the last two are dropped.
    assert set(seen.values()) == {1} and len(seen) == 28


def test_every_caption_is_seen_once_an_epoch(split, tokenizer):
    for epoch in (0, 1):
        loaded = load_epoch(split, tokenizer, "SOLVER.IMS_PER_BATCH", 15, epoch=epoch)
        assert sorted(caption for batch in loaded for caption in texts_of(tokenizer, batch.captions, batch.lengths)) == sorted(
            split.captions)
        assert Counter(torch.cat([batch.image_ids for batch in loaded]).tolist()) == dict.fromkeys(range(IMAGES), CAPTIONS)


def test_texts_begin_and_end_and_are_padded(split, tokenizer):
    for batch in load_epoch(split, tokenizer):
        for tokens, lengths in ((batch.captions, batch.lengths), (batch.long_captions, batch.long_lengths)):
            assert tokens.shape == (4, lengths.max())
            for ids, length in zip(tokens, lengths, strict=True):
                assert ids[0] == tokenizer.cls_token_id and ids[length - 1] == tokenizer.sep_token_id
                assert (ids[:length] != 0).all() and (ids[length:] == 0).all()


def test_encoded_texts(tokenizer):
    texts = ["a red circle", "an orange ring next to a small blue star", "zebra"]
    encoded = encode_texts(tokenizer, texts, 64)
    assert [len(text) for text in encoded] == [5, 11, 3]
    assert tokenizer.convert_ids_to_tokens(encoded[0]) == ["[CLS]", "a", "red", "circle", "[SEP]"]
    assert encoded[2][1] == tokenizer.unk_token_id
    assert encode_texts(tokenizer, texts, 4)[1] == [*encoded[1][:3], tokenizer.sep_token_id]


def test_padded_texts():
    tokens, lengths = padded([[2, 7, 3], [2, 3], [2, 7, 8, 9, 3]])
    assert tokens.tolist() == [[2, 7, 3, 0, 0], [2, 3, 0, 0, 0], [2, 7, 8, 9, 3]] and lengths.tolist() == [3, 2, 5]
    assert tokens.dtype == lengths.dtype == torch.int64


def test_without_long_captions_there_are_none(split, tokenizer):
    short = ImageTexts(split.paths, split.captions, split.image_of, None)
    with_dense = load_epoch(split, tokenizer)
    for batch, other in zip(load_epoch(short, tokenizer), with_dense, strict=True):
        assert batch.long_captions is None and batch.long_lengths is None
        assert torch.equal(batch.captions, other.captions) and torch.equal(batch.images, other.images)


@pytest.mark.parametrize("opts", [["DATASETS.CACHE", "no"], ["DATALOADER.NUM_WORKERS", 2, "DATASETS.CACHE", "no"]],
                         ids=lambda opts: " ".join(map(str, opts)))
def test_neither_processes_nor_the_cache_change_a_bit(split, tokenizer, opts):
    torch.manual_seed(1)
    random.seed(1)
    expected = load_epoch(split, tokenizer, "DATASETS.CACHE", "yes")
    torch.manual_seed(2)
    random.seed(2)
    assert_equal_batches(load_epoch(split, tokenizer, *opts), expected)


def test_loading_leaves_the_generators_of_training_alone(split, tokenizer):
    before = states()
    load_epoch(split, tokenizer)
    assert torch.equal(states()[0], before[0]) and states()[1] == before[1]


def test_another_seed_or_epoch_gives_other_captions_and_images(split, tokenizer):
    ours = load_epoch(split, tokenizer, "SOLVER.IMS_PER_BATCH", 30)[0]
    for other in (load_epoch(split, tokenizer, "SOLVER.IMS_PER_BATCH", 30, "SOLVER.SEED", 4)[0],
                  load_epoch(split, tokenizer, "SOLVER.IMS_PER_BATCH", 30, epoch=2)[0]):
        assert not torch.equal(ours.image_ids, other.image_ids)
        assert not torch.equal(ours.images[ours.image_ids.argmax()], other.images[other.image_ids.argmax()])


def test_captions_of_one_image_see_it_differently(split, tokenizer):
    batch = load_epoch(split, tokenizer, "SOLVER.IMS_PER_BATCH", 30)[0]
    first, second, _ = batch.images[batch.image_ids == 0]
    assert not torch.equal(first, second)


def test_epochs_of_one_loader_are_those_of_fresh_ones(split, tokenizer):
    loader = caption_loader(config("DATALOADER.NUM_WORKERS", 1), split, tokenizer)
    for epoch in (1, 2):
        loader.batch_sampler.epoch = epoch
        assert_equal_batches(list(caption_batches(loader)), load_epoch(split, tokenizer, epoch=epoch))


def test_fewer_captions_than_a_batch_are_reported(split, tokenizer):
    message = message_of(caption_loader, config("SOLVER.IMS_PER_BATCH", 31), split, tokenizer)
    assert "has 30 captions" in message and "lower SOLVER.IMS_PER_BATCH" in message
    assert len(load_epoch(split, tokenizer, "SOLVER.IMS_PER_BATCH", 30)) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_takes_every_image_once_in_order(shapes, workers):
    split = read_image_texts(shapes, "shapes", "test")
    loaded = list(image_batches(image_loader(config("DATALOADER.NUM_WORKERS", workers), split)))
    assert [len(images) for images in loaded] == [4, 2]
    expected = torch.stack([decode(path) for path in split.paths])
    assert_close(torch.cat(loaded), normalised(expected), *SCALED)


def own_images(split, folder):
    """The split with images that a test may damage."""
    paths = []
    for path in split.paths:
        paths.append(str(folder / Path(path).name))
        Path(paths[-1]).write_bytes(Path(path).read_bytes())
    return ImageTexts(tuple(paths), split.captions, split.image_of, split.long_captions)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_one_clean_error(no_process_left, split, tokenizer, tmp_path, workers):
    own = own_images(split, tmp_path)
    cut_short(Path(own.paths[4]))
    cfg = config("DATALOADER.NUM_WORKERS", workers, "DATASETS.CACHE", "no", "SOLVER.IMS_PER_BATCH", 30)
    for take in (lambda: caption_batches(caption_loader(cfg, own, tokenizer)), lambda: image_batches(image_loader(cfg, own))):
        message = message_of(lambda take=take: list(take()))
        assert own.paths[4] in message and message.endswith("; replace it.") and "\n" not in message
