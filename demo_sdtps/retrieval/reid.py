"""What a trained model does with the user's images and their features, in a checkpoint or exported: `demo_sdtps.load`
(docs/search.md)."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS, UserError, load_cfg, with_values
from demo_sdtps.config.common import FALSE_ACCEPT, TOP
from demo_sdtps.config.ranges import Range, read_ranges
from demo_sdtps.datasets import trained_cameras
from demo_sdtps.datasets.pixels import read_pixels
from demo_sdtps.modeling.exported import ExportedModel, is_exported
from demo_sdtps.retrieval.features import (
    Features,
    Hits,
    as_matrix,
    decode_present,
    encode_present,
    modality_mask,
)

if TYPE_CHECKING:  # an exported model needs no torch for features
    from torch import Tensor

    from demo_sdtps.evaluation.distances import Comparison, Side
    from demo_sdtps.retrieval.calibration import Calibration
    from demo_sdtps.retrieval.table import Rows

logger = logging.getLogger(__name__)

ImageLike = Any  # as `datasets.pixels.read_pixels` takes it, None for a missing one
Items = Any  # an image, a sequence of images, or an array or tensor with a further first axis
Cameras = int | str | Sequence[int | str | None] | None


class Reid(ABC):
    """`features` of triplets, their distances, and `search`."""

    cfg: CfgNode
    weights: str = ""  # the file or folder that they were read from
    model: Any  # of which it reads the `modalities`
    cameras: int
    camera_names: Sequence[str]  # as the files of the training have them
    widths: Mapping[int, int]
    calibrations: "Mapping[int, Calibration]"

    @abstractmethod
    def _extract(
        self, triplets: Sequence[tuple], cameras: Sequence[int], pattern: int, normalise: bool
    ) -> np.ndarray:
        """Features (n, D) of images of the model's modalities, None for a missing one."""

    def features(
        self,
        rgb: Items = None,
        ni: Items = None,
        ti: Items = None,
        *,
        return_pattern: int = 3,
        camera: Cameras = None,
        normalise: bool = True,
    ) -> Features:
        """Features of n triplets, (n, D) float32, of Euclidean length 1 with `normalise`, and what is present in each.

        Each modality is an image or a sequence of n: paths, PIL images, arrays (H, W, 3) or (H, W), tensors (3, H, W),
        (1, H, W) or (H, W), of uint8 or of floats in [0, 1]; those with three axes may have n as a further first one. None, for
        a modality or for an image of it, is a missing one.
        `return_pattern`: 1 original, 2 enhanced, 3 both (docs/method.md). `camera` (one, or n) is counted
        from 0 as in training, or a text, what the training's files call it; None, or another text, is any other camera, for
        which the mean of the cameras' embeddings is taken. With the camera given, features are those of demo-sdtps export.

        Raises `UserError` for an image that cannot be read, or of a modality that the model does not read, numbers of images
        that differ, a triplet without any image, an unknown pattern or camera, and features that are not finite.
        """
        if return_pattern not in RETURN_PATTERNS:
            raise UserError(
                f"The return pattern is {return_pattern!r}, but it must be 1 (original), 2 (enhanced) or 3 (both)."
            )
        names, items = self.model.modalities, dict(zip(MODALITIES, (rgb, ni, ti), strict=True))
        for name, each in items.items():
            if name not in names and any(item is not None for item in list_images(each)):
                raise UserError(
                    f"There are images of {name.lower()}, but the model reads {', '.join(names).lower()} alone "
                    "(MODEL.MODALITIES); leave them out, or load a model that reads them."
                )
        triplets = zip_triplets({name.lower(): items[name] for name in names})
        cameras = self.camera_numbers(camera, len(triplets))
        is_present = np.array([[item is not None for item in triplet] for triplet in triplets])
        present = is_present @ np.array([modality_mask([name]) for name in names])
        features = self._extract(triplets, cameras, return_pattern, normalise)
        return Features(features, encode_present(present))

    __call__ = features

    def distance(self, a: "Features | np.ndarray", b: "Features | np.ndarray") -> np.ndarray:
        """Squared Euclidean distances (n, m) float32 of features (n, D) and (m, D); those of equal features are equal.

        Triplets that lack modalities are compared by TEST.CROSS_MODAL_DISTANCE, whose columns are normalised anew, so
        give features of length 1; it is infinite where no modality is in common. Arrays other than `Features` count as of
        complete triplets, which is logged; features of a width that the model does not have are compared by all columns.
        """
        from torch import cdist

        from demo_sdtps.evaluation.distances import set_distances

        def measure(query: "Tensor", gallery: "Tensor") -> "Tensor":
            """By differences in float64, as those of a search."""
            exactly = "donot_use_mm_for_euclid_dist"
            return cdist(query.double(), gallery.double(), compute_mode=exactly).square().float()

        one, other = self._sides(a, b)
        comparison = self._comparison(self._matching_patterns(one[0].shape[1]))
        return set_distances(comparison, one, other, measure).numpy()

    def search(
        self,
        query: "Features | np.ndarray",
        gallery: "Features | np.ndarray | str | Path",
        top: int = TOP,
        *,
        false_accept: float = FALSE_ACCEPT,
        where: str | None = None,
    ) -> Hits:
        """The rows (n, top) int64 of the gallery (m, D) that are nearest to each query (n, D), nearest first and equally
        near ones in their order, and their distances (n, top) float32, as `distance` computes them; a `top` above m is all m,
        and a hit without a modality in common is row -1, at infinity.
        Where the gallery's triplets differ in what they lack, "nearest" is by distances that are scaled to be comparable
        (docs/method.md), with a calibration by probability: by the hits' `scores`.

        With a calibration (demo-sdtps calibrate) the hits have probabilities too, and those are unknown, and last, that are
        beyond the distance which the share `false_accept` of the pairs of different identities is within: 0.0001, 0.001, 0.01
        or 0.05, or the next of these that the labelled pairs suffice for.

        A gallery may also be the place of an index (--index of demo-sdtps search), which need not fit into the memory; of it
        those rows are searched that `where` leaves, a condition in SQL. Its hits have `names` too; its rows are numbered in
        the order of the names.

        Raises `UserError` for a `top` below 1, an empty gallery, a query without a modality in common with any of it, an index
        of other weights or settings, and a wrong condition.
        """
        from demo_sdtps.evaluation.distances import check_finite, find_incomparable
        from demo_sdtps.retrieval.nearest import Gallery, search_sets
        from demo_sdtps.retrieval.table import Rows

        stored: Gallery
        if isinstance(gallery, (str, Path)):
            (side,) = self._sides(query)
            stored, patterns = self._open_table(side[0].shape[1], gallery, where)
        elif where is not None:
            raise UserError(
                "where needs a gallery that is a table, but this one is an array; give a table's place, or select rows."
            )
        else:
            side, (features, present) = self._sides(query, gallery)
            check_finite(features, "features of the gallery")
            stored = Gallery(features, present)
            patterns = self._matching_patterns(features.shape[1])
        if top < 1 or not len(stored):
            raise UserError(
                f"top is {top}, and the gallery has {len(stored)} triplets; both must be at least 1."
            )
        comparison = self._comparison(patterns)
        alone = find_incomparable(comparison, side[1], stored.present)
        if len(alone):
            raise UserError(
                f"Query {alone[0]} (from 0) has no modality in common with any of the gallery (queries like it: {len(alone)}); "
                "leave it out, or compare by TEST.CROSS_MODAL_DISTANCE all."
            )
        # two of one width are 1 and 2, which differ; three are the same features
        calibration = self.calibrations.get(patterns[0]) if len(patterns) in (1, 3) else None
        top = min(top, len(stored))
        hits = search_sets(comparison, side, stored, top, calibration, false_accept)
        if isinstance(stored, Rows):
            hits.names = stored.names(hits.rows)
        return hits

    def _open_table(
        self, width: int, place: str | Path, where: str | None
    ) -> "tuple[Rows, list[int]]":
        """The rows of a table in which queries of `width` columns are searched, and their return pattern."""
        from demo_sdtps.retrieval.gallery import check_origin, describe_features
        from demo_sdtps.retrieval.table import open_table

        table = open_table(place)
        if table is None or not self.weights:
            raise UserError(
                f"The gallery {place} does not exist, or the model is none of demo_sdtps.load, whose weights are compared with "
                "those of the index; give the place of an index of demo-sdtps search, and load the model."
            )
        pattern = table.facts["return_pattern"]
        cfg = with_values(self.cfg, {"TEST.WEIGHT": self.weights})
        check_origin(table, describe_features(cfg, pattern))
        if width != table.width:
            raise UserError(
                f"The queries have {width} columns, but the features in {place} are of return pattern {pattern} and "
                f"{table.width} columns; give what features(…, return_pattern={pattern}) returns."
            )
        return table.read(where), [pattern]

    def _matching_patterns(self, width: int) -> list[int]:
        """The return patterns whose features have so many columns."""
        return [number for number, columns in self.widths.items() if columns == width]

    def _comparison(self, patterns: Sequence[int]) -> "Comparison":
        """How features of the first of these return patterns are compared: by all columns where there is none."""
        from demo_sdtps.evaluation.distances import Comparison, make_comparison

        return make_comparison(self.cfg, patterns[0]) if patterns else Comparison()

    def _sides(self, *features: Any) -> "list[Side]":
        """Features (n, D) and (m, D), and what is present in them; in other arrays all that the model reads."""
        import torch

        matrices = [as_matrix(each) for each in features]
        if len({matrix.shape[1] for matrix in matrices}) > 1:
            raise UserError(
                f"The features have the shapes {' and '.join(str(matrix.shape) for matrix in matrices)}; give what "
                "features(…) returns, of one return pattern."
            )
        sides = []
        for each, matrix in zip(features, matrices, strict=True):
            present = np.tile(modality_mask(self.model.modalities), (len(matrix), 1))
            if isinstance(each, Features):
                present = decode_present(each.present)
            else:
                logger.warning(
                    "Features that do not say what is present count as of complete triplets; give Features(values, present)."
                )
            sides.append((torch.from_numpy(matrix), present))
        return sides

    def camera_numbers(self, camera: Cameras, count: int) -> list[int]:
        """`camera` as a list of `count` numbers; any other one is the last, the mean of all."""
        cameras: list[Any] = [camera] * count
        if isinstance(camera, Iterable) and not isinstance(camera, str):
            cameras = [*camera]
        numbers = {name: number for number, name in enumerate(self.camera_names)}
        cameras = [numbers.get(each) if isinstance(each, str) else each for each in cameras]
        if len(cameras) != count:
            raise UserError(f"There are {len(cameras)} cameras for {count} triplets; give as many.")
        for label in cameras:
            if self.cameras and label is not None and label not in range(self.cameras):
                raise UserError(
                    f"The camera is {label!r}, but must be from 0 to {self.cameras - 1}, or None for any other."
                )
        return [self.cameras if label is None else int(label) for label in cameras]


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


