"""Data loaders of triplets, which give `Batch`es."""

import math
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.ranges import read_ranges
from demo_sdtps.datasets import OWN_READERS, samplers, transforms
from demo_sdtps.datasets.base import UNKNOWN, Sample, identity_labels
from demo_sdtps.datasets.images import (
    STORED,
    Images,
    Paths,
    Scales,
    Size,
    decode_triplet,
    image_size,
    parallel,
)
from demo_sdtps.runtime.gpu import to_device
from demo_sdtps.runtime.threads import cpu_cores

# bytes of decoded images up to which DATASETS.CACHE auto keeps them in memory
CACHE_LIMIT = 1 << 30


class Batch(NamedTuple):
    """B triplets."""

    images: dict[str, torch.Tensor]  # by modality, (B, 3, H, W) float32; zeros for a missing one
    labels: torch.Tensor  # (B,) long: of training identities from 0, else identities on disk
    cameras: torch.Tensor  # (B,) long, from 0

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device, without waiting for a GPU."""
        return tree_map(lambda tensor: to_device(tensor, device), self)


class ImageDataset(Dataset):
    """Sample i is (images: a list of (3, H, W) float32, *targets[i]), read from `paths[i]`. A key is an index, or (index, seed)
    where the transform draws from a generator with that seed. `modalities` are those of a sample's images."""

    def __init__(
        self,
        paths: Sequence[Paths],
        targets: Sequence[tuple],
        transform: transforms.SampleTransform,
        cache: bool,
        decode: Callable[[Paths], Images],
        modalities: Sequence[str] = MODALITIES,
    ):
        self.modalities = tuple(modalities)
        self.paths, self.targets, self.transform, self.decode = paths, targets, transform, decode
        self.cached: dict[Paths, Images] = {}
        if cache:
            distinct = [*dict.fromkeys(paths)]  # an image of several captions once
            images = parallel(decode, distinct, "reading images", "sample")
            self.cached = dict(zip(distinct, images, strict=True))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: int | tuple[int, int]) -> tuple | UserError:
        index, seed = key if isinstance(key, tuple) else (key, None)
        try:
            images = self.decoded(index)
        except UserError as error:
            return error  # raised in a loading process, it would be wrapped in the stack trace of that process
        # One generator per sample: the augmentation is then the same in any thread or process.
        rngs = () if seed is None else (random.Random(seed),)
        return self.transform(images, *rngs), *self.targets[index]

    def decoded(self, index: int) -> Images:
        """The images of a sample as they are on disk."""
        paths = self.paths[index]
        return self.cached[paths] if self.cached else self.decode(paths)


def train_loader(cfg: CfgNode, samples: Sequence[Sample]) -> DataLoader:
    """Random batches; `.batch_sampler.begin(epoch)` precedes each epoch."""
    by_identity = identity_labels(samples)
    labels = [by_identity[sample.identity] for sample in samples]
    transform = transforms.TrainTransform(cfg)
    dataset = _triplets(cfg, samples, labels, transform, cfg.INPUT.SIZE_TRAIN)
    return DataLoader(dataset, batch_sampler=train_sampler(cfg, labels), **loader_kwargs(cfg))


def test_loader(cfg: CfgNode, samples: Sequence[Sample]) -> DataLoader:
    """The samples in order, without augmentation; labels are the identities on disk, cameras none by TEST.UNKNOWN_CAMERAS."""
    if cfg.TEST.UNKNOWN_CAMERAS:
        samples = [replace(sample, camera=UNKNOWN) for sample in samples]
    # Cached like the training images, since evaluation may run after every epoch.
    size, labels = cfg.INPUT.SIZE_TEST, [sample.identity for sample in samples]
    transform = partial(transforms.transform_each, transforms.resize_and_normalise(cfg, size))
    dataset = _triplets(cfg, samples, labels, transform, size)
    return DataLoader(dataset, batch_size=cfg.TEST.IMS_PER_BATCH, **loader_kwargs(cfg))


