"""Features of one's own images from a checkpoint: `demo_sdtps.load`."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS, UserError, load_cfg
from demo_sdtps.config.common import FALSE_ACCEPT, TOP
from demo_sdtps.config.load import DEMO_SCHEMA, StoredText, flat, get_cfg, with_values
from demo_sdtps.config.ranges import Range, ranges_of
from demo_sdtps.datasets import check_trained_on
from demo_sdtps.datasets.images import Images, as_image, flat_images
from demo_sdtps.datasets.loaders import ImageDataset, loader_kwargs
from demo_sdtps.datasets.transforms import PerModality, test_transform
from demo_sdtps.evaluation import tables
from demo_sdtps.evaluation.distances import (
    Comparison,
    Side,
    comparison_of,
    scaled,
    scales_of,
    set_distances,
    set_of,
)
from demo_sdtps.evaluation.extraction import extract_features
from demo_sdtps.modeling import make_model
from demo_sdtps.modeling.checkpoints.loading import (
    Checkpoint,
    load_weights,
    read_checkpoint,
    stored_config,
)
from demo_sdtps.retrieval.calibration import Calibration, calibrations_of, stored_calibration
from demo_sdtps.retrieval.features import Features, Hits
from demo_sdtps.retrieval.origin import UNSHARED
from demo_sdtps.runtime.device import choose_device
from demo_sdtps.runtime.files import read_json

logger = logging.getLogger(__name__)
FEW = 256  # triplets up to which no loading processes are started

ImageLike = Any  # as `as_image` takes it, None for a missing one
Items = Any  # an image, a sequence of images, or an array or tensor with a further first axis


def load(
    weight: str | Path,
    *opts: object,
    config_file: str | Path | None = None,
    device: str | torch.device | None = None,
) -> "Extractor":
    """An `Extractor` from a checkpoint, on the GPU if there is one.

    `weight` is a file of train_net.py or of DeMo, the folder of a run (last.pth is read) or of `Extractor.save_pretrained`, the
    .safetensors file in it, or, where no such folder is here, owner/name of a repository of the Hugging Face hub. `opts` are
    KEY VALUE pairs that override the checkpoint's configuration, such as "TEST.AMP", "auto"; `device` is that of MODEL.DEVICE.
    `config_file` replaces the configuration, for checkpoints of DeMo, which have none. Raises `UserError` for weights that are
    missing, cannot be read, or do not fit.
    """
    pairs = [*opts, *(["MODEL.DEVICE", device] if device else []), "TEST.WEIGHT", weight]
    return make_extractor(load_cfg(config_file or stored_config(weight), [*map(str, pairs)]))


def make_extractor(cfg: CfgNode) -> "Extractor":
    """An `Extractor` with the weights of TEST.WEIGHT."""
    checkpoint = read_checkpoint(cfg.TEST.WEIGHT)
    settings = with_values(cfg, {key: DEMO_SCHEMA.by_name[key].default for key in UNSHARED}).dump()
    origin = _origin(checkpoint)
    extractor = Extractor(settings, checkpoint.num_class, checkpoint.camera_num, origin)
    check_trained_on(cfg, checkpoint.origin.get("dataset"), checkpoint.path)
    load_weights(extractor.model, checkpoint)
    return extractor


def _origin(checkpoint: Checkpoint) -> dict[str, Any]:
    """Where a model comes from, for its card: the checkpoint's ORIGIN and, where it lies beside its run's files, the commit and
    the record of the evaluation after its epoch."""
    folder = checkpoint.path.parent
    records = tables.evaluated_records(tables.read_records(folder))
    metrics = {record["epoch"]: record["patterns"] for record in records}
    run = read_json(folder / tables.RECORD) or {}
    commit = run.get("commit") and run["commit"] + (", changed" if run.get("changed") else "")
    return {
        "commit": commit,
        "metrics": metrics.get(checkpoint.origin.get("epoch")),
        **checkpoint.origin,
        "calibration": stored_calibration(checkpoint),
    }


class Extractor(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="demo_sdtps",
    license="mit",
    tags=["re-identification"],
    model_card_template=Path(__file__).with_name("model_card.md").read_text(encoding="utf-8"),
):
    """Features of triplets of images, by a trained model: `features`, or a call of it.

    `settings` is the configuration as YAML text, `origin` what the model card says of the training (ORIGIN in
    `modeling.checkpoints.loading`), `widths` the columns D of a feature by return pattern, `cameras` the number of cameras that
    the model knows, 0 for none. `save_pretrained(folder)` writes weights, configuration and model card, from which `load`
    makes an equal one, as from a repository of the Hugging Face hub, to which `push_to_hub` uploads it.
    """

    def __init__(
        self,
        settings: str = "",
        num_class: int = 0,
        camera_num: int = 0,
        origin: dict[str, Any] | None = None,
    ):
        super().__init__()
        if not settings:  # `from_pretrained` passes what config.json has
            raise UserError(
                "There is no configuration of the model; give a folder or a repository that save_pretrained or "
                "push_to_hub has written, with its config.json."
            )
        self.cfg = load_cfg(StoredText(Path("config.json"), settings))
        self.origin = origin or {}
        ranges = ranges_of(self.cfg)
        self._decode = partial(_decode, [ranges[name] for name in self.cfg.MODEL.MODALITIES])
        self.calibrations = calibrations_of(self.origin.get("calibration"), self.cfg)
        self.model = make_model(self.cfg, num_class, camera_num).eval()
        if self.cfg.MODEL.COMPILE:
            self.model.backbone.compile_blocks()
        embedding = self.model.backbone.camera_embedding
        self.cameras = 0 if embedding is None else len(embedding)
        patterns = self.model.layout.split(torch.empty(0, self.model.layout.width))
        self.widths = {pattern: feature.shape[1] for pattern, feature in patterns.items()}

    def features(
        self,
        rgb: Items = None,
        ni: Items = None,
        ti: Items = None,
        *,
        return_pattern: int = 3,
        camera: int | Sequence[int] | None = None,
        normalise: bool = True,
    ) -> Features:
        """Features of n triplets, (n, D) float32, of Euclidean length 1 with `normalise`, and what is present in each.

        Each modality is an image or a sequence of n: paths, PIL images, arrays (H, W, 3) or (H, W), tensors (3, H, W),
        (1, H, W) or (H, W), of uint8, of floats in [0, 1], or of 16 bits, which INPUT.RANGES scales (and any values whose range
        it states); arrays and tensors may have n as a further first axis. None, for a modality or for an image of it, is a
        missing one.
        `return_pattern`: 1 original, 2 enhanced, 3 both (docs/method.md). `camera` (one, or n) is counted
        from 0 as in training; None, for images of any other camera, takes the mean of the cameras' embeddings. With the camera
        given, features are those of tools/export_features.py.

        Raises `UserError` for an image that cannot be read, or of a modality that the model does not read, numbers of images
        that differ, a triplet without any image, an unknown pattern or camera, and features that are not finite.
        """
        if return_pattern not in RETURN_PATTERNS:
            raise UserError(
                f"The return pattern is {return_pattern!r}, but it must be 1 (original), 2 (enhanced) or 3 (both)."
            )
        names, items_of = self.model.modalities, dict(zip(MODALITIES, (rgb, ni, ti), strict=True))
        for name, items in items_of.items():
            unread = [] if name in names or items is None else _as_list(items)
            if any(item is not None for item in unread):
                raise UserError(
                    f"There are images of {name.lower()}, but the model reads {', '.join(names).lower()} alone "
                    "(MODEL.MODALITIES); leave them out, or load a model that reads them."
                )
        triplets = _zip_triplets({name.lower(): items_of[name] for name in names})
        cameras = self._cameras(camera, len(triplets))
        for warning in flat_images(triplets, self._decode, names):
            logger.warning(warning)
        self.to(choose_device(self.cfg))
        output = np.empty((len(triplets), self.widths[return_pattern]), np.float32)
        present = np.empty(len(triplets), np.uint8)
        by_case: dict[frozenset[str], list[int]] = defaultdict(list)
        for number, triplet in enumerate(triplets):
            missing = {name for name, item in zip(names, triplet, strict=True) if item is None}
            by_case[frozenset(missing)].append(number)
        for case, numbers in by_case.items():
            loader = self._loader([triplets[i] for i in numbers], [cameras[i] for i in numbers])
            (patterns,) = extract_features(self.cfg, self.model, loader, [case])
            features = patterns[return_pattern]
            output[numbers] = (F.normalize(features) if normalise else features).numpy()
            present[numbers] = set_of(set(names) - case)
        return Features(output, present)

    forward = features

    def distance(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Squared Euclidean distances (n, m) float32 of features (n, D) and (m, D); those of equal features are equal.

        Triplets that lack modalities are compared by TEST.CROSS_MODAL_DISTANCE, whose columns are normalised anew, so
        give features of length 1; it is infinite where no modality is in common. Arrays other than `Features` count as of
        complete triplets, which is logged; features of a width that the model does not have are compared by all columns.
        """
        comparison, query, gallery = self._compared(a, b)
        return set_distances(comparison, query, gallery, by_differences).numpy()

    def _compared(self, a: np.ndarray, b: np.ndarray) -> tuple[Comparison, Side, Side]:
        """How features are compared, and what `set_distances` takes of them."""
        if not (np.ndim(a) == np.ndim(b) == 2 and a.shape[1] == b.shape[1]):
            raise UserError(
                f"The features have the shapes {np.shape(a)} and {np.shape(b)}, but must be (n, D) and (m, D); "
                "give what features(…) returns, of one return pattern."
            )
        pattern = self._pattern_of(a)
        comparison = comparison_of(self.cfg, pattern) if pattern else Comparison()
        return comparison, self._side(a), self._side(b)

    def search(
        self,
        query: np.ndarray,
        gallery: np.ndarray,
        top: int = TOP,
        *,
        false_accept: float = FALSE_ACCEPT,
    ) -> Hits:
        """The rows (n, top) int64 of the gallery (m, D) that are nearest to each query (n, D), nearest first and equally
        near ones in their order, and their distances (n, top) float32, as `distance` computes them; a `top` above m is all m.
        Where the gallery's triplets differ in what they lack, "nearest" is by distances that are scaled to be comparable
        (docs/method.md), and those that are returned need not ascend.

        With a calibration (demo-sdtps calibrate) the hits have probabilities too, and those are unknown that are beyond the
        distance which the share `false_accept` of the pairs of different identities is within: 0.0001, 0.001, 0.01 or 0.05.

        Raises `UserError` for a query without a modality in common with any of the gallery, and a rate that the calibration
        does not have.
        """
        comparison, side, (others, present) = self._compared(query, gallery)
        distances = set_distances(comparison, side, (others, present), by_differences)
        if len(far := np.flatnonzero(distances.isinf().all(dim=1))):
            raise UserError(
                f"Query {far[0]} (from 0) has no modality in common with any of the gallery (queries like it: {len(far)}); "
                "leave it out, or compare by TEST.CROSS_MODAL_DISTANCE pairs."
            )
        scales = scales_of(comparison, side, present, others.__getitem__)
        order = scaled(distances, scales, present).numpy()
        rows = order.argsort(axis=1, kind="stable")[:, :top]
        hits = Hits(rows, np.take_along_axis(distances.numpy(), rows, axis=1))
        if calibration := self.calibration_of(query):
            calibration.check_rate(false_accept)
            sets = side[1][:, None], present[rows]
            judged = calibration.judge(hits.distances, *sets, false_accept)
            hits.probability, hits.is_unknown = judged
        return hits

    def calibration_of(self, features: np.ndarray) -> Calibration | None:
        """That of the return pattern of features, which their width tells; None where it is of several."""
        patterns = [number for number, width in self.widths.items() if width == features.shape[1]]
        return self.calibrations.get(patterns[0]) if len(patterns) == 1 else None

    def _pattern_of(self, features: np.ndarray) -> int | None:
        """The return pattern of features, by their width."""
        patterns = (number for number, width in self.widths.items() if width == features.shape[1])
        return next(patterns, None)

    def _present(self, features: np.ndarray) -> np.ndarray:
        """What is present in features; of other arrays all that the model reads."""
        present = getattr(features, "present", None)
        return (
            np.full(len(features), set_of(self.model.modalities), np.uint8)
            if present is None
            else present
        )

    def _side(self, features: np.ndarray) -> Side:
        """Features, and what is present in them."""
        if getattr(features, "present", None) is None:
            logger.warning(
                "Features that do not say what is present count as of complete triplets; give Features(values, present)."
            )
        return torch.from_numpy(np.asarray(features, np.float32)), self._present(features)

    def __repr__(self) -> str:
        optional = ("slimming", "sdtps", "hdm", "atmoe")
        modules = ", ".join(name for name in optional if getattr(self.model, name))
        widths = ", ".join(
            f"{width} ({tables.PATTERN_NAMES[pattern]})" for pattern, width in self.widths.items()
        )
        size = " × ".join(map(str, self.cfg.INPUT.SIZE_TEST))
        return (
            f"Extractor: {self.cfg.MODEL.TRANSFORMER_TYPE} with {modules or 'the backbone alone'}\n"
            f"  {', '.join(self.model.modalities)} of {size} pixels → features of {widths} numbers\n"
            f"  {self.cameras or 'no'} cameras, on {choose_device(self.cfg)}"
        )

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """README.md of `save_pretrained`: data set, configuration and, where they are known, metrics and commit."""
        default = flat(get_cfg())
        settings = [
            f"{name}: {value}"
            for name, value in flat(self.cfg).items()
            if name not in UNSHARED and value != default[name]
        ]
        metrics = {
            pattern: {name: row[name] for name in tables.MEASURES}  # config.json sorts them
            for pattern, row in (self.origin.get("metrics") or {}).items()
        }
        images = ", ".join(f'{name.lower()}="{name.lower()}.jpg"' for name in self.model.modalities)
        about = self.origin | {
            "images": images,
            "identities": self.model.num_class,
            "model": repr(self).rpartition(", on ")[0],
            "settings": "\n".join(settings),
            "metrics": metrics and tables.reid_table(metrics),
        }
        return super().generate_model_card(*args, **about | kwargs)

    def _cameras(self, camera: int | Sequence[int] | None, count: int) -> list[int]:
        """`camera` as a list of `count`; None is the last, the mean of all."""
        cameras: list[Any] = list(camera) if isinstance(camera, Iterable) else [camera] * count
        if len(cameras) != count:
            raise UserError(f"There are {len(cameras)} cameras for {count} triplets; give as many.")
        for label in cameras:
            if self.cameras and label is not None and label not in range(self.cameras):
                raise UserError(
                    f"The camera is {label!r}, but must be from 0 to {self.cameras - 1}, or None for any other."
                )
        return [self.cameras if label is None else int(label) for label in cameras]

    def _loader(self, triplets: list[tuple], cameras: list[int]) -> DataLoader:
        dataset = ImageDataset(
            triplets,
            [(0, camera) for camera in cameras],
            PerModality(test_transform(self.cfg)),
            cache=False,
            decode=self._decode,
            modalities=self.model.modalities,
        )
        cfg = self.cfg
        if len(triplets) <= FEW:
            cfg = with_values(cfg, {"DATALOADER.NUM_WORKERS": 0})
        return DataLoader(dataset, batch_size=cfg.TEST.IMS_PER_BATCH, **loader_kwargs(cfg, dataset))


