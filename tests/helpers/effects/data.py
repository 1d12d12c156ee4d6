"""DATASETS, DATALOADER and INPUT: what is read, how it is batched, how images are augmented."""

import multiprocessing
import shlex
import shutil
import time
from collections import Counter
from pathlib import Path

import torch
from numeric import seeded
from pytest import approx
from triplets import random_image

from demo_sdtps.config import with_values
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.loaders import batches, test_loader, train_loader
from demo_sdtps.datasets.transforms import TrainTransform, test_transform
from demo_sdtps.evaluation.protocol import exclude_key
from effects.base import effect, is_reported

PLAIN = ("INPUT.PROB", "0", "INPUT.RE_PROB", "0", "INPUT.PADDING", "0")

HALF = approx(200, abs=60)
"""Of 400 draws, to six standard errors."""


def training_loader(cfg):
    loader = train_loader(cfg, read_splits(cfg, ("train",))["train"])
    loader.batch_sampler.begin(1)
    return loader


@effect("DATASETS.NAMES", {"RGBNT201": ("RGBNT201", "camera"), "MSVR310": ("MSVR310", "scene")})
def folder_and_protocol(cfg):
    path = Path(read_splits(cfg)["query"][0].paths[0])
    return path.relative_to(cfg.DATASETS.ROOT_DIR).parts[0], exclude_key(cfg)


@effect("DATASETS.ROOT_DIR", {"{root}/data": 30, "{root}/other": 29})
def number_of_training_samples(cfg):
    return len(read_splits(cfg)["train"])


@effect(
    "DATASETS.FOLDERS",
    {
        "[train=train_171, query=test, gallery=test]": {"RGBNT201/train_171/NI"},
        "[train=test, RGB=NI, NI=RGB]": {"RGBNT201/test/RGB"},
    },
    *shlex.split("DATASETS.NAMES Folder DATASETS.ROOT_DIR {root}/data/RGBNT201"),
)
def folder_of_the_near_infrared_images(cfg):
    root = Path(cfg.DATASETS.ROOT_DIR).parent
    return {
        Path(sample.paths[1]).parent.relative_to(root).as_posix()
        for sample in read_splits(cfg, ("train",))["train"]
    }


@effect(
    "DATASETS.PATTERN",
    {
        r"(?P<identity>\d{6})_cam(?P<camera>\d+)": ({1, 3, 4, 12, 20}, {0, 1, 2}),
        r"cam(?P<identity>\d)_(?P<camera>\d)_": ({1, 2, 8}, {0}),
    },
    *shlex.split(
        "DATASETS.NAMES Folder DATASETS.ROOT_DIR {root}/data/RGBNT201 "
        "DATASETS.FOLDERS [train=train_171]"
    ),
)
def identities_and_cameras(cfg):
    samples = read_splits(cfg, ("train",))["train"]
    return {sample.identity for sample in samples}, {sample.camera for sample in samples}


@effect("DATASETS.CACHE", {"yes": False, "no": True, "auto": False})
def images_are_missed_once_they_are_gone(cfg):
    own = Path(cfg.DATASETS.ROOT_DIR).parent / "own"
    shutil.copytree(cfg.DATASETS.ROOT_DIR, own)
    loader = training_loader(with_values(cfg, {"DATASETS.ROOT_DIR": str(own)}))
    shutil.rmtree(own)
    return is_reported(list, batches(loader))


@effect("DATALOADER.NUM_WORKERS", {"0": 0, "1": 1, "2": 2})
def loading_processes(cfg):
    before = set(multiprocessing.active_children())
    loaded = batches(training_loader(cfg))
    next(loaded)
    return len(set(multiprocessing.active_children()) - before)


@effect(
    "DATALOADER.TIMEOUT",
    {"0.1": True, "0": False, "1800": False},
    *shlex.split("DATALOADER.NUM_WORKERS 1 DATASETS.CACHE no"),
)
def a_slow_batch_is_reported(cfg):
    loader = training_loader(cfg)
    decode = loader.dataset.decode
    loader.dataset.decode = lambda paths: (
        time.sleep(0.5 / cfg.SOLVER.IMS_PER_BATCH) or decode(paths)
    )
    try:
        next(batches(loader))
    except RuntimeError as error:
        return "timed out" in str(error)
    return False


@effect("DATALOADER.NUM_INSTANCE", {"2": {2}, "4": {4}})
def triplets_per_identity(cfg):
    return {
        count
        for _, labels, _ in batches(training_loader(cfg))
        for count in Counter(labels.tolist()).values()
    }


