"""`demo_sdtps.load`: a model for the user's images, of a checkpoint or of an exported file, whose features need no torch."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from yacs.config import CfgNode

from demo_sdtps.config import load_cfg
from demo_sdtps.config.ranges import Range, read_ranges
from demo_sdtps.datasets import trained_cameras
from demo_sdtps.datasets.pixels import read_pixels
from demo_sdtps.modeling.exported import ExportedModel, is_exported
from demo_sdtps.retrieval.reid import Reid

if TYPE_CHECKING:
    from demo_sdtps.retrieval.calibration import Calibration


def load(
    weight: str | Path,
    *opts: object,
    config_file: str | Path | None = None,
    device: str | None = None,
) -> Reid:
    """A model for the user's images: an `Extractor` from a checkpoint, on the GPU if there is one, or an `ExportedReid`.

    `weight` is a file of train_net.py or of DeMo, the folder of a run (last.pth is read) or of `Extractor.save_pretrained`, the
    .safetensors file in it, or, where no such folder is here, owner/name of a repository of the Hugging Face hub; or an
    exported file, .onnx or .xml. `opts` are KEY VALUE pairs that override the checkpoint's configuration, such as "TEST.AMP",
    "auto"; `device` is that of MODEL.DEVICE. `config_file` replaces the configuration, for checkpoints of DeMo, which have
    none. Raises `UserError` for weights that are missing, cannot be read, or do not fit.
    """
    on_device = ["MODEL.DEVICE", device] if device else []
    pairs = [*map(str, [*opts, *on_device]), "TEST.WEIGHT", str(weight)]
    if is_exported(weight):
        return open_reid(load_cfg(config_file or ExportedModel(weight).config, pairs))
    from demo_sdtps.modeling.checkpoints.loading import stored_config

    return open_reid(load_cfg(config_file or stored_config(weight), pairs))


def open_reid(cfg: CfgNode) -> Reid:
    """The model of TEST.WEIGHT."""
    if is_exported(cfg.TEST.WEIGHT):
        return ExportedReid(cfg)
    from demo_sdtps.retrieval.extractor import make_extractor

    return make_extractor(cfg)


class ExportedReid(Reid):
    """`Reid` by an exported file."""

    def __init__(self, cfg: CfgNode):
        self.cfg, self.weights = cfg, cfg.TEST.WEIGHT
        self.model = ExportedModel(cfg.TEST.WEIGHT, cfg.TEST.AMP)
        self.model.check_settings(cfg)
        self.cameras, self.widths = self.model.cameras, self.model.widths
        self.camera_names = trained_cameras(cfg, self.model.about["origin"], self.cameras)

    @cached_property
    def calibrations(self) -> "Mapping[int, Calibration]":  # type: ignore[override]  # read once
        from demo_sdtps.retrieval.calibration import make_calibrations

        return make_calibrations(self.model.about["origin"].get("calibration"), self.cfg)

    def _extract(
        self, triplets: Sequence[tuple], cameras: Sequence[int], pattern: int, normalise: bool
    ) -> np.ndarray:
        self.model.check_pattern(pattern)
        ranges = read_ranges(self.cfg)
        scales = [ranges[name] for name in self.model.modalities]
        blocks, size = [], self.cfg.TEST.IMS_PER_BATCH
        for start in range(0, len(triplets), size):
            chosen = slice(start, start + size)
            images = [[*map(_pixels, triplet, scales)] for triplet in triplets[chosen]]
            blocks.append(self.model.features(images, cameras[chosen]))
        features = np.concatenate(blocks)[:, self.model.columns[pattern]]
        lengths = np.linalg.norm(features, axis=1, keepdims=True)
        return features / np.maximum(lengths, 1e-12) if normalise else features


def _pixels(item: Any, scale: Range) -> np.ndarray | None:
    """An image, as `Reid.features` takes it, as uint8 (3, H, W)."""
    return None if item is None else read_pixels(item, scale=scale).transpose(2, 0, 1)
