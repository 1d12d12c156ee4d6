"""A trained model as a file for ONNX Runtime, Triton or OpenVINO, and as a program of torch.export (docs/deploy.md)."""

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from demo_sdtps.config import UserError, with_values
from demo_sdtps.config.cli import print_lines
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.extraction import decoded_triplets, extract_features
from demo_sdtps.evaluation.protocol import TestData, rank_features
from demo_sdtps.modeling.exported import ABOUT, NORMALISED, ExportedModel
from demo_sdtps.retrieval.extractor import Extractor
from demo_sdtps.retrieval.onnx_export.graph import (
    Patterns,
    export_program,
    metadata,
    random_inputs,
    write_onnx,
)
from demo_sdtps.runtime.files import atomic_write, check_output_file, lock_file, seal

__all__ = ["Patterns", "convert_onnx", "export_model", "export_program", "random_inputs"]

BATCHES = (1, 3, 8)
TOLERANCE = 1e-4
ROUNDING, TRIES = 1e-5, 8  # relative changes of images that show whether a selection is a tie
CALIBRATION = 300  # triplets that int8 is calibrated on, at most
Feed = Mapping[str, np.ndarray]  # the inputs of a model by their names
QUANTISED = ["MatMul", "Gemm"]  # what is worth it; the score of the patches stays as it is
PRODUCTS = {"MatMul", "Convolution"}  # OpenVINO's names
LARGEST_BATCH = 64  # that Triton may form of its requests
TYPES = {"tensor(float)": "TYPE_FP32", "tensor(uint8)": "TYPE_UINT8", "tensor(int64)": "TYPE_INT64"}
"""Triton's names of the types of ONNX Runtime."""


def check_file(extractor: Extractor, model: ExportedModel) -> list[str]:
    """A table of a file against torch on random images, by batch: the largest difference, relative to the largest value,
    and the number of images beyond `TOLERANCE`. Raises `UserError` where one is so without a tie in a selection."""
    kind = model.about["input"]
    graph = Patterns(extractor.model, kind, extractor.cfg)
    lines, wrong = [f"{'batch':>5}  {'difference':>10}  {f'images beyond {TOLERANCE}':>20}"], 0
    for batch in BATCHES:
        inputs = random_inputs(extractor.model, extractor.cfg.INPUT.SIZE_TEST, batch, kind)
        names = [*map(str.lower, model.modalities), "camera"]
        output = model.run({n: each.numpy() for n, each in zip(names, inputs, strict=False)})
        with torch.no_grad():
            expected = graph(*inputs)
        difference = relative_differences([torch.from_numpy(output)], expected[-1:])
        is_beyond = difference > TOLERANCE
        if is_beyond.any():
            wrong += int((is_beyond & ~undecided_triplets(graph, inputs, expected)).sum())
        lines.append(f"{batch:5}  {float(difference.max()):10.1e}  {int(is_beyond.sum()):20}")
    if wrong:
        raise UserError(
            f"The exported model differs from torch by more than {TOLERANCE} on {wrong} of {sum(BATCHES)} random "
            "triplets whose selection of patches is no tie, so it is not written; try other versions of torch, "
            "onnxscript and the runtime."
        )
    return lines


