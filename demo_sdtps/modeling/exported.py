"""A model that `demo-sdtps export onnx` or `export openvino` has written, run without torch (docs/deploy.md)."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from yacs.config import CfgNode

from demo_sdtps.config.common import WITHOUT_EFFECT
from demo_sdtps.config.load import StoredText, flatten, parse_yaml
from demo_sdtps.modeling.checkpoints.records import NUMBER, ORIGIN, PATTERN
from demo_sdtps.runtime.errors import UserError, check_extra
from demo_sdtps.runtime.files import has_form, is_sound
from demo_sdtps.runtime.threads import THREADS, cpu_cores

SUFFIXES = (".onnx", ".xml")
NORMALISED, UINT8, IMAGENET = INPUTS = ("normalised", "uint8", "imagenet")
"""What a file takes: float32 images of the model's size, normalised by its own statistics; uint8 images of any size; or float32
ones normalised by ImageNet's, as trackers give them, without a camera."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ABOUT = "demo_sdtps"  # the name of the record in the file's metadata
HINTS = {"off": "f32", "bf16": "bf16", "fp16": "f16"}
"""Precision of OpenVINO by TEST.AMP; by auto it is OpenVINO's choice for the processor."""

FIXED = ("INPUT.SIZE_TEST", "INPUT.PIXEL_MEAN", "INPUT.PIXEL_STD", "TEST.NECK_FEAT")
"""Keys beside those of MODEL whose values are part of the graph."""

FORM = {
    "input": str,
    "modalities": [str],
    "size": [int],
    "mean": [NUMBER],
    "std": [NUMBER],
    "cameras": int,
    "columns": {PATTERN: [int]},
    "config": str,
    "origin": ORIGIN,
}
"""Of the record of a file (`has_form`)."""
Run = Callable[[Mapping[str, np.ndarray]], np.ndarray]


def is_exported(path: str | Path) -> bool:
    return Path(path).suffix in SUFFIXES


def other_settings(cfg: CfgNode, config: StoredText) -> dict[str, tuple[Any, Any]]:
    """The keys of a configuration that belong to a model, and have other values in the stored `config`: both values."""
    stored = flatten(parse_yaml(config.text, f"The configuration in {config}"))
    return {
        key: (value, stored[key])
        for key, value in flatten(cfg).items()
        if key in FIXED or (key.startswith("MODEL.") and key not in WITHOUT_EFFECT)
        if value != stored.get(key, value)
    }


