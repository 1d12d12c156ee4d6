"""A trained model as a file for ONNX Runtime or OpenVINO, for any number of triplets (docs/deploy.md)."""

import json
import logging
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from demo_sdtps.config import UserError, with_values
from demo_sdtps.config.common import print_lines
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.protocol import decoded_triplets
from demo_sdtps.modeling.exported import ABOUT, ExportedModel
from demo_sdtps.retrieval.reid import Extractor
from demo_sdtps.runtime.files import atomic_write, check_output_file

BATCHES, TOLERANCE = (1, 3, 8), 1e-4
CALIBRATION = 300  # triplets that int8 is calibrated on, at most
Feed = Mapping[str, np.ndarray]  # the inputs of a model by their names
QUANTISED = ["MatMul", "Gemm"]  # what is worth it; the score of the patches stays as it is
PRODUCTS = {"MatMul", "Convolution"}  # OpenVINO's names


class Patterns(nn.Module):
    """The graph: float32 images (B, 3, H, W) of each of the model's modalities, normalised, and cameras (B,) from 0 → the
    features (B, D) by return pattern. An image of zeros is a missing one."""

    def __init__(self, extractor: Extractor):
        super().__init__()
        self.model, self.neck = extractor.model, extractor.cfg.TEST.NECK_FEAT
        self.size = list(extractor.cfg.INPUT.SIZE_TEST)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *images, cameras = inputs
        # Stacked, they have one batch size for the exporter, where it would count three that turn out equal.
        by_name = dict(zip(self.model.modalities, torch.stack(images).unbind(), strict=True))
        encoded = self.model.forward_features(by_name, cameras)
        return tuple(self.model.return_patterns(encoded, self.neck).values())

    def examples(self, batch: int) -> dict[str, torch.Tensor]:
        """Random images and cameras by the names of the inputs, the same in every run."""
        generator = torch.Generator().manual_seed(batch)
        images = {
            name.lower(): torch.randn(batch, 3, *self.size, generator=generator)
            for name in self.model.modalities
        }
        return images | {"camera": torch.arange(batch) % (1 + self.model.camera_num)}


@torch.no_grad()
def write_onnx(extractor: Extractor, path: Path) -> str:
    """Write the model in float32, for any number of triplets → the record in its metadata, which `ExportedModel` reads."""
    graph, batch = Patterns(extractor).eval(), torch.export.Dim("batch", min=1, max=65536)
    inputs, layout = graph.examples(2), extractor.model.layout
    for logger in ("onnxscript", "onnx_ir", "torch.onnx"):  # they tell what they do not fold
        logging.getLogger(logger).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph,
            (*inputs.values(),),
            dynamic_shapes=(tuple({0: batch} for _ in inputs),),
            dynamo=True,
            verbose=False,
            input_names=[*inputs],
            output_names=[f"pattern_{pattern}" for pattern in layout.columns],
        )
    assert program is not None
    cfg = extractor.cfg
    about = {
        "modalities": extractor.model.modalities,
        "size": graph.size,  # height, width
        "mean": list(cfg.INPUT.PIXEL_MEAN),
        "std": list(cfg.INPUT.PIXEL_STD),
        "cameras": extractor.cameras,
        "columns": {name: each.indices(layout.width)[:2] for name, each in layout.columns.items()},
        "config": cfg.dump(),
        "origin": extractor.origin,
    }
    program.model.metadata_props[ABOUT] = text = json.dumps(about)
    program.save(path)
    return text


def quantise_onnx(path: Path) -> None:
    """Convert a float32 model in its place to int8 weights, with activations that are quantised as they come."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    quant_pre_process(path, path, skip_symbolic_shape=True)
    model = onnx.load(path)
    model.graph.ClearField("value_info")  # of some models it has shapes that are no longer true
    onnx.save(model, path)
    quantize_dynamic(path, path, op_types_to_quantize=QUANTISED)


def write_openvino(onnx: Path, path: Path, about: str, feeds: Sequence[Feed] = ()) -> None:
    """An ONNX file in float32, with its record `about`, as a file of OpenVINO; with `feeds` in int8, by NNCF."""
    import openvino

    model = openvino.convert_model(onnx)
    if feeds:
        import nncf

        nncf.set_log_level(logging.ERROR)  # it tells every operator that it leaves as it is
        kinds = {node.get_type_name() for node in model.get_ops()} - PRODUCTS
        scope = nncf.IgnoredScope(types=sorted(kinds), validate=False)
        how = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(feeds)}
        model = nncf.quantize(model, nncf.Dataset(feeds), ignored_scope=scope, **how)
    model.set_rt_info(about, [ABOUT])
    openvino.save_model(model, path, compress_to_fp16=False)


def compare_with_torch(extractor: Extractor, model: ExportedModel) -> list[str]:
    """A table, by batch, of the median and the largest difference of a file's features of random images to torch's, relative to
    the largest value. Raises `UserError` where the median is above TOLERANCE: single images may differ, since patches whose
    scores are equal within rounding may be chosen otherwise."""
    graph = Patterns(extractor)
    lines = [f"{'batch':>5}  {'median':>10}  {'largest':>10}"]
    for batch in BATCHES:
        inputs = graph.examples(batch)
        output = model.run({name: tensor.numpy() for name, tensor in inputs.items()})
        with torch.no_grad():
            expected = graph(*inputs.values())[-1]
        difference = (torch.from_numpy(output) - expected).abs().amax(dim=1) / expected.abs().max()
        lines.append(f"{batch:5}  {difference.median():10.1e}  {difference.max():10.1e}")
        if not difference.median() <= TOLERANCE:
            raise UserError(
                f"The exported model differs from torch by {difference.median():.1e} on random triplets, more than "
                f"{TOLERANCE}, so it is not written; try other versions of torch, onnxscript and the runtime."
            )
    return lines


def export_model(
    extractor: Extractor,
    path: Path,
    precision: str = "float32",
    samples: Sequence[Sample] = (),
    overwrite: bool = False,
) -> None:
    """Write the model for ONNX Runtime or OpenVINO and its card, once float32 agrees with torch. `samples` calibrate int8."""
    is_openvino = path.suffix == ".xml"
    suffixes = [".md", *([".bin"] if is_openvino else []), path.suffix]
    for suffix in suffixes[:-1]:
        check_output_file(path.with_suffix(suffix), suffix, overwrite)
    with TemporaryDirectory() as folder:
        file = Path(folder, f"model{path.suffix}")
        about = write_onnx(extractor, onnx := file.with_suffix(".onnx"))
        if is_openvino:
            write_openvino(onnx, file, about)
        model = ExportedModel(file)
        lines = compare_with_torch(extractor, model)
        if precision == "int8" and is_openvino:
            chosen = samples[:: -(-len(samples) // CALIBRATION)]  # evenly
            alone = {"DATASETS.CACHE": "no", "TEST.IMS_PER_BATCH": 1}
            loader = test_loader(with_values(extractor.cfg, alone), chosen)
            feeds = [model.inputs(*batch) for batch in decoded_triplets(loader)]
            write_openvino(onnx, file := file.with_stem("int8"), about, feeds)
        elif precision == "int8":
            quantise_onnx(file)
        card = extractor.generate_model_card(file=path.name, precision=precision)
        file.with_suffix(".md").write_text(str(card), encoding="utf-8")
        for suffix in suffixes:
            with atomic_write(path.with_suffix(suffix)) as temporary:
                shutil.copyfile(file.with_suffix(suffix), temporary)
    print_lines(*lines, f"Wrote {path} in {precision}; float32 was compared with torch.")
