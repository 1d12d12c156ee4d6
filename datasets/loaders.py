"""Triplets in batches: (images by modality, labels, cameras)."""
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils.data import DataLoader, Dataset
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets.base import Sample, identity_labels
from demo_sdtps.datasets.images import decode_all, decode_triplet
from demo_sdtps.datasets.samplers import IdentityBatchSampler, ShuffledBatchSampler
from demo_sdtps.datasets.transforms import Transform, test_transform, train_transform

CACHE_LIMIT = 1 << 30
"""Bytes of decoded images that DATASETS.CACHE auto keeps in memory."""

GRACE = 10
"""Seconds that a loading process goes on after SIGTERM."""

Batch = tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]


class TripletDataset(Dataset):
    """Samples as (images: a (3, H, W) of each modality, label, camera).

    A key is an index, or (index, seed) where the transform draws its randomness from the seed.
    """

    def __init__(self, samples: Sequence[Sample], labels: Sequence[int], transform: Transform, cache: bool):
        self.samples, self.labels, self.transform = samples, labels, transform
        self.images = decode_all(samples) if cache else None

    def __len__(self) -> int:
        return len(self.samples)

    def files(self, index: int) -> tuple[str, ...]:
        """What a sample was read from."""
        return tuple(self.samples[index].paths)

    def __getitem__(self, key: int | tuple[int, int]) -> tuple[list[torch.Tensor], int, int] | UserError:
        index, seed = key if isinstance(key, tuple) else (key, None)
        sample = self.samples[index]
        try:
            images = self.images[index] if self.images else decode_triplet(sample)
        except UserError as error:
            return error  # raised in a loading process it would arrive wrapped in that process's stack trace
        # A generator of the sample's own: another thread or process may load it.
        draw = () if seed is None else (random.Random(seed),)
        images = [self.transform(image, *draw) for image in images]
        return images, self.labels[index], sample.camera


def train_loader(cfg: CfgNode, samples: Sequence[Sample]) -> DataLoader:
    """Random batches of the training samples by DATALOADER.SAMPLER; call `.batch_sampler.begin(epoch)` before each epoch.

    Raises `UserError` where there are fewer identities or samples than a batch needs.
    """
    by_identity = identity_labels(samples)
    labels = [by_identity[sample.identity] for sample in samples]
    if len(by_identity) < 2:
        raise UserError("The training split has a single identity, and learning to tell them apart needs at least two; add "
                        "images of others.")
    sampler = (_shuffled_batches if cfg.DATALOADER.SAMPLER == "softmax" else _identity_batches)(cfg, labels)
    cache = use_cache(cfg, samples)
    dataset = TripletDataset(samples, labels, train_transform(cfg), cache)
    return DataLoader(dataset, batch_sampler=sampler, **loader_kwargs(cfg, cache, collate))


def _shuffled_batches(cfg: CfgNode, labels: list[int]) -> ShuffledBatchSampler:
    if len(labels) < cfg.SOLVER.IMS_PER_BATCH:
        raise UserError(f"The training split has {len(labels)} triplets, fewer than a batch (SOLVER.IMS_PER_BATCH "
                        f"{cfg.SOLVER.IMS_PER_BATCH}); lower SOLVER.IMS_PER_BATCH.")
    return ShuffledBatchSampler(len(labels), cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.SEED)


def _identity_batches(cfg: CfgNode, labels: list[int]) -> IdentityBatchSampler:
    identities = len(set(labels))
    needed = cfg.SOLVER.IMS_PER_BATCH // cfg.DATALOADER.NUM_INSTANCE
    if identities < needed:
        raise UserError(f"The training split has {identities} identities, but a batch needs {needed} "
                        "(SOLVER.IMS_PER_BATCH / DATALOADER.NUM_INSTANCE); lower SOLVER.IMS_PER_BATCH to at most "
                        f"{identities * cfg.DATALOADER.NUM_INSTANCE}.")
    return IdentityBatchSampler(labels, cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_INSTANCE, cfg.SOLVER.SEED)


def test_loader(cfg: CfgNode, samples: Sequence[Sample]) -> DataLoader:
    """The samples in order, without augmentation; labels are identities as named on disk."""
    labels = [sample.identity for sample in samples]
    # Evaluated every epoch: kept in memory like the training images.
    cache = use_cache(cfg, samples)
    dataset = TripletDataset(samples, labels, test_transform(cfg), cache)
    return DataLoader(dataset, batch_size=cfg.TEST.IMS_PER_BATCH, **loader_kwargs(cfg, cache, collate))


