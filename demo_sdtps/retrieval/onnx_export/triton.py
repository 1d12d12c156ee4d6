"""An ONNX file as a model of a Triton Inference Server's repository (docs/deploy.md)."""

import shutil
from pathlib import Path

from demo_sdtps.runtime.files import atomic_write, check_output_file

MOST = 64  # images of a batch that the server may form of its requests
TYPES = {
    "tensor(float)": "TYPE_FP32",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(int64)": "TYPE_INT64",
}
"""Triton's names of the types of ONNX Runtime."""


def repository_files(repository: Path, model: Path) -> tuple[Path, Path]:
    """The files of the model in the repository, under the name of its file: the configuration, and version 1."""
    folder = repository / model.stem
    return folder / "config.pbtxt", folder / "1" / "model.onnx"


def check_repository(repository: Path, model: Path, overwrite: bool) -> None:
    """Raise `UserError` where the files of the model cannot be written."""
    for file in repository_files(repository, model):
        check_output_file(file, file.suffix, overwrite)


def write_repository(repository: Path, model: Path) -> None:
    """Write the exported `model`, and then its configuration, with which the server loads it."""
    config, copy = repository_files(repository, model)
    with atomic_write(config) as text, atomic_write(copy) as temporary:
        text.write_text(model_config(model), encoding="utf-8")
        shutil.copyfile(model, temporary)


def model_config(model: Path) -> str:
    """config.pbtxt: the inputs and outputs of the file, whose first axis is the batch, and batches formed of requests."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    lines = [f'name: "{model.stem}"', 'backend: "onnxruntime"', f"max_batch_size: {MOST}"]
    for kind, tensors in (("input", session.get_inputs()), ("output", session.get_outputs())):
        for tensor in tensors:
            sizes = [size if isinstance(size, int) else -1 for size in tensor.shape[1:]]
            # Triton has no tensor without an axis beside the batch.
            shape = f"dims: {sizes}" if sizes else "dims: [1] reshape: {shape: []}"
            lines.append(
                f'{kind} {{name: "{tensor.name}" data_type: {TYPES[tensor.type]} {shape}}}'
            )
    return "\n".join([*lines, "dynamic_batching {}"]) + "\n"
