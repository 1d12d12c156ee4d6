"""Write a trained model for OpenVINO: demo-sdtps export openvino --weight W --output model.xml"""

from demo_sdtps.commands.export_onnx import PACKAGES, export

RUNTIME = {"openvino": "openvino", "nncf": "nncf"}


def main() -> None:
    what = (
        "Write the model of a checkpoint as .xml and .bin of OpenVINO, for any batch size. TEST.AMP bf16 lets the runtime "
        "compute a float32 file in bfloat16."
    )
    export(what, ".xml", ("float32", "int8"), "uint8", "openvino", PACKAGES | RUNTIME)