def load(
    weight: str | Path,
    *opts: object,
    config_file: str | Path | None = None,
    device: str | None = None,
) -> Reid:
    """A model for the user's images: an `Extractor` from a checkpoint, on the GPU if there is one, or an `ExportedReid`.

    `weight` is a file of train_net.py or of DeMo, the folder of a run (last.pth is read) or of `Extractor.save_pretrained`, the
    .safetensors file in it, or an exported file, .onnx or .xml. `opts` are KEY VALUE pairs that override the checkpoint's
    configuration, such as "TEST.AMP", "auto"; `device` is that of MODEL.DEVICE. `config_file` replaces the configuration, for
    checkpoints of DeMo, which have none. Raises `UserError` for weights that are missing, cannot be read, or do not fit.
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


def zip_triplets(items: dict[str, Items]) -> list[tuple[ImageLike, ...]]:
    """Items by triplet, from those by modality."""
    lists = {name: list_images(each) for name, each in items.items() if each is not None}
    counts = {name: len(each) for name, each in lists.items()}
    names, count = ", ".join(items), max(counts.values(), default=0)
    if not count:
        raise UserError(
            f"There is no image of {names}, which the model reads; give at least one of them."
        )
    if min(counts.values()) < count:
        listed = ", ".join(f"{number} of {name}" for name, number in counts.items())
        raise UserError(
            f"The numbers of images differ: {listed}; give as many of each modality, None for a missing image."
        )
    triplets = list(zip(*(lists.get(name, [None] * count) for name in items), strict=True))
    for number, triplet in enumerate(triplets):
        if all(item is None for item in triplet):
            raise UserError(
                f"Triplet {number} (from 0) has no image of {names}; give one or leave it out."
            )
    return triplets


def list_images(items: Items) -> list[ImageLike]:
    """One item or many as a list, None as an empty one."""
    if items is None:
        return []
    if isinstance(items, (str, Path, Image.Image)):
        return [items]
    if isinstance(items, np.ndarray) and items.dtype.kind in "USO":  # of paths or images
        return list(items.flat)
    if getattr(items, "ndim", 4) < 4:  # an array or a tensor
        return [items]
    if not isinstance(items, Iterable):
        raise UserError(
            f"{items!r} is no image; give a path, a PIL image, an array, a tensor, or a sequence of them."
        )
    return list(items)
