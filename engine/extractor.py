"""Features of one's own images from a checkpoint: `demo_sdtps.load`."""
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS, UserError, load_cfg
from demo_sdtps.config.load import with_values
from demo_sdtps.config.scores import reads_masks
from demo_sdtps.datasets.images import as_image
from demo_sdtps.datasets.loaders import ImageDataset, loader_kwargs
from demo_sdtps.datasets.transforms import test_transform
from demo_sdtps.engine.checkpoint import stored_config
from demo_sdtps.engine.evaluation.extraction import extract_features
from demo_sdtps.engine.load import load_model
from demo_sdtps.modeling import DeMo

ADVICE = "; replace it or leave it out."
FEW = 256  # triplets up to which no loading processes are started
BLANK = np.zeros((1, 1, 3), np.uint8)

Item = Any  # a path, a PIL image, an array (H, W, 3), (H, W), or a tensor (3, H, W), (1, H, W), (H, W)
Items = Any  # an item, a sequence of items, or an array or tensor with a further first axis


def load(weight: str | Path, *opts: object, config_file: str | Path | None = None) -> "Extractor":
    """An `Extractor` from a checkpoint of train_net.py, on the GPU if there is one.

    `opts` are KEY VALUE pairs that override the checkpoint's configuration, such as "MODEL.DEVICE", "cpu" or "TEST.AMP",
    "auto"; `config_file` replaces it, for checkpoints of DeMo, which have none. Raises `UserError` for a file that is missing,
    cannot be read, or does not fit.
    """
    config = config_file or stored_config(Path(weight))
    cfg = load_cfg(config, [*map(str, opts), "TEST.WEIGHT", str(weight)])
    return Extractor(cfg, load_model(cfg))


class Extractor:
    """Features of triplets of images, by a trained model: `features`. Raises `UserError` for one that reads foreground masks.

    `widths` has the number of columns D of a feature by return pattern, `cameras` the number of cameras that the model knows, 0
    where it makes no difference between cameras.
    """

    def __init__(self, cfg: CfgNode, model: DeMo):
        self.cfg, self.model = cfg, model
        if reads_masks(cfg, training=False):
            raise UserError(f"MODEL.SLIM_SCORE is {cfg.MODEL.SLIM_SCORE!r}, which reads foreground masks; own images have "
                            "none, so use a model with another score.")
        self.cameras = add_mean_camera(model)
        whole = torch.empty(0, sum(model.widths.values()))
        self.widths = {pattern: part.shape[1] for pattern, part in model.split_patterns(whole).items()}

    def features(self, rgb: Items = None, ni: Items = None, ti: Items = None, *, pattern: int = 3,
                 camera: int | Sequence[int] | None = None, normalise: bool = True) -> np.ndarray:
        """Features of n triplets, (n, D) float32, of Euclidean length 1 with `normalise`.

        Each modality is an image or a sequence of n: paths, PIL images, arrays (H, W, 3) or (H, W), tensors (3, H, W),
        (1, H, W) or (H, W), of uint8 or of floats in [0, 1]; arrays and tensors may have n as a further first axis. None, for a
        modality or for an image of it, is a missing one. `pattern`: 1 original, 2 enhanced, 3 both (docs/method.md). `camera`
        (one, or n) is counted from 0 as in training; None, for images of any other camera, takes the mean of the cameras'
        embeddings. With the camera given, features are those of tools/export_features.py.

        Raises `UserError` for an image that cannot be read, numbers of images that differ, a triplet without any image, an
        unknown pattern or camera, and features that are not finite.
        """
        if pattern not in RETURN_PATTERNS:
            raise UserError(f"The return pattern is {pattern!r}, but it must be 1 (original), 2 (enhanced) or 3 (both).")
        triplets = _triplets({"rgb": rgb, "ni": ni, "ti": ti})
        cameras = self._camera_labels(camera, len(triplets))
        found = np.empty((len(triplets), self.widths[pattern]), np.float32)
        by_case: dict[frozenset[str], list[int]] = defaultdict(list)
        for number, triplet in enumerate(triplets):
            by_case[frozenset(name for name, item in zip(MODALITIES, triplet, strict=True) if item is None)].append(number)
        for missing, numbers in by_case.items():
            (patterns,) = extract_features(self.cfg, self.model, self._loader([triplets[i] for i in numbers],
                                                                              [cameras[i] for i in numbers]), [missing])
            features = patterns[pattern]
            found[numbers] = (F.normalize(features) if normalise else features).numpy()
        return found

    def _camera_labels(self, camera: int | Sequence[int] | None, count: int) -> list[int]:
        """`camera` as a list of `count`, with the index of the mean camera for None."""
        labels = [camera] * count if camera is None or isinstance(camera, int) else [int(label) for label in camera]
        if len(labels) != count:
            raise UserError(f"There are {len(labels)} cameras for {count} triplets; give one for each, or one for all.")
        for label in labels:
            if label is not None and self.cameras and not 0 <= label < self.cameras:
                raise UserError(f"The camera is {label}, but the model knows cameras 0 to {self.cameras - 1}; give one of "
                                "them, or None for another camera.")
        return [self.cameras if label is None else label for label in labels]

    def _loader(self, triplets: list[tuple], cameras: list[int]) -> DataLoader:
        dataset = ImageDataset(triplets, [(0, camera) for camera in cameras], test_transform(self.cfg), cache=False,
                               decode=_decode)
        cfg = with_values(self.cfg, {"DATALOADER.NUM_WORKERS": 0}) if len(triplets) <= FEW else self.cfg
        return DataLoader(dataset, batch_size=cfg.TEST.IMS_PER_BATCH, **loader_kwargs(cfg, dataset))


def add_mean_camera(model: DeMo) -> int:
    """Give the backbone one more camera, the last, whose embedding is the mean of the others; returns the number of the others,
    0 for a backbone without camera embedding."""
    embedding = model.backbone.camera_embedding
    if embedding is None:
        return 0
    mean = embedding.detach().mean(dim=0, keepdim=True)
    model.backbone.camera_embedding = nn.Parameter(torch.cat([embedding.detach(), mean]), requires_grad=False)
    return len(embedding)


def _triplets(given: dict[str, Items]) -> list[tuple[Item, ...]]:
    """Items of RGB, NI and TI by triplet. Raises `UserError` where their numbers differ or a triplet has none."""
    lists = {name: _as_list(items) for name, items in given.items() if items is not None}
    if not lists:
        raise UserError("There is no image: rgb, ni and ti are all None; give at least one of them.")
    counts = {name: len(items) for name, items in lists.items()}
    count = next(iter(counts.values()))
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{number} of {name}" for name, number in counts.items())
        raise UserError(f"The numbers of images differ: {told}; give as many of each modality, None for a missing image.")
    triplets = list(zip(*(lists.get(name, [None] * count) for name in given), strict=True))
    for number, triplet in enumerate(triplets):
        if all(item is None for item in triplet):
            raise UserError(f"Triplet {number} (counted from 0) has no image: rgb, ni and ti are all None; give one or leave "
                            "the triplet out.")
    return triplets


def _as_list(items: Items) -> list[Item]:
    """One item or many as a list."""
    if isinstance(items, (str, Path, Image.Image)):
        return [items]
    is_single = isinstance(items, (np.ndarray, torch.Tensor)) and items.ndim < 4
    return [items] if is_single else list(items)


def _decode(triplet: tuple[Item, ...]) -> tuple[torch.Tensor, ...]:
    """Images uint8 (3, H, W); a missing one, which the model does not look at, is a black pixel."""
    return tuple(as_image(BLANK if item is None else item, ADVICE) for item in triplet)
