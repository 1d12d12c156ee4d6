"""A model that `demo-sdtps export onnx` or `export openvino` has written, run without torch (docs/deploy.md)."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from yacs.config import CfgNode

from demo_sdtps.config.load import StoredText, other_settings
from demo_sdtps.runtime.errors import UserError, check_extra
from demo_sdtps.runtime.threads import THREADS, cpu_cores

SUFFIXES = (".onnx", ".xml")
ABOUT = "demo_sdtps"  # the name of the record in the file's metadata
HINTS = {"off": "f32", "bf16": "bf16", "fp16": "f16"}
"""Precision of OpenVINO by TEST.AMP; by auto it is OpenVINO's choice for the processor."""
Run = Callable[[Mapping[str, np.ndarray]], np.ndarray]


def is_exported(path: str | Path) -> bool:
    return Path(path).suffix in SUFFIXES


class ExportedModel:
    """Features (B, D) float32 of decoded triplets by ONNX Runtime or OpenVINO on the CPU: `run` of `inputs`, with the return
    patterns as `columns`. `about` is the record of the file: "modalities", "size" (height, width), "mean", "std", "cameras",
    "columns" (start and end of each return pattern), "config" (YAML) and "origin", as `Extractor` takes them. `amp` is a value
    of TEST.AMP, which OpenVINO's files heed. `threads`: those of OMP_NUM_THREADS, or all."""

    def __init__(self, path: str | Path, amp: str = "off", threads: int = 0):
        threads = threads or int(os.environ.get(THREADS) or cpu_cores())
        self.path = Path(path)
        package = "onnxruntime" if self.path.suffix == ".onnx" else "openvino"
        check_extra(str(path), package.removesuffix("runtime"), {package: package})
        if not self.path.is_file():
            raise UserError(
                f"The model {path} does not exist; give a file of demo-sdtps export onnx or export openvino."
            )
        try:
            text, self.run = OPEN[package](self.path, amp, threads)
        except Exception as error:  # both runtimes raise errors of their own
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"The model {path} cannot be read ({reason}); export it again."
            ) from None
        if not text:
            raise UserError(
                f"The model {path} has no record of demo-sdtps; export the checkpoint again, by demo-sdtps export."
            )
        self.about: dict[str, Any] = json.loads(text)
        self.config = StoredText(self.path, self.about["config"])  # as `load_cfg` takes it
        self.modalities = tuple(self.about["modalities"])
        self.cameras: int = self.about["cameras"]
        self.columns = {int(name): slice(*ends) for name, ends in self.about["columns"].items()}
        self.widths = {name: each.stop - each.start for name, each in self.columns.items()}

    def check_settings(self, cfg: CfgNode) -> None:
        """Raise `UserError` where a configuration differs from the file's in what the graph fixes."""
        for key, (value, stored) in other_settings(cfg, self.config).items():
            raise UserError(
                f"{key} is {value}, but {self.path} was exported with {stored}; leave out the key or the "
                "configuration file, or export the checkpoint again."
            )

    def inputs(
        self, triplets: Sequence[Sequence[np.ndarray | None]], cameras: Sequence[int]
    ) -> dict[str, np.ndarray]:
        """The file's inputs from images uint8 (3, H, W) by modality, None for a missing one, and cameras from 0, of which those
        that the model does not know are any other one."""
        images = zip(self.modalities, zip(*triplets, strict=True), strict=True)
        inputs = {name.lower(): self._batch(each) for name, each in images}
        return inputs | {"camera": np.minimum(np.array(cameras, np.int64), self.cameras)}

    def _batch(self, images: Sequence[np.ndarray | None]) -> np.ndarray:
        """Images as the file takes them, stacked; a missing one is zeros."""
        mean, std = (
            np.array(self.about[name], np.float32)[:, None, None] for name in ("mean", "std")
        )
        size = tuple(self.about["size"])
        batch = np.zeros((len(images), 3, *size), np.float32)
        for place, image in zip(batch, images, strict=True):
            if image is not None:
                place[:] = (resized(image, size).astype(np.float32) / 255 - mean) / std
        return batch


def resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 (3, h, w) → uint8 (3, *size), bilinear with antialias."""
    if image.shape[1:] == size:
        return image
    bands = map(Image.fromarray, image)  # with the channels last, Pillow takes twice as long
    small = (band.resize(size[::-1], Image.Resampling.BILINEAR) for band in bands)
    return np.stack([np.asarray(band) for band in small])


def _open_onnx(path: Path, amp: str, threads: int) -> tuple[str, Run]:
    """The record of a file, and what runs it."""
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
    """The record of a file, and what runs it."""
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


OPEN = {"onnxruntime": _open_onnx, "openvino": _open_openvino}
"""By the package that runs a file."""