def relative_differences(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> Tensor:
    """(B,): the largest difference of each image in any output, relative to the output's largest value."""
    pairs = zip(outputs, expected, strict=True)
    differences = [(one - other).abs().amax(dim=1) / other.abs().max() for one, other in pairs]
    return torch.stack(differences).amax(dim=0)


def undecided_triplets(
    graph: nn.Module, inputs: Sequence[Tensor], expected: Sequence[Tensor]
) -> Tensor:
    """(B,) bool: whether torch's own outputs change beyond `TOLERANCE` with images changed by rounding."""
    generator = torch.Generator().manual_seed(0)
    is_undecided = torch.zeros(len(inputs[0]), dtype=torch.bool)
    for _ in range(TRIES):
        changed = [
            each * (1 + ROUNDING * torch.randn(each.shape, generator=generator))
            if each.ndim == 4  # images, not cameras
            else each
            for each in inputs
        ]
        with torch.no_grad():
            is_undecided |= relative_differences(graph(*changed), expected) > TOLERANCE
    return is_undecided


def compare_files(cfg: CfgNode, models: Mapping[str, ExportedModel], data: TestData) -> list[str]:
    """A table of mAP and Rank-1 by the features of TEST.RETURN_PATTERN, and milliseconds per triplet, decoding included."""
    lines = [f"{'precision':10}{'mAP':>7}{'Rank-1':>9}{'ms/triplet':>13}"]
    for name, model in models.items():
        start = time.perf_counter()
        (patterns,) = extract_features(cfg, model, data.loader)
        seconds = time.perf_counter() - start
        ranking = rank_features(cfg, patterns[cfg.TEST.RETURN_PATTERN], data)
        scores = f"{100 * ranking.mAP:7.1f}{100 * ranking.rank(1):9.1f}"
        lines.append(f"{name:10}{scores}{1000 * seconds / len(data.samples):13.2f}")
    return lines


def calibration_feeds(cfg: CfgNode, model: ExportedModel, samples: Sequence[Sample]) -> list[Feed]:
    """The inputs of CALIBRATION of the samples, evenly chosen, one at a time."""
    chosen = samples[:: -(-len(samples) // CALIBRATION)]
    settings = with_values(cfg, {"DATASETS.CACHE": "no", "TEST.IMS_PER_BATCH": 1})
    return [model.inputs(*batch) for batch in decoded_triplets(test_loader(settings, chosen))]


def export_model(
    extractor: Extractor,
    path: Path,
    precision: str = "float32",
    inputs: str = NORMALISED,
    samples: Sequence[Sample] = (),
    data: TestData | None = None,
    overwrite: bool = False,
) -> None:
    """Write the model for ONNX Runtime (.onnx) or OpenVINO (.xml, and .bin), and its card beside it, once the runtime agrees
    with torch in float32, and print the comparison. int8 is calibrated on `samples`; another precision than float32 is compared
    with it on `data`, if given, whatever that shows."""
    is_openvino = path.suffix == ".xml"
    suffixes = [".md", path.suffix, *([".bin"] if is_openvino else [])]
    for suffix in {*suffixes} - {path.suffix}:
        check_output_file(path.with_suffix(suffix), suffix, overwrite)
    lock = lock_file(path.with_name(f".{path.name}.lock"), f"The output {path}")
    with lock, TemporaryDirectory() as folder, ExitStack() as files:
        plain = Path(folder, f"float32{path.suffix}")
        onnx = plain.with_suffix(".onnx")
        write_onnx(extractor, onnx, inputs)
        about = metadata(extractor, inputs)
        if is_openvino:
            write_openvino(onnx, plain, about)
        models = {"float32": ExportedModel(plain)}
        lines, final = check_file(extractor, models["float32"]), plain
        if precision != "float32":
            final = plain.with_stem(precision)
            feeds = calibration_feeds(extractor.cfg, models["float32"], samples) if samples else []
            if is_openvino:
                write_openvino(onnx, final, about, feeds)
            else:
                convert_onnx(Path(shutil.copy(plain, final)), precision, feeds)
            models[precision] = ExportedModel(final)
        if data:
            lines += compare_files(extractor.cfg, models, data)
        card = extractor.generate_model_card(file=path.name, input=inputs, precision=precision)
        final.with_suffix(".md").write_text(str(card), encoding="utf-8")
        for suffix in suffixes:  # all are written before any gets its name, the last of them first
            temporary = files.enter_context(atomic_write(path.with_suffix(suffix)))
            shutil.copyfile(final.with_suffix(suffix), temporary)
    size = sum(path.with_suffix(suffix).stat().st_size for suffix in suffixes) / 2**20
    print_lines(
        *lines,
        f"Wrote {path}, {precision}, {size:.1f} MiB; the float32 model was compared with torch on random images.",
    )


def convert_onnx(path: Path, precision: str, feeds: Sequence[Feed] = ()) -> None:
    """Convert a float32 model in its place, whose inputs and outputs stay so: to float16 throughout, or to int8 weights with
    activations that are quantised as they come ("int8"), or in the ranges that they have for `feeds` ("int8_static")."""
    import onnx

    if precision == "float16":
        from onnxruntime.transformers.float16 import convert_float_to_float16

        onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), path)
    if not precision.startswith("int8"):
        seal(path)
        return
    from onnxruntime.quantization import quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    quant_pre_process(path, path, skip_symbolic_shape=True)
    model = onnx.load(path)
    model.graph.ClearField("value_info")  # of some models it has shapes that are no longer true
    onnx.save(model, path)
    if precision == "int8":
        quantize_dynamic(path, path, op_types_to_quantize=QUANTISED)
    else:
        # quantize_static calls no other method of a reader
        reader = SimpleNamespace(get_next=partial(next, iter(feeds), None))
        # the products of attention, in which int8 is slower
        weights, nodes = {each.name for each in model.graph.initializer}, model.graph.node
        exact = [node.name for node in nodes if not weights.intersection(node.input)]
        how = {"op_types_to_quantize": QUANTISED, "nodes_to_exclude": exact, "per_channel": True}
        quantize_static(path, path, reader, **how)
    seal(path)


def write_openvino(
    onnx: Path, path: Path, about: Mapping[str, str], feeds: Sequence[Feed] = ()
) -> None:
    """An ONNX file in float32 as a file of OpenVINO, with `feeds` in int8 as NNCF quantises it after training."""
    import openvino
    from openvino import opset11

    model = openvino.convert_model(onnx)
    for node in model.get_ops():
        if node.get_type_name() == "Interpolate":
            # OpenVINO's own antialiasing differs from torchvision's by up to five levels of 255, this by one.
            sides, axes = node.output(0).get_partial_shape(), np.array([2, 3])
            size = np.array([sides[axis].get_length() for axis in axes])
            pillow = opset11.interpolate(
                node.input_value(0), size, "bilinear_pillow", "sizes", axes=axes
            )
            node.output(0).replace(pillow.output(0))
    if feeds:
        import nncf

        nncf.set_log_level(logging.ERROR)  # it tells every operator that it leaves as it is
        kinds = {node.get_type_name() for node in model.get_ops()} - PRODUCTS
        scope = nncf.IgnoredScope(types=sorted(kinds), validate=False)
        kind, data = nncf.ModelType.TRANSFORMER, nncf.Dataset(feeds)
        model = nncf.quantize(
            model, data, model_type=kind, ignored_scope=scope, subset_size=len(feeds)
        )
    model.set_rt_info(about[ABOUT], [ABOUT])
    openvino.save_model(model, path, compress_to_fp16=False)
    seal(path, path.with_suffix(".bin"))


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
    lines = [f'name: "{model.stem}"', 'backend: "onnxruntime"', f"max_batch_size: {LARGEST_BATCH}"]
    for kind, tensors in (("input", session.get_inputs()), ("output", session.get_outputs())):
        for tensor in tensors:
            sizes = [size if isinstance(size, int) else -1 for size in tensor.shape[1:]]
            # Triton has no tensor without an axis beside the batch.
            shape = f"dims: {sizes}" if sizes else "dims: [1] reshape: {shape: []}"
            lines.append(
                f'{kind} {{name: "{tensor.name}" data_type: {TYPES[tensor.type]} {shape}}}'
            )
    return "\n".join([*lines, "dynamic_batching {}"]) + "\n"