def _triplets(
    cfg: CfgNode,
    samples: Sequence[Sample],
    labels: Sequence[int],
    transform: transforms.SampleTransform,
    size: Size,
) -> ImageDataset:
    """Samples as (images of MODEL.MODALITIES, label, camera), which `transform` makes of this size; published ones whole."""
    paths = [sample.paths for sample in samples]
    targets = [(label, sample.camera) for label, sample in zip(labels, samples, strict=True)]
    names = tuple(cfg.MODEL.MODALITIES)
    least = size if cfg.DATASETS.NAMES in OWN_READERS else None
    decode = partial(decode_triplet, modalities=names, scales=image_scales(cfg), least=least)
    return ImageDataset(paths, targets, transform, use_cache(cfg, paths, least), decode, names)


def image_scales(cfg: CfgNode) -> Scales:
    """`scale` of `decode` by modality: own images are turned and scaled, by INPUT.RANGES, those of others are not."""
    return read_ranges(cfg) if cfg.DATASETS.NAMES in OWN_READERS else STORED


def train_sampler(cfg: CfgNode, labels: Sequence[int]) -> samplers.EpochBatchSampler:
    """Sampler of training samples with these labels."""
    identities = len(set(labels))
    batch_size, instances = cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_INSTANCE
    is_shuffled = cfg.DATALOADER.SAMPLER == "softmax"
    needed = 2 if is_shuffled else batch_size // instances
    if identities < needed:
        raise UserError(
            f"The training split has {identities} identities, but it needs at least {needed}, by SOLVER.IMS_PER_BATCH and "
            "DATALOADER.NUM_INSTANCE; add images of others, or lower SOLVER.IMS_PER_BATCH."
        )
    if is_shuffled:
        return samplers.ShuffledBatchSampler(len(labels), "triplets", batch_size, cfg.SOLVER.SEED)
    return samplers.IdentityBatchSampler(labels, batch_size, instances, cfg.SOLVER.SEED)


def batches(loader: DataLoader) -> Iterator[Batch]:
    """Batches of triplets."""
    modalities = loader.dataset.modalities  # type: ignore[attr-defined]
    for images, labels, cameras in collated_batches(loader):
        by_modality = dict(zip(modalities, images, strict=True))
        yield Batch(by_modality, torch.tensor(labels), torch.tensor(cameras))


def collated_batches(loader: DataLoader) -> Iterator:
    """Output of `collate`; loading processes persist for the next epoch."""
    for collated in loader:
        if isinstance(collated, UserError):
            raise UserError(str(collated))
        yield collated


def use_cache(cfg: CfgNode, paths: Sequence[Paths], least: Size | None = None) -> bool:
    """Whether decoded images are kept in memory, by DATASETS.CACHE: by auto where all, decoded by `least`, are in the limit."""
    if cfg.DATASETS.CACHE != "auto":
        return cfg.DATASETS.CACHE == "yes"
    sizes = (3 * math.prod(image_size(path, least)) for files in {*paths} for path in files if path)
    return all(total <= CACHE_LIMIT for total in accumulate(sizes))


def collate(items: list) -> tuple | UserError:
    """Samples (images, *targets) → (images (k, B, 3, H, W), *targets as lists), or the first error."""
    error = next((item for item in items if isinstance(item, UserError)), None)
    if error:
        return error
    images, *targets = zip(*items, strict=True)
    # A single tensor, since each tensor from a loading process costs over a millisecond.
    stacked = torch.stack([image for column in zip(*images, strict=True) for image in column])
    return stacked.unflatten(0, (-1, len(items))), *map(list, targets)


def loader_kwargs(cfg: CfgNode) -> dict[str, Any]:
    """Keyword arguments of DataLoader, with processes by DATALOADER.NUM_WORKERS and the machine."""
    workers = cfg.DATALOADER.NUM_WORKERS
    if workers < 0:
        workers = min(cpu_cores(), 8)
    # With its own generator, a loop over the loader does not change the global random state.
    return {
        "num_workers": workers,
        "collate_fn": collate,
        "persistent_workers": workers > 0,
        "worker_init_fn": _ignore_interrupts,
        "timeout": cfg.DATALOADER.TIMEOUT if workers else 0,
        "pin_memory": cfg.MODEL.DEVICE != "cpu" and torch.cuda.is_available(),
        "generator": torch.Generator(),
    }


def _ignore_interrupts(worker: int) -> None:
    """Leave Ctrl-C to the main process, which ends its loading processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