@effect("DATALOADER.SAMPLER", {"softmax_triplet": True, "softmax": False})
def identities_come_in_groups(cfg):
    return all(
        set(Counter(labels.tolist()).values()) == {2}
        for _, labels, _ in batches(training_loader(cfg))
    )


@effect("SOLVER.IMS_PER_BATCH", {"4": {4}, "10": {10}})
def triplets_per_training_batch(cfg):
    return {len(labels) for _, labels, _ in batches(training_loader(cfg))}


@effect("TEST.IMS_PER_BATCH", {"10": [10, 10, 4], "24": [24]})
def triplets_per_evaluation_batch(cfg):
    return [len(labels) for _, labels, _ in batches(test_loader(cfg, read_splits(cfg)["query"]))]


@effect(
    "INPUT.SIZE_TRAIN",
    {"[32, 16]": (3, 32, 16), "[20, 24]": (3, 20, 24)},
    "INPUT.SIZE_TEST",
    "{value}",
)
def shape_of_a_training_image(cfg):
    return tuple(TrainTransform(cfg)(random_image()).shape)


@effect(
    "INPUT.SIZE_TEST",
    {"[32, 16]": (3, 32, 16), "[20, 24]": (3, 20, 24)},
    "INPUT.SIZE_TRAIN",
    "{value}",
)
def shape_of_an_image_in_evaluation(cfg):
    return tuple(test_transform(cfg)(random_image()).shape)


def distinct(cfg, draws):
    """Distinct training images that come of one image."""
    transform, image = TrainTransform(cfg), random_image()
    torch.manual_seed(seeded())
    return {transform(image).numpy().tobytes(): None for _ in range(draws)}


@effect("INPUT.PADDING", {"0": 1, "1": 9, "2": 25}, *PLAIN[:4])
def places_of_the_crop(cfg):
    return len(distinct(cfg, 400))


@effect("INPUT.PROB", {"0": 0, "0.5": HALF, "1": 400}, *PLAIN[2:])
def mirrored_of_400(cfg):
    transform, image = TrainTransform(cfg), random_image()
    mirrored = test_transform(cfg)(image.flip(2))
    torch.manual_seed(seeded())
    return sum(torch.allclose(transform(image), mirrored, atol=1e-6) for _ in range(400))


@effect("INPUT.RE_PROB", {"0": 0, "0.5": HALF, "1": 400}, *PLAIN[:2], *PLAIN[4:])
def erased_of_400(cfg):
    transform, image = TrainTransform(cfg), random_image()
    whole = test_transform(cfg)(image)
    torch.manual_seed(seeded())
    return sum(not torch.allclose(transform(image), whole, atol=1e-6) for _ in range(400))


@effect("INPUT.JOINT_AUGMENTATION", {"True": 1, "False": 3}, *PLAIN[2:4])
def most_different_images_of_a_triplet_of_equal_ones(cfg):
    dataset = training_loader(cfg).dataset
    dataset.images = [(random_image(),) * 3]
    return max(
        len({image.numpy().tobytes() for image in dataset[0, seed][0]}) for seed in range(20)
    )


@effect(
    "INPUT.MODALITY_DROPOUT",
    {"0": 0, "0.5": approx(550, abs=60), "0.9": approx(400 * (2.7 - 0.729), abs=40)},
)
def dropped_of_400_triplets(cfg):
    dataset = training_loader(cfg).dataset
    blank = [[not image.any() for image in dataset[0, seeded(seed)][0]] for seed in range(400)]
    assert not any(map(all, blank))
    return sum(map(sum, blank))


@effect(
    "INPUT.PIXEL_MEAN",
    {"[0.5, 0.5, 0.5]": [1.0, 1.0, 1.0], "[0, 0.25, 0.5]": [2.0, 1.5, 1.0]},
    *PLAIN,
)
@effect(
    "INPUT.PIXEL_STD",
    {"[0.5, 0.5, 0.5]": [1.0, 1.0, 1.0], "[1, 0.25, 0.5]": [0.5, 2.0, 1.0]},
    *PLAIN,
)
def channels_of_white(cfg):
    white = random_image().fill_(255)
    found = [
        transform(white).mean(dim=(1, 2)).tolist()
        for transform in (TrainTransform(cfg), test_transform(cfg))
    ]
    assert found[0] == found[1]
    return found[0]