class ExportedModel:
    """Features of decoded triplets by ONNX Runtime or OpenVINO on the CPU. `about` is the record of the file: "input",
    "modalities", "size" (height, width), "mean", "std", "cameras", "columns" (start and end of each return pattern in the
    output), "config" (YAML) and "origin", as `Extractor` takes them. `amp` is a value of TEST.AMP, which OpenVINO's files heed.
    `threads`: those of OMP_NUM_THREADS, or all."""

    def __init__(self, path: str | Path, amp: str = "off", threads: int = 0):
        threads = threads or int(os.environ.get(THREADS) or cpu_cores())
        self.path = Path(path)
        text, self.run = _open(self.path, amp, threads)
        self.about: dict[str, Any] = {}
        with suppress(ValueError, RecursionError):
            self.about = json.loads(text)
        if not has_form(self.about, FORM):
            raise UserError(
                f"The model {path} has no record of demo-sdtps; export the checkpoint again, by demo-sdtps export."
            )
        self.config = StoredText(self.path, self.about["config"])  # as `load_cfg` takes it
        self.modalities = tuple(self.about["modalities"])
        self.cameras: int = self.about["cameras"]
        self.columns = {int(name): slice(*ends) for name, ends in self.about["columns"].items()}
        self.widths = {name: each.stop - each.start for name, each in self.columns.items()}
        self.width = max(each.stop for each in self.columns.values())

    def check_pattern(self, pattern: int) -> None:
        """Raise `UserError` where the file does not give this return pattern."""
        if pattern not in self.columns:
            raise UserError(
                f"The return pattern is {pattern}, but {self.path} gives {next(iter(self.columns))} alone; ask for that, "
                "or export with another --input."
            )

    def check_settings(self, cfg: CfgNode) -> None:
        """Raise `UserError` where a configuration differs from the file's in what the graph fixes."""
        for key, (value, stored) in other_settings(cfg, self.config).items():
            raise UserError(
                f"{key} is {value}, but {self.path} was exported with {stored}; leave out the key or the "
                "configuration file, or export the checkpoint again."
            )

    def features(
        self, triplets: Sequence[Sequence[np.ndarray | None]], cameras: Sequence[int]
    ) -> np.ndarray:
        """What `inputs` takes → (B, D) float32, of which `columns` are the return patterns."""
        features = self.run(self.inputs(triplets, cameras))
        if not np.isfinite(features).all():
            raise UserError(
                f"The features of {self.path} are not finite; export it in another precision, or use other weights."
            )
        return features

    def inputs(
        self, triplets: Sequence[Sequence[np.ndarray | None]], cameras: Sequence[int]
    ) -> dict[str, np.ndarray]:
        """The file's inputs from images uint8 (3, H, W) by modality, None for a missing one, and cameras from 0, of which those
        that the model does not know are any other one. Images are resized here, as the file resizes them, but for one level of
        255: OpenVINO takes several times as long."""
        images = dict(zip(self.modalities, zip(*triplets, strict=True), strict=True))
        inputs = {name.lower(): self._batch(each) for name, each in images.items()}
        if self.about["input"] != IMAGENET:
            inputs["camera"] = np.minimum(np.array(cameras, np.int64), self.cameras)
        return inputs

    def _batch(self, images: Sequence[np.ndarray | None]) -> np.ndarray:
        """Images as the file takes them, stacked; a missing one is zeros."""
        is_raw, size = self.about["input"] == UINT8, tuple(self.about["size"])
        batch = np.zeros((len(images), 3, *size), np.uint8 if is_raw else np.float32)
        for place, image in zip(batch, images, strict=True):
            if image is not None:
                small = resized(image, size)
                place[:] = small if is_raw else self._scaled(small)
        return batch

    def _scaled(self, image: np.ndarray) -> np.ndarray:
        normalised = self.about["mean"], self.about["std"]
        statistics = (
            (IMAGENET_MEAN, IMAGENET_STD) if self.about["input"] == IMAGENET else normalised
        )
        mean, std = (np.array(values, np.float32)[:, None, None] for values in statistics)
        return (image.astype(np.float32) / 255 - mean) / std


def resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 (3, h, w) → uint8 (3, *size), bilinear with antialias."""
    if image.shape[1:] == size:
        return image
    bands = map(Image.fromarray, image)  # with the channels last, Pillow takes twice as long
    small = (band.resize(size[::-1], Image.Resampling.BILINEAR) for band in bands)
    return np.stack([np.asarray(band) for band in small])


def _open(path: Path, amp: str, threads: int) -> tuple[str, Run]:
    """The record of a file, and what runs it."""
    is_onnx = path.suffix == ".onnx"
    package = "onnxruntime" if is_onnx else "openvino"
    check_extra(str(path), "onnx" if is_onnx else "openvino", {package: package})
    if not path.is_file():
        raise UserError(
            f"The model {path} does not exist; give a file of demo-sdtps export onnx or export openvino."
        )
    parts = [] if is_onnx else [path.with_suffix(".bin")]
    if all(each.is_file() for each in parts) and not is_sound(path, *parts):
        raise UserError(f"The model {path} is damaged, or was changed; export it again.")
    try:
        text, run = (_open_onnx if is_onnx else _open_openvino)(path, amp, threads)
    except Exception as error:  # both runtimes raise errors of their own
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"The model {path} cannot be read ({reason}); export it again.") from None
    return text, run


def _open_onnx(path: Path, amp: str, threads: int) -> tuple[str, Run]:
    import onnxruntime

    # it warns of every float16 weight that it cannot fold
    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    output = [session.get_outputs()[-1].name]
    about = session.get_modelmeta().custom_metadata_map
    return about.get(ABOUT, ""), lambda inputs: session.run(output, inputs)[0]


def _open_openvino(path: Path, amp: str, threads: int) -> tuple[str, Run]:
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    text = model.get_rt_info([ABOUT]).astype(str) if model.has_rt_info([ABOUT]) else ""
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    if amp in HINTS:
        settings["INFERENCE_PRECISION_HINT"] = HINTS[amp]
    compiled = core.compile_model(model, "CPU", settings)
    output = compiled.outputs[-1]
    return text, lambda inputs: compiled(dict(inputs))[output].copy()
