"""Write a trained model as ONNX: python tools/export_onnx.py --weight W --output model.onnx"""

from demo_sdtps.commands.export_onnx import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
