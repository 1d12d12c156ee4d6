"""Batches of triplets and of captions: the same for any number of processes, with the cache and without."""

import random
from collections import Counter
from functools import partial
from pathlib import Path
from traceback import clear_frames

import numpy as np
import pytest
import seps_tiny
import torch
from commands import cli_args_for
from numeric import assert_close
from PIL import Image
from processes import kill_child, started, wait_for
from torch.utils._pytree import tree_leaves
from triplets import FIRST, PLAIN, SCALED, catch_message, config, cut_short, image_folder, normalise

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.images import decode
from demo_sdtps.datasets.loaders import (
    CACHE_LIMIT,
    ImageDataset,
    batches,
    test_loader,
    train_loader,
    use_cache,
)
from demo_sdtps.datasets.transforms import TrainTransform
from seps.captions import caption_batches, caption_loader, encode_captions, read_image_texts
from seps.model import load_tokenizer


@pytest.fixture(params=["triplets", "captions"])
def make(request):
    """Of KEY, VALUE, … options: → a training loader, and what gives its batches, lists of tensors, the images first."""

    def triplets(*opts):
        cfg = config(request.getfixturevalue("tiny_root"), "INPUT.RE_PROB", "0.5", *opts)
        loader = train_loader(cfg, read_splits(cfg, ("train",))["train"])
        return loader, lambda loader: map(tree_leaves, batches(loader))

    def captions(*opts):
        cfg = seps_tiny.cfg_for(request.getfixturevalue("shapes_root"), *opts)
        split = read_image_texts(cfg.DATASETS.ROOT_DIR, "shapes", "train")
        split = encode_captions(cfg, split, load_tokenizer(cfg))
        return caption_loader(cfg, split), lambda loader: map(tree_leaves, caption_batches(loader))

    return captions if request.param == "captions" else triplets


def load_epoch(make, *opts, epoch=1):
    loader, batches_of = make(*opts)
    loader.batch_sampler.epoch = epoch
    return list(batches_of(loader))


def assert_equal_batches(ours, theirs):
    assert len(ours) > 1
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_loading_leaves_the_generators_of_training_alone(make, workers):
    """The next batch is made while training draws its noise."""
    loader, batches_of = make("DATALOADER.NUM_WORKERS", workers)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    for _ in range(2):
        list(batches_of(loader))
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]


@pytest.mark.parametrize(
    "opts",
    [
        pytest.param(["DATALOADER.NUM_WORKERS", "2"], marks=pytest.mark.slow),
        ["DATASETS.CACHE", "no"],
        ["DATALOADER.NUM_WORKERS", "2", "DATASETS.CACHE", "no"],
    ],
    ids=" ".join,
)
def test_neither_processes_nor_the_cache_change_a_bit(make, opts):
    torch.manual_seed(1)
    random.seed(1)
    expected = load_epoch(make, "DATASETS.CACHE", "yes")
    torch.manual_seed(2)
    random.seed(2)
    assert_equal_batches(load_epoch(make, *opts), expected)


def test_epochs_of_one_loader_are_those_of_fresh_ones(make):
    """Loading processes live on between epochs, and see the epoch that is set."""
    loader, batches_of = make("DATALOADER.NUM_WORKERS", "1")
    for epoch in (1, 2):
        loader.batch_sampler.epoch = epoch
        assert_equal_batches(list(batches_of(loader)), load_epoch(make, epoch=epoch))


def test_a_training_batch(tiny_root):
    cfg = config(tiny_root)
    by_pixels = {
        decode(sample.paths[0]).numpy().tobytes(): sample
        for sample in read_splits(cfg, ("train",))["train"]
    }
    loader = train_loader(config(tiny_root, *PLAIN), read_splits(cfg, ("train",))["train"])
    for batch in batches(loader):
        images, labels, cameras = batch.images, batch.labels, batch.cameras
        assert {(image.dtype, image.shape) for image in images.values()} == {
            (torch.float32, (8, 3, 32, 16))
        }
        assert sorted(Counter(labels.tolist()).values()) == [4, 4]
        for index in range(8):
            pixels = ((images["RGB"][index] + 1) * 127.5).round().byte()
            sample = by_pixels[pixels.numpy().tobytes()]
            assert (labels[index], cameras[index]) == (sample.identity - 1, sample.camera)
            for modality, path in zip(MODALITIES, sample.paths, strict=True):
                assert_close(images[modality][index], normalise(decode(path)), *SCALED)


