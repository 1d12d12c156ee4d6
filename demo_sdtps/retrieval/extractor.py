"""Features of one's own images from a checkpoint: `demo_sdtps.load`."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from safetensors.torch import save_model
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError, load_cfg
from demo_sdtps.config.common import UNSHARED
from demo_sdtps.config.load import DEMO_SCHEMA, StoredText, flatten, get_cfg, with_values
from demo_sdtps.datasets import Sample, check_trained_on, trained_cameras
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation import tables
from demo_sdtps.evaluation.extraction import extract_features
from demo_sdtps.modeling.checkpoints import loading
from demo_sdtps.modeling.demo import make_model
from demo_sdtps.modeling.precision import compile_model
from demo_sdtps.retrieval.calibration import make_calibrations, stored_calibration
from demo_sdtps.retrieval.reid import Reid
from demo_sdtps.runtime.device import choose_device

logger = logging.getLogger(__name__)
FEW = 256  # triplets up to which no loading processes are started


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
    check_trained_on(cfg, checkpoint.origin.get("dataset"), checkpoint.path)
    loading.load_weights(extractor.model, checkpoint, cfg)
    extractor.weights = cfg.TEST.WEIGHT
    return extractor


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
        self, triplets: Sequence[tuple], cameras: Sequence[int], pattern: int, normalise: bool
    ) -> np.ndarray:
        self.to(choose_device(self.cfg), torch.float32)  # after half() or double(), too
        changes: dict[str, Any] = {"DATASETS.NAMES": "Images", "DATASETS.CACHE": "no"}
        if len(triplets) <= FEW:
            changes["DATALOADER.NUM_WORKERS"] = 0
        cfg, names = with_values(self.cfg, changes), self.model.modalities
        samples, by_case = [], defaultdict(list)
        for number, (triplet, camera) in enumerate(zip(triplets, cameras, strict=True)):
            items = dict(zip(names, triplet, strict=True))
            samples.append(Sample(tuple(map(items.get, MODALITIES)), camera=camera))
            by_case[frozenset(name for name in names if items[name] is None)].append(number)
        output = np.empty((len(triplets), self.widths[pattern]), np.float32)
        for case, numbers in by_case.items():
            loader = test_loader(cfg, [samples[number] for number in numbers])
            (patterns,) = extract_features(cfg, self.model, loader, [case])
            features = patterns[pattern]
            output[numbers] = (F.normalize(features) if normalise else features).numpy()
        return output

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
        file = save_directory / loading.SAVED
        save_model(self, str(file))

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """README.md of `save_pretrained`: data set, configuration and, where they are known, metrics and commit."""
        default = flatten(get_cfg())
        values = flatten(self.cfg).items()
        changed = {k: v for k, v in values if k not in UNSHARED and v != default[k]}
        metrics = {
            pattern: {
                name: row[name] for name in tables.MEASURES if name in row
            }  # config.json sorts them
            for pattern, row in (self.origin.get("metrics") or {}).items()
        }
        images = ", ".join(f'{name.lower()}="{name.lower()}.jpg"' for name in self.model.modalities)
        about = self.origin | {
            "images": images,
            "identities": self.model.num_class,
            "model": repr(self).rpartition(", on ")[0],
            "settings": "\n".join(f"{name}: {value}" for name, value in changed.items()),
            "metrics": metrics and tables.reid_table(metrics),
        }
        return super().generate_model_card(*args, **about | kwargs)