def by_differences(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Squared distances (n, m): products of matrices would give equal features distances that differ by rounding."""
    return torch.cdist(some, others, compute_mode="donot_use_mm_for_euclid_dist").square()


def _zip_triplets(items_of: dict[str, Items]) -> list[tuple[ImageLike, ...]]:
    """Items by triplet, from those by modality."""
    lists = {name: _as_list(items) for name, items in items_of.items() if items is not None}
    counts = {name: len(items) for name, items in lists.items()}
    if not any(counts.values()):
        raise UserError(
            f"There is no image of {', '.join(items_of)}, which the model reads; give at least one of them."
        )
    count = max(counts.values())
    if min(counts.values()) < count:
        listed = ", ".join(f"{number} of {name}" for name, number in counts.items())
        raise UserError(
            f"The numbers of images differ: {listed}; give as many of each modality, None for a missing image."
        )
    triplets = list(zip(*(lists.get(name, [None] * count) for name in items_of), strict=True))
    for number, triplet in enumerate(triplets):
        if all(item is None for item in triplet):
            raise UserError(
                f"Triplet {number} (from 0) has no image of {', '.join(items_of)}; give one or leave it out."
            )
    return triplets


def _as_list(items: Items) -> list[ImageLike]:
    """One item or many as a list."""
    if isinstance(items, (str, Path, Image.Image)):
        return [items]
    if isinstance(items, np.ndarray) and items.dtype.kind in "USO":  # of paths or images
        items = list(items.flat)
    is_single = isinstance(items, (np.ndarray, torch.Tensor)) and items.ndim < 4
    if not is_single and not isinstance(items, Iterable):
        raise UserError(
            f"{items!r} is no image; give a path, a PIL image, an array, a tensor, or a sequence of them."
        )
    return [items] if is_single else list(items)


def _decode(scales: Sequence[Range], triplet: tuple[ImageLike, ...]) -> Images:
    """Images uint8 (3, H, W), None for a missing one."""
    advice = "; replace it or leave it out."
    return tuple(
        None if item is None else as_image(item, advice, scale)
        for item, scale in zip(triplet, scales, strict=True)
    )
