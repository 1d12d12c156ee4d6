"""Write a trained model as ONNX: python tools/export_onnx.py --weight W --output model.onnx"""

from demo_sdtps.config import cli
from demo_sdtps.runtime.errors import check_extra


def main() -> None:
    parser = cli.config_parser(
        "Write the model of a checkpoint as ONNX, for any batch size. Inputs: of rgb, ni, ti those that the model reads "
        "(batch, 3, height, width) float32, and camera (batch,) int64 from 0, of which the last is any other camera (the mean "
        "of the embeddings). Outputs: pattern_1 (original), pattern_2 (enhanced) and pattern_3 (both) (batch, D) float32, not "
        "normalised, as tools/export_features.py writes them. The metadata have what preprocessing needs (docs/api.md). A "
        "missing modality is an image of zeros. The float32 model is compared with torch by ONNX Runtime first, and "
        "another --precision with it, by mAP, Rank-1 and speed on the test split, which are printed for you to decide by.",
        checkpoint=cli.WEIGHT,
    )
    cli.add_output(parser, "--output", ".onnx", required=True, help="the file to write")
    precisions = ("float32", "float16", "int8")
    cli.add_choice(parser, "--precision", precisions, "float32", "others are compared with float32")
    arguments, cfg = cli.parse(parser)
    packages = ("onnx", "onnxscript", "onnxruntime")
    check_extra("tools/export_onnx.py", "onnx", dict(zip(packages, packages, strict=True)))
    from demo_sdtps.datasets import read_splits
    from demo_sdtps.evaluation.protocol import make_test_data
    from demo_sdtps.retrieval.extractor import make_extractor
    from demo_sdtps.retrieval.onnx_export import export_onnx

    data = None
    if arguments.precision != "float32":
        data = make_test_data(cfg, **read_splits(cfg, ("query", "gallery")))
    export_onnx(make_extractor(cfg), arguments.output, arguments.precision, data)
