"""What a trained model, a checkpoint or exported, does with the user's images and their features: `demo_sdtps.load`."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from PIL import Image
from safetensors.torch import save_model
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS, UserError, load_cfg
from demo_sdtps.config.common import TOP, UNSHARED, plain
from demo_sdtps.config.load import DEMO_SCHEMA, StoredText, flatten, get_cfg, with_values
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.datasets.published import READERS
from demo_sdtps.evaluation import tables
from demo_sdtps.evaluation.distances import Comparison, Side, make_comparison, set_distances
from demo_sdtps.evaluation.protocol import extract_features
from demo_sdtps.modeling.checkpoints import loading
from demo_sdtps.modeling.demo import DeMo, make_model
from demo_sdtps.modeling.exported import ExportedModel, is_exported
from demo_sdtps.modeling.precision import compile_model
from demo_sdtps.retrieval.features import (
    Features,
    decode_present,
    encode_present,
    modality_mask,
    model_keys,
)
from demo_sdtps.retrieval.nearest import Calibration, Gallery, Hits, search_sets
from demo_sdtps.runtime.device import choose_device
from demo_sdtps.runtime.files import read_json, sha256

logger = logging.getLogger(__name__)
SUFFIX = ".calibration.json"  # of the file that demo-sdtps calibrate writes beside a checkpoint
FEW = 256  # triplets up to which no loading processes are started
ImageLike = Any  # as `datasets.images.decode` takes it, None for a missing one
Items = Any  # an image, a sequence of images, or an array or tensor with a further first axis
Cameras = int | str | Sequence[int | str | None] | None


class Reid:
    """`features` of triplets, their distances, and `search`."""

    cfg: CfgNode
    model: Any  # a `DeMo` or an `ExportedModel`
    cameras: int
    camera_names: Sequence[str]  # as the files of the training have them
    widths: Mapping[int, int]
    calibrations: Mapping[int, Calibration]
    warns_of_cameras = True  # until the first triplet without a camera that the model knows

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
        a modality or for an image of it, is a missing one; modalities that the model does not read are ignored.
        `return_pattern`: 1 original, 2 enhanced, 3 both (docs/method.md). `camera` (one, or n) is counted from 0 as in
        training, or a text, what the training's files call it; None, or another text, is any other camera, for which the mean
        of the cameras' embeddings is taken, as a warning says once. With the camera given, features are those of demo-sdtps
        export.

        Raises `UserError` for an image that cannot be read, numbers of images that differ, a triplet without any image, an
        unknown pattern or camera, and features that are not finite.
        """
        if return_pattern not in RETURN_PATTERNS:
            raise UserError(
                f"The return pattern is {return_pattern!r}, but it must be 1 (original), 2 (enhanced) or 3 (both)."
            )
        names, items = self.model.modalities, dict(zip(MODALITIES, (rgb, ni, ti), strict=True))
        triplets = zip_triplets({name.lower(): items[name] for name in names})
        cameras = self.camera_numbers(camera, len(triplets))
        is_present = np.array([[item is not None for item in triplet] for triplet in triplets])
        present = is_present @ np.array([modality_mask([name]) for name in names])
        features = self._extract(triplets, cameras, return_pattern)
        features = F.normalize(features) if normalise else features
        return Features(features.numpy(), encode_present(present))

    __call__ = features

    def _extract(
        self, triplets: Sequence[tuple], cameras: Sequence[int], pattern: int
    ) -> torch.Tensor:
        """Features (n, D) of images of the model's modalities, None for a missing one."""
        changes: dict[str, Any] = {"DATASETS.NAMES": "Images", "DATASETS.CACHE": "no"}
        if len(triplets) <= FEW:
            changes["DATALOADER.NUM_WORKERS"] = 0
        cfg, names = with_values(self.cfg, changes), self.model.modalities
        samples, by_case = [], defaultdict(list)
        for number, (triplet, camera) in enumerate(zip(triplets, cameras, strict=True)):
            items = dict(zip(names, triplet, strict=True))
            samples.append(Sample(tuple(map(items.get, MODALITIES)), camera=camera))
            case = frozenset(name for name in names if items[name] is None)
            # an exported file takes triplets of all cases at once
            by_case[case if isinstance(self.model, DeMo) else frozenset[str]()].append(number)
        output = torch.empty(len(triplets), self.widths[pattern], dtype=torch.float32)
        for case, numbers in by_case.items():
            loader = test_loader(cfg, [samples[number] for number in numbers])
            (patterns,) = extract_features(cfg, self.model, loader, [case])
            output[numbers] = patterns[pattern]
        return output

    def distance(self, a: Features, b: Features) -> np.ndarray:
        """Squared Euclidean distances (n, m) float32 of features (n, D) and (m, D); those of equal features are equal.

        Triplets that lack modalities are compared by TEST.CROSS_MODAL_DISTANCE, whose columns are normalised anew, so
        give features of length 1; it is infinite where no modality is in common. Features of a width that the model does not
        have are compared by all columns. Raises `UserError` for features that are not finite, or no `Features` of one width.
        """

        def measure(query: torch.Tensor, gallery: torch.Tensor) -> torch.Tensor:
            """By differences in float64, as those of a search."""
            exactly = "donot_use_mm_for_euclid_dist"
            far = torch.cdist(query.double(), gallery.double(), compute_mode=exactly)
            return far.square().float()

        one, other = sides(a, b)
        comparison = self._comparison(self._matching_patterns(one))
        return set_distances(comparison, one, other, measure).numpy()

    def search(self, query: Features, gallery: Features, top: int = TOP) -> Hits:
        """The rows (n, top) int64 of the gallery (m, D) that are nearest to each query (n, D), nearest first and equally
        near ones in their order, and their distances (n, top) float32, as `distance` computes them; a `top` above m is all m,
        and a hit without a modality in common is row -1, at infinity.
        Where the gallery's triplets differ in what they lack, "nearest" is by distances that are scaled to be comparable
        (docs/method.md), with a calibration by probability: by the hits' `scores`. With a calibration (demo-sdtps calibrate)
        the hits have the `probability` that they are of the query's identity.

        Raises `UserError` for a `top` below 1, an empty gallery, features that are not finite, or no `Features` of one width.
        """
        one, other = sides(query, gallery)
        if top < 1 or not len(gallery):
            raise UserError(
                f"top is {top}, and the gallery has {len(gallery)} triplets; both must be at least 1."
            )
        patterns = self._matching_patterns(one)
        # two of one width are 1 and 2, which differ; three are the same features
        calibration = self.calibrations.get(patterns[0]) if len(patterns) in (1, 3) else None
        top = min(top, len(gallery))
        comparison = self._comparison(patterns)
        if gallery.prepared is None or gallery.prepared.comparison != comparison:
            vars(gallery)["prepared"] = Gallery(comparison, other)
            for array in (gallery.values, gallery.present):  # or what is kept would be wrong
                array.flags.writeable = False
        return search_sets(one, gallery.prepared, top, calibration)

    def _matching_patterns(self, side: Side) -> list[int]:
        """The return patterns whose features have as many columns."""
        return [number for number, width in self.widths.items() if width == side[0].shape[1]]

    def _comparison(self, patterns: Sequence[int]) -> Comparison:
        """How features of the first of these return patterns are compared: by all columns where there is none."""
        return make_comparison(self.cfg, patterns[0]) if patterns else Comparison()

    def camera_numbers(self, camera: Cameras, count: int) -> list[int]:
        """`camera` as a list of `count` numbers; any other one is the last, the mean of all."""
        cameras: list[Any] = [camera] * count
        if self.cfg.TEST.UNKNOWN_CAMERAS:
            cameras = [None] * count
        elif isinstance(camera, Iterable) and not isinstance(camera, str):
            cameras = [*camera] if getattr(camera, "ndim", 1) else cameras
        numbers = {name: number for number, name in enumerate(self.camera_names)}
        cameras = [numbers.get(plain(each)) if isinstance(each, str) else each for each in cameras]
        if len(cameras) != count:
            raise UserError(f"There are {len(cameras)} cameras for {count} triplets; give as many.")
        for label in cameras:
            if self.cameras and label is not None and label not in range(self.cameras):
                raise UserError(
                    f"The camera is {label!r}, but must be from 0 to {self.cameras - 1}, or None for any other."
                )
        if self.cameras > 1 and None in cameras and self.warns_of_cameras:
            self.warns_of_cameras = False
            text = "Triplets without a camera that the model knows have the mean of its %d, which costs accuracy; give camera=…"
            logger.warning(text, self.cameras)
        return [self.cameras if label is None else int(label) for label in cameras]


