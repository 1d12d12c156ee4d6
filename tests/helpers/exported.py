"""A checkpoint and an exported file of it."""

import sys

import pytest
from commands import BASELINE, checkpoint_file, cli_args_for

from demo_sdtps.commands.export import onnx, openvino
from demo_sdtps.config import load_cfg
from demo_sdtps.config.cli import run


def export(folder, root, name, *words, opts=(), config=BASELINE):
    """A checkpoint in `folder`, and an export of it → their paths."""
    weights, file = folder / "w.pth", folder / name
    if not weights.exists():
        checkpoint_file(weights, load_cfg(config, cli_args_for(root, *opts, config=config)[2:]))
    main = onnx if name.endswith("onnx") else openvino
    with pytest.MonkeyPatch.context() as patch:
        line = ["command", "--weight", weights, "--output", file, *words]
        patch.setattr(sys, "argv", [*map(str, line)])
        run(main)
    return weights, file
