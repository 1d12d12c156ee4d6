"""An ONNX file in another precision, and as a file of OpenVINO."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from demo_sdtps.modeling.exported import ABOUT
from demo_sdtps.runtime.files import seal

Feed = Mapping[str, np.ndarray]
"""The inputs of a model by their names."""
QUANTISED = ["MatMul", "Gemm"]  # what is worth it; the score of the patches stays as it is
PRODUCTS = {"MatMul", "Convolution"}  # OpenVINO's names


def convert_onnx(path: Path, precision: str, feeds: Sequence[Feed] = ()) -> None:
    """`_convert`, with another digest."""
    _convert(path, precision, feeds)
    seal(path)


def _convert(path: Path, precision: str, feeds: Sequence[Feed]) -> None:
    """Convert a float32 model in its place, whose inputs and outputs stay so: to float16 throughout, or to int8 weights with
    activations that are quantised as they come ("int8"), or in the ranges that they have for `feeds` ("int8_static")."""
    import onnx

    if precision == "float16":
        from onnxruntime.transformers.float16 import convert_float_to_float16

        onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), path)
    if not precision.startswith("int8"):
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
        quantize_static(
            path,
            path,
            reader,
            op_types_to_quantize=QUANTISED,
            nodes_to_exclude=exact,
            per_channel=True,
        )


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