@pytest.mark.parametrize(
    "opts",
    [
        ["INPUT.PROB", "0.5", "INPUT.PADDING", "0", "INPUT.RE_PROB", "0.0"],
        ["INPUT.PROB", "0.0", "INPUT.PADDING", "4", "INPUT.RE_PROB", "0.0"],
        ["INPUT.PROB", "0.0", "INPUT.PADDING", "0", "INPUT.RE_PROB", "0.5"],
    ],
    ids=" ".join,
)
def test_modalities_draw_each_for_itself(tiny_root, opts):
    """The same image three times comes out different, by flip, by crop and by erasing alone."""
    path = str(image_folder(tiny_root) / FIRST)
    transform = TrainTransform(config(tiny_root, *opts))
    dataset = ImageDataset([(path,) * 3], [(0, 0)], transform, False, partial(map, decode))
    triplets = [dataset[0, seed][0] for seed in range(30)]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        different = sum(not torch.equal(images[first], images[second]) for images in triplets)
        assert different >= 8
    assert all(map(torch.equal, dataset[0, 3][0], triplets[3]))


@pytest.mark.parametrize(
    ("make", "workers"),
    [(train_loader, "0"), (test_loader, "0"), (train_loader, "2"), (test_loader, "2")],
)
def test_a_damaged_image_is_one_clean_error(own_root, no_process_left, make, workers):
    cfg = config(own_root, "DATALOADER.NUM_WORKERS", workers, "DATASETS.CACHE", "no")
    samples = read_splits(cfg, ("train",))["train"]
    for sample in samples[::2]:  # some of them are in every epoch
        cut_short(Path(sample.paths[2]))
    message = catch_message(lambda: list(batches(make(cfg, samples))))
    assert any(sample.paths[2] in message for sample in samples[::2])
    assert "\n" not in message and "Traceback" not in message


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_bug_keeps_its_type_and_trace(tiny_root, workers):
    def fail(*_):
        raise ZeroDivisionError

    cfg = config(tiny_root, "DATALOADER.NUM_WORKERS", workers, "DATASETS.CACHE", "no")
    loader = train_loader(cfg, read_splits(cfg, ("train",))["train"])
    loader.dataset.decode = fail
    with pytest.raises(ZeroDivisionError) as failure:
        list(batches(loader))
    clear_frames(failure.tb)
    del failure, loader  # else they are freed in a later test, which waits long for the processes


@pytest.mark.slow
def test_a_loading_process_that_is_killed_is_reported(tiny_root, tmp_path):
    """At once, or after DATALOADER.TIMEOUT where Python swallows the error that torch raises in its signal handler."""
    opts = "DATALOADER.NUM_WORKERS 2 DATASETS.CACHE no SOLVER.MAX_EPOCHS 1000 DATALOADER.TIMEOUT 8"
    words = cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path / "run", *opts.split())
    with started("train_net.py", *words) as run:
        wait_for(run, tmp_path / "run" / "metrics.json")
        kill_child(run)
        *_, message = run.communicate(timeout=120)[1].strip().splitlines()
    assert run.returncode == 2 and "error: The loading processes failed (DataLoader" in message
    assert "DATALOADER.TIMEOUT" in message


def test_auto_caches_what_fits(tiny_root, tmp_path, monkeypatch):
    paths = [sample.paths for sample in read_splits(config(tiny_root), ("train",))["train"]]
    # the first is no measure of the others, in number and in size
    small = tmp_path / "small.png"
    Image.new("RGB", (1, 1)).save(small)
    paths = [(str(small), None, None), (paths[0][0], None, None), *paths]
    bytes_needed = 3 + (1 + 48 * 3) * 3 * 32 * 16
    assert bytes_needed < CACHE_LIMIT
    for limit, fits in ((bytes_needed, True), (bytes_needed - 1, False)):
        monkeypatch.setattr("demo_sdtps.datasets.loaders.CACHE_LIMIT", limit)
        assert use_cache(config(tiny_root), paths) is fits
        for value, expected in (("yes", True), ("no", False)):
            cfg = config(tiny_root, "DATASETS.CACHE", value)
            assert use_cache(cfg, paths) is expected


def test_cached_images_are_not_changed_by_augmentation(tiny_root):
    cfg = config(tiny_root, "INPUT.RE_PROB", "1.0")
    samples = read_splits(cfg, ("train",))["train"]
    dataset = train_loader(cfg, samples).dataset
    for seed in range(10):
        dataset[1, seed]
    for cached, path in zip(dataset.cached[samples[1].paths], samples[1].paths, strict=True):
        assert np.array_equal(cached.numpy(), decode(path).numpy())


@pytest.mark.parametrize(
    ("opts", "count"), [(["SOLVER.IMS_PER_BATCH", "32"], 6), (["SOLVER.IMS_PER_BATCH", "24"], None)]
)
def test_a_batch_needs_enough_identities(tiny_root, opts, count):
    cfg = config(tiny_root, *opts)
    samples = read_splits(cfg, ("train",))["train"]
    if count:
        assert f"has {count} identities" in catch_message(train_loader, cfg, samples)
    else:
        assert len(train_loader(cfg, samples)) > 0