def batches(loader: DataLoader) -> Iterator[Batch]:
    """The loader's batches, the next always on its way. Raises `UserError` for an image that cannot be read."""
    for collated in collated_batches(loader):
        yield to_batch(collated)


def to_batch(collated: tuple[torch.Tensor, list[int], list[int]]) -> Batch:
    """What `collate` gives as a batch."""
    images, labels, cameras = collated
    return dict(zip(MODALITIES, images, strict=True)), torch.tensor(labels), torch.tensor(cameras)


def collated_batches(loader: DataLoader) -> Iterator:
    """What the loader's `collate_fn` gives, the next always on its way. Raises `UserError` for an image that cannot be read.

    Loading processes wait for the next epoch; where a loop ends before its last batch, they end with it.
    """
    try:
        for collated in loader if loader.num_workers else prefetch(loader):
            if isinstance(collated, UserError):
                # A new one: an exception that a frame on its own traceback holds is freed by the garbage collection alone, and
                # the loader with it.
                raise UserError(str(collated))
            yield collated
    except BaseException:
        stop_workers(loader)
        raise


def stop_workers(loader: DataLoader) -> None:
    """End the loading processes now; another loop over the loader starts new ones.

    Torch does the same when it frees a loader, and has no public way to ask for it. One that the garbage collection frees may
    wait up to 20 s for its processes, as the queues by which it tells them to end are freed before it.
    """
    iterator, loader._iterator = loader._iterator, None
    if iterator is not None:
        iterator._shutdown_workers()


def prefetch(loader: DataLoader) -> Iterator:
    """What a loader without processes gives, made by a thread one batch ahead."""
    iterator = iter(loader)
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, iterator, None)
        while (batch := coming.result()) is not None:
            coming = thread.submit(next, iterator, None)
            yield batch


def use_cache(cfg: CfgNode, samples: Sequence, images_of: Callable[..., Iterable[torch.Tensor]] = decode_triplet) -> bool:
    """Whether the decoded images are kept in memory, by DATASETS.CACHE and the size of the first sample's."""
    if cfg.DATASETS.CACHE != "auto":
        return cfg.DATASETS.CACHE == "yes"
    return len(samples) * sum(image.numel() for image in images_of(samples[0])) <= CACHE_LIMIT


def collate(items: list) -> tuple[torch.Tensor, list[int], list[int]] | UserError:
    """Images (3, B, 3, H, W), labels and cameras of a batch; the first image that cannot be read takes its place.

    A single tensor, as each takes over a millisecond on its way from a loading process.
    """
    if error := first_error(items):
        return error
    images, labels, cameras = zip(*items, strict=True)
    by_modality = torch.stack([image for modality in zip(*images, strict=True) for image in modality])
    return by_modality.unflatten(0, (len(MODALITIES), -1)), list(labels), list(cameras)


def first_error(items: Iterable) -> UserError | None:
    """The first of a batch's items that is an error in place of a sample."""
    return next((item for item in items if isinstance(item, UserError)), None)


def cpu_cores() -> int:
    """CPU cores that this process may use; those that torchrun starts on one machine share them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def loader_kwargs(cfg: CfgNode, cache: bool, collate: Callable) -> dict:
    """How a loader works, for DataLoader: its processes by DATALOADER.NUM_WORKERS and the machine."""
    workers = cfg.DATALOADER.NUM_WORKERS
    if workers < 0:
        cores = cpu_cores()
        # Images from memory are little work, for which a thread is enough: a process would take a core from training.
        workers = 0 if cache and cores <= 2 else min(cores, 8)
    # A generator of its own: otherwise every loop over the loader would move the run's random state, by as much as it has
    # processes.
    return {"num_workers": workers, "collate_fn": collate, "persistent_workers": workers > 0,
            "worker_init_fn": _leave_stopping_to_training,
            "pin_memory": cfg.MODEL.DEVICE != "cpu" and torch.cuda.is_available(), "generator": torch.Generator()}


def _leave_stopping_to_training(worker: int) -> None:
    """Whoever stops a run often signals all of its processes; training needs its loading ones to finish the step.

    They end a little later by themselves: a process that left them behind waits for them as it ends.
    """
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE))


test_loader.__test__ = False  # the name is the field's; pytest must not take it for a test
