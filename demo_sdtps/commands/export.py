"""Features of a split, and the model itself: demo-sdtps export --weight W --output X.npz, export onnx, export openvino"""

from collections.abc import Mapping

from demo_sdtps.commands import cli, flags
from demo_sdtps.config import RETURN_PATTERNS
from demo_sdtps.datasets import SPLITS
from demo_sdtps.runtime.errors import check_extra

PACKAGES = {name: name for name in ("onnx", "onnxscript", "onnxruntime")}
OPENVINO = PACKAGES | {"openvino": "openvino", "nncf": "nncf"}
TENSORS = (
    "Inputs: rgb, ni and ti, those that the model reads, (batch, 3, H, W) float32 of the model's size, normalised by its mean "
    "and deviation, and camera (batch,) int64 from 0, of which the last is any other camera (the mean of the embeddings). "
    "Outputs: pattern_1 (original), pattern_2 (enhanced) and pattern_3 (both) (batch, D) float32, not normalised, as "
    "demo-sdtps export writes them. A missing modality is an image of zeros. The float32 model is compared with torch by the "
    "runtime first; demo-sdtps test --weight FILE gives the mAP of a file in any precision. The model card is written beside "
    "the file. demo_sdtps.load and other commands take the file as --weight (docs/deploy.md)."
)


def features() -> None:
    parser = flags.config_parser(
        "Write the features of a split. X.npz is a file for numpy with features (n, D); ids, cams and scenes (n,), identities "
        "as named on disk, cameras from 0, both -1 with --images, scenes 0 where there are none; present (n,) uint8, the sum "
        "of 1, 2 and 4 for RGB, NI and TI, where the features are of them; paths (n, 3) in the order RGB, NI, TI, or (n, 1) "
        "where one image holds the three side by side; and, as single values, return_pattern, split, data_set, checkpoint "
        "(its path), checkpoint_sha256 (of its content), normalised (whether the features are) and configuration (JSON: the "
        "keys on which features depend, with their values). X.parquet is a file for databases, with a row for each triplet: "
        "row (its number), name (its first path), rgb, ni, ti (its paths), identity, camera, scene, present (such as RGB,TI), "
        "split, return_pattern and feature, a list of D numbers; the other single values are metadata.",
        images=True,
    )
    patterns = "1 original, 2 enhanced, 3 both"
    cli.add_choice(parser, "--return_pattern", RETURN_PATTERNS, 3, patterns)
    cli.add_choice(parser, "--split", SPLITS, "gallery", "without effect with --images")
    outputs = "the file to write; .parquet needs pip install -e '.[parquet]'"
    cli.add_output(parser, "--output", ".npz", ".parquet", required=True, help=outputs)
    cli.add_choice(parser, "--dtype", ("float32", "float16"), "float32", "of the features")
    cli.add_switch(parser, "--normalise", "L2-normalise the features, as evaluation does")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.evaluation.protocol import load_model_and_data
    from demo_sdtps.retrieval.features import export_features

    if arguments.output.suffix == ".parquet":
        check_extra("A file ending in .parquet", "parquet", {"pyarrow": "pyarrow"})
    model, splits = load_model_and_data(cfg, (arguments.split,), exported=True)
    export_features(cfg, arguments, model, splits[arguments.split])


def _export_model(what: str, suffix: str, extra: str, packages: Mapping[str, str]) -> None:
    """A command that exports a model: `what` begins its description."""
    parser = flags.config_parser(f"{what} {TENSORS}", images=True)
    cli.add_output(parser, "--output", suffix, required=True, help="the file to write")
    calibrated = "OpenVINO's int8 is calibrated on the training split, or --images"
    cli.add_choice(parser, "--precision", ("float32", "int8"), "float32", calibrated)
    arguments, cfg = flags.parse(parser)
    check_extra(parser.prog, extra, packages)
    from demo_sdtps.datasets import read_splits
    from demo_sdtps.retrieval.onnx_export import export_model
    from demo_sdtps.retrieval.reid import make_extractor

    precision, samples = arguments.precision, []
    if precision == "int8" and suffix == ".xml":
        samples = read_splits(cfg, ("train",))["train"]
    export_model(make_extractor(cfg), arguments.output, precision, samples, arguments.overwrite)


def onnx() -> None:
    what = "Write the model of a checkpoint as ONNX, for any batch size."
    _export_model(what, ".onnx", "onnx", PACKAGES)


def openvino() -> None:
    what = (
        "Write the model of a checkpoint as .xml and .bin of OpenVINO, for any batch size. TEST.AMP bf16 lets the runtime "
        "compute a float32 file in bfloat16."
    )
    _export_model(what, ".xml", "openvino", OPENVINO)
