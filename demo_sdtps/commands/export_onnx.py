"""Write a trained model as ONNX: demo-sdtps export onnx --weight W --output model.onnx"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from demo_sdtps.commands import flags
from demo_sdtps.config import UserError, cli
from demo_sdtps.modeling.exported import IMAGENET, INPUTS
from demo_sdtps.runtime.errors import check_extra

PACKAGES = {name: name for name in ("onnx", "onnxscript", "onnxruntime")}
TENSORS = (
    "Inputs: of rgb, ni, ti those that the model reads, as --input says, and camera (batch,) int64 from 0, of which the last "
    "is any other camera (the mean of the embeddings). Outputs: pattern_1 (original), pattern_2 (enhanced) and pattern_3 "
    "(both) (batch, D) float32, not normalised, as demo-sdtps export writes them. A missing modality is an image of "
    "zeros. The float32 model is compared with torch by the runtime first, and another --precision with it, by mAP, Rank-1 "
    "and speed on the test split, which are printed for you to decide by; with --images, which have no labels, they are not. "
    "The model card is written beside the file. demo_sdtps.load and other commands take the file as --weight "
    "(docs/deploy.md)."
)


def export(
    what: str,
    suffix: str,
    precisions: Sequence[str],
    inputs: str,
    extra: str,
    packages: Mapping[str, str],
) -> None:
    """A command that exports a model: `what` begins its description, the last of `precisions` is calibrated."""
    calibrated = precisions[-1]
    parser = flags.config_parser(f"{what} {TENSORS}", images=True)
    cli.add_output(parser, "--output", suffix, required=True, help="the file to write")
    images = f"others are compared with float32; {calibrated} is calibrated on the training split, or --images"
    cli.add_choice(parser, "--precision", precisions, precisions[0], images)
    kinds = (
        "uint8: (batch, 3, h, w) of any size, preprocessed inside; normalised: float32 of the model's size, by its mean and "
        "deviation; imagenet: by ImageNet's, without camera, one output by TEST.RETURN_PATTERN, as trackers give them"
    )
    cli.add_choice(parser, "--input", INPUTS, inputs, kinds)
    if suffix == ".onnx":
        parser.add_argument(
            "--triton",
            type=Path,
            metavar="FOLDER",
            help="also write FOLDER/<name of the file>/{config.pbtxt,1/model.onnx}, a model in the repository of a "
            "Triton Inference Server",
        )
    arguments, cfg = flags.parse(parser)
    repository = vars(arguments).get("triton")
    check_extra(parser.prog, extra, packages)
    if arguments.input == IMAGENET and len(cfg.MODEL.MODALITIES) > 1:
        raise UserError(
            f"--input {IMAGENET} is for models of one modality, as trackers use them, but this one reads "
            f"{', '.join(cfg.MODEL.MODALITIES)}; choose another --input, which can tell which of them is missing."
        )
    from demo_sdtps.datasets import find_reader, read_splits
    from demo_sdtps.evaluation.protocol import make_test_data
    from demo_sdtps.retrieval.extractor import make_extractor
    from demo_sdtps.retrieval.onnx_export import export_model
    from demo_sdtps.retrieval.onnx_export.triton import check_repository, write_repository

    if repository:
        check_repository(repository, arguments.output, arguments.overwrite)
    precision, data, samples = arguments.precision, None, []
    if precision != "float32" and find_reader(cfg).labelled:
        data = make_test_data(cfg, **read_splits(cfg, ("query", "gallery")))
    if precision == calibrated:
        samples = read_splits(cfg, ("train",))["train"]
    reid, options = make_extractor(cfg), (precision, arguments.input, samples, data)
    export_model(reid, arguments.output, *options, overwrite=arguments.overwrite)
    if repository:
        write_repository(repository, arguments.output)
        cli.print_lines(f"Wrote {repository / arguments.output.stem}, a model of Triton")


def main() -> None:
    precisions = ("float32", "float16", "int8", "int8_static")
    what = "Write the model of a checkpoint as ONNX, for any batch size."
    export(what, ".onnx", precisions, "normalised", "onnx", PACKAGES)