def trained_cameras(cfg: CfgNode, origin: Mapping[str, Any], cameras: int) -> list[str]:
    """What the files of a training call its cameras, by its checkpoint, or else the numbers of a published data set."""
    reader = READERS.get(cfg.DATASETS.NAMES)
    numbers = range(reader.first_camera, reader.first_camera + cameras) if reader else []
    return origin.get("cameras") or [*map(str, numbers)]


class ExportedReid(Reid):
    """`Reid` by an exported file."""

    def __init__(self, cfg: CfgNode):
        self.cfg, self.model = cfg, ExportedModel(cfg.TEST.WEIGHT, cfg.TEST.AMP)
        self.model.check_settings(cfg)
        self.cameras, self.widths = self.model.cameras, self.model.widths
        origin = self.model.about["origin"]
        self.camera_names = trained_cameras(cfg, origin, self.cameras)
        self.calibrations = make_calibrations(origin.get("calibration"), cfg)


class Extractor(
    nn.Module,
    PyTorchModelHubMixin,
    Reid,
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
        # `from_pretrained` passes what config.json has
        if not settings:
            raise UserError(
                "There is no configuration of the model; give a folder or a repository that save_pretrained or "
                "push_to_hub has written, with its config.json."
            )
        self.cfg = load_cfg(StoredText(Path("config.json"), settings))
        self.origin = origin or {}
        device = choose_device(self.cfg)  # refused here, before any image is read
        self.calibrations = make_calibrations(self.origin.get("calibration"), self.cfg)
        self.model = make_model(self.cfg, num_class, camera_num).eval()
        if self.cfg.MODEL.COMPILE:
            compile_model(self.model, device)
        self.cameras = self.model.backbone.cameras
        self.camera_names = trained_cameras(self.cfg, self.origin, self.cameras)
        patterns = self.model.layout.split(torch.empty(0, self.model.layout.width))
        self.widths = {pattern: feature.shape[1] for pattern, feature in patterns.items()}

    def _extract(
        self, triplets: Sequence[tuple], cameras: Sequence[int], pattern: int
    ) -> torch.Tensor:
        device = choose_device(self.cfg)
        self.to(device, torch.float32)  # after half() or double(), too
        with torch.autocast(device.type, enabled=False):  # TEST.AMP alone is the precision
            return super()._extract(triplets, cameras, pattern)

    forward = Reid.features

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

    def _save_pretrained(self, save_directory: Path) -> None:
        save_model(self, str(save_directory / loading.SAVED))

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """README.md of `save_pretrained`: data set, configuration and, where they are known, metrics and commit."""
        default = flatten(get_cfg())
        values = flatten(self.cfg).items()
        changed = {k: v for k, v in values if k not in UNSHARED and v != default[k]}
        rows = (self.origin.get("metrics") or {}).items()
        # config.json sorts them
        metrics = {n: {k: row[k] for k in tables.MEASURES if k in row} for n, row in rows}
        images = ", ".join(f'{name.lower()}="{name.lower()}.jpg"' for name in self.model.modalities)
        about = self.origin | {
            "images": images,
            "identities": self.model.num_class,
            "model": repr(self).rpartition(", on ")[0],
            "settings": "\n".join(f"{name}: {value}" for name, value in changed.items()),
            "metrics": metrics and tables.reid_table(metrics),
        }
        return super().generate_model_card(*args, **about | kwargs)


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
    return open_reid(load_cfg(config_file or loading.stored_config(weight), pairs))


def open_reid(cfg: CfgNode) -> Reid:
    """The model of TEST.WEIGHT."""
    return ExportedReid(cfg) if is_exported(cfg.TEST.WEIGHT) else make_extractor(cfg)


def make_extractor(cfg: CfgNode) -> "Extractor":
    """An `Extractor` with the weights of TEST.WEIGHT."""
    checkpoint = loading.read_checkpoint(cfg.TEST.WEIGHT)
    settings = with_values(cfg, {key: DEMO_SCHEMA.by_name[key].default for key in UNSHARED}).dump()
    # for the model card; where it lies beside its run's files, the commit and the record of the evaluation after its epoch
    folder = checkpoint.path.parent
    records = tables.evaluated_records(tables.read_records(folder))
    metrics = {record["epoch"]: record["patterns"] for record in records}
    run = tables.read_run(folder)
    commit = run.get("commit") and run["commit"] + (", changed" if run.get("changed") else "")
    origin = {"commit": commit, "metrics": metrics.get(checkpoint.origin.get("epoch"))}
    origin |= {**checkpoint.origin, "calibration": stored_calibration(checkpoint)}
    extractor = Extractor(settings, checkpoint.num_class, checkpoint.camera_num, origin)
    loading.load_weights(extractor.model, checkpoint)
    return extractor


def stored_calibration(checkpoint: loading.Checkpoint) -> dict[str, Any] | None:
    """What `calibrate` wrote beside a checkpoint, or a saved `Extractor` has of it."""
    path = checkpoint.path.with_suffix(SUFFIX)
    if not path.exists():
        return checkpoint.origin.get("calibration")
    form = {"checkpoint_sha256": str, "settings": dict, "patterns": dict}
    record = read_json(path, form, {}, "run demo-sdtps calibrate again, or remove it")
    if record["checkpoint_sha256"] == sha256(checkpoint.path):
        return record
    logger.warning("%s is of other weights, and is not used.", path)
    return None


def make_calibrations(record: Mapping[str, Any] | None, cfg: CfgNode) -> Mapping[int, Calibration]:
    """The calibration of each return pattern; none where the record, if there is one, is of another configuration."""
    calibrations: dict[int, dict] = defaultdict(dict)
    if record and record["settings"] != calibration_settings(cfg):
        logger.warning("The calibration is of another configuration, and is not used.")
        record = None
    for pattern, fits in record["patterns"].items() if record else ():
        for name, values in fits.items():
            one, other = (frozenset(side.split("+")) for side in name.split(", "))
            for sets in ((one, other), (other, one)):
                calibrations[int(pattern)][sets] = values["slope"], values["offset"]
    return calibrations


def calibration_settings(cfg: CfgNode) -> dict[str, Any]:
    """The configuration keys that a calibration depends on."""
    return {**model_keys(cfg), "TEST.CROSS_MODAL_DISTANCE": cfg.TEST.CROSS_MODAL_DISTANCE}


def sides(query: Features, gallery: Features) -> tuple[Side, Side]:
    """Features (n, D) and (m, D), and what is present in them."""
    are_features = isinstance(query, Features) and isinstance(gallery, Features)
    if not are_features or query.shape[1] != gallery.shape[1]:
        raise UserError(
            "The features must be of one return pattern; give what features(…) returns, or Features(values, present), "
            f"of one width, not {' and '.join(str(getattr(each, 'shape', each)) for each in (query, gallery))}."
        )
    one, other = ((each.matrix, decode_present(each.present)) for each in (query, gallery))
    return one, other


def zip_triplets(items: dict[str, Items]) -> list[tuple[ImageLike, ...]]:
    """Items by triplet, from those by modality."""
    lists = {name: list_images(each) for name, each in items.items() if each is not None}
    counts = {name: len(each) for name, each in lists.items()}
    names, count = ", ".join(items), max(counts.values(), default=0)
    if min(counts.values(), default=0) < count:
        listed = ", ".join(f"{number} of {name}" for name, number in counts.items())
        raise UserError(
            f"The numbers of images differ: {listed}; give as many of each modality, None for a missing image."
        )
    triplets = list(zip(*(lists.get(name, [None] * count) for name in items), strict=True))
    for number, triplet in enumerate(triplets or [()]):
        if all(item is None for item in triplet):
            raise UserError(
                f"Triplet {number} (from 0) has no image of {names}, which the model reads; give one or leave it out."
            )
    return triplets


def list_images(items: Items) -> list[ImageLike]:
    """One item or many as a list."""
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
