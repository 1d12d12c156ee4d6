"""A trained model and its data, for every command after training."""
import argparse
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import parse
from demo_sdtps.config.load import flat
from demo_sdtps.datasets import Sample, read_splits, reader_of
from demo_sdtps.datasets.base import unread_warning
from demo_sdtps.engine.checkpoint import EXAMPLE, load_weights, shared_checkpoint
from demo_sdtps.engine.coordination import check_agreement, ending_together
from demo_sdtps.engine.distributed import check_single, world_size
from demo_sdtps.engine.runtime import choose_device, choose_precision, compile_model, set_seed
from demo_sdtps.modeling import DeMo, make_model

logger = logging.getLogger(__name__)


def parse_in_all(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, CfgNode]:
    """`parse` in each of the connected processes, which all end where one raises `UserError` or their words differ."""
    check_agreement({"the command line": shlex.join(sys.argv[1:])}, "start all of them with the same words")
    with ending_together():
        return parse(parser)


def prepare_evaluation(cfg: CfgNode, example: str, several: bool = False) -> torch.device:
    """Seed the random generators and choose the device. Raises `UserError` without TEST.WEIGHT, such as `example`, and for a
    device that does not exist; for several processes too, unless the command supports `several`, which must be connected and
    have the same configuration, device and precision."""
    if several:
        check_agreement(flat(cfg), "start all of them with the same configuration")
    else:
        check_single("an evaluation")
    if not cfg.TEST.WEIGHT:
        raise UserError(f"No weights to evaluate: give TEST.WEIGHT (or --weight) a checkpoint such as {example}.")
    set_seed(cfg.SOLVER.SEED)
    return same_device(cfg)


def same_device(cfg: CfgNode) -> torch.device:
    """`choose_device` in each of the connected processes, which all end where it raises `UserError` in one, or where automatic
    choices differ: batches of other sizes would have them wait for each other, and other precisions change the figures."""
    with ending_together():
        device = choose_device(cfg)
    chosen = {f"the precision of {part}.AMP": choose_precision(cfg[part].AMP, device)
              for part in ("SOLVER", "TEST") if "AMP" in cfg[part]}
    check_agreement({"the device": device.type, **chosen}, "set MODEL.DEVICE, SOLVER.AMP and TEST.AMP for all of them")
    return device


def load_model_and_data(cfg: CfgNode, splits: Sequence[str] = ("query", "gallery"),
                        several: bool = False) -> tuple[DeMo, dict[str, list[Sample]]]:
    """The model of `cfg` with the weights of TEST.WEIGHT, in evaluation mode on its device, and the samples by split.

    The numbers of identities and cameras come from the checkpoint, so the training split is not read. Raises `UserError` for
    weights or data that are missing or do not fit each other. With `several` as `prepare_evaluation`: all processes end where
    one of them raises it, or sees other weights or data.
    """
    with ending_together():
        device = prepare_evaluation(cfg, EXAMPLE, several)
        reader_of(cfg)
    checkpoint = shared_checkpoint(cfg.TEST.WEIGHT)
    with ending_together():
        model = make_model(cfg, checkpoint.num_class, checkpoint.camera_num)
        load_weights(cfg, model, checkpoint)
        found = read_splits(cfg, splits)
        for warning in unread_warning(sample for samples in found.values() for sample in samples):
            logger.warning(warning)
        cameras = 1 + max(sample.camera for samples in found.values() for sample in samples)
        if model.backbone.camera_embedding is not None and cameras > len(model.backbone.camera_embedding):
            raise UserError(f"The weights {checkpoint.path} know {len(model.backbone.camera_embedding)} cameras, but "
                            f"{cfg.DATASETS.NAMES} at {cfg.DATASETS.ROOT_DIR} has {cameras}; use weights trained on this data.")
        model = model.eval().to(device)
        if cfg.MODEL.COMPILE:
            compile_model(model, device)
    check_same_files(found)
    return model, found


class HasPaths(Protocol):
    """A sample, or a triplet of a folder of images."""

    @property
    def paths(self) -> tuple[str | None, ...]: ...


def check_same_files(found: Mapping[str, Sequence[HasPaths]]) -> None:
    """End every process by `check_agreement` where one of them has other samples than another, or files of other sizes."""
    if world_size() > 1:
        check_agreement({f"the {part}": _listing(samples) for part, samples in found.items()}, "let them see the same files")


def _listing(samples: Sequence[HasPaths]) -> str:
    digest = blake2b(digest_size=8)
    for sample in samples:
        digest.update(f"{sample} {[os.path.getsize(path) for path in sample.paths if path]}".encode())
    return f"{len(samples)} samples with the digest {digest.hexdigest()}"
