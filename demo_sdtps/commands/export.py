"""Features of a split, and the model itself: demo-sdtps export --weight W --output PLACE, export onnx, export openvino"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from demo_sdtps.commands import flags
from demo_sdtps.config import RETURN_PATTERNS, UserError, cli
from demo_sdtps.datasets import SPLITS
from demo_sdtps.modeling.exported import IMAGENET, INPUTS, ExportedModel
from demo_sdtps.runtime.errors import check_extra

FORMATS = ("npz", "parquet", "lance")
PACKAGES = {name: name for name in ("onnx", "onnxscript", "onnxruntime")}
OPENVINO = PACKAGES | {"openvino": "openvino", "nncf": "nncf"}
TENSORS = (
    "Inputs: of rgb, ni, ti those that the model reads, as --input says, and camera (batch,) int64 from 0, of which the last "
    "is any other camera (the mean of the embeddings). Outputs: pattern_1 (original), pattern_2 (enhanced) and pattern_3 "
    "(both) (batch, D) float32, not normalised, as demo-sdtps export writes them. A missing modality is an image of "
    "zeros. The float32 model is compared with torch by the runtime first, and another --precision with it, by mAP, Rank-1 "
    "and speed on the test split, which are printed for you to decide by; with --images, which have no labels, they are not. "
    "The model card is written beside the file. demo_sdtps.load and other commands take the file as --weight (docs/deploy.md)."
)


def features() -> None:
    parser = flags.config_parser(
        "Write the features of a split. By the ending of the output, or --format: X.npz is a file for numpy with features "
        "(n, D) float32; ids, cams and scenes (n,), identities as named on disk, cameras from 0, both -1 with --images, "
        "scenes 0 where there are none; present (n,) uint8, the sum of 1, 2 and 4 for RGB, NI and TI, where the features "
        "are of them; paths (n, 3) in the order RGB, NI, TI, or (n, 1) where one image holds the three side by side; and, "
        "as single values, return_pattern, split, data_set, checkpoint (its path), checkpoint_sha256 (of its content), "
        "normalised (whether the features are) and configuration (JSON: the keys on which features depend, with their "
        "values). X.parquet is one file for databases, any other place a Lance table, in a folder or at an address such "
        "as s3://bucket/gallery: a row for each triplet with row (its number), name (its first path), rgb, ni, ti (its "
        "paths), identity, camera, scene, present (such as RGB,TI), split, return_pattern and feature, a list of D "
        "numbers; the other single values are metadata. An interrupted export to a table goes on when the command is "
        "called again, with --overwrite anew. Processes of torchrun share the work.",
        images=True,
    )
    patterns = "1 original, 2 enhanced, 3 both"
    cli.add_choice(parser, "--return_pattern", RETURN_PATTERNS, 3, patterns)
    cli.add_choice(parser, "--split", SPLITS, "gallery", "without effect with --images")
    outputs = "X.npz, X.parquet, or the place of a table, a folder or an address"
    cli.add_path(parser, "--output", "PLACE", outputs, str)
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="default: by the ending of the output; lance needs pip install -e '.[search]', parquet '.[parquet]'",
    )
    kinds, what = ("float32", "float16"), "of features in a table or Parquet"
    cli.add_choice(parser, "--dtype", kinds, "float32", what)
    cli.add_switch(parser, "--normalise", "L2-normalise the features, as evaluation does")
    cli.add_overwrite(parser)
    with flags.parse_in_group(parser) as (arguments, cfg):
        from demo_sdtps.evaluation.extraction import load_any_model_and_data
        from demo_sdtps.retrieval import export

        export.check_output(arguments)
        model, splits = load_any_model_and_data(cfg, (arguments.split,), several=True)
        if isinstance(model, ExportedModel):
            model.check_pattern(arguments.return_pattern)
        write = export.export_table if arguments.format == "lance" else export.export_file
        write(cfg, arguments, model, splits[arguments.split])


def _export_model(
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
    from demo_sdtps.retrieval.onnx_export import check_repository, export_model, write_repository

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


def onnx() -> None:
    precisions = ("float32", "float16", "int8", "int8_static")
    what = "Write the model of a checkpoint as ONNX, for any batch size."
    _export_model(what, ".onnx", precisions, "normalised", "onnx", PACKAGES)


def openvino() -> None:
    what = (
        "Write the model of a checkpoint as .xml and .bin of OpenVINO, for any batch size. TEST.AMP bf16 lets the runtime "
        "compute a float32 file in bfloat16."
    )
    _export_model(what, ".xml", ("float32", "int8"), "uint8", "openvino", OPENVINO)
