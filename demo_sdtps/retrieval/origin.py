"""What features depend on, as an index, an export and a calibration record it."""

from typing import Any

from yacs.config import CfgNode

from demo_sdtps.config.common import WITHOUT_EFFECT
from demo_sdtps.config.load import DEMO_SCHEMA, flatten
from demo_sdtps.modeling.checkpoints.loading import weights_file
from demo_sdtps.runtime.device import choose_device, choose_precision
from demo_sdtps.runtime.files import sha256


def describe_origin(cfg: CfgNode, pattern: int) -> dict[str, Any]:
    """What features depend on: the content of the checkpoint, the return pattern, and configuration keys."""
    path = weights_file(cfg.TEST.WEIGHT)
    # auto is another one on other hardware
    precision = choose_precision(cfg.TEST.AMP, choose_device(cfg))
    amp = cfg.TEST.AMP if cfg.TEST.AMP != "auto" else f"auto, {precision or 'float32'}"
    return {
        # of OpenVINO's two files the one with the weights
        "checkpoint_sha256": sha256(path.with_suffix(".bin") if path.suffix == ".xml" else path),
        "return_pattern": pattern,
        "configuration": {**model_keys(cfg), "TEST.AMP": amp},
    }


def model_keys(cfg: CfgNode) -> dict[str, Any]:
    """The configuration keys on which features depend, but for the precision."""
    values = flatten(cfg)
    keys = {
        key: values[key]
        for key in DEMO_SCHEMA.by_name
        if key.startswith(("MODEL.", "INPUT.")) and key not in WITHOUT_EFFECT
    }
    return {**keys, "TEST.NECK_FEAT": cfg.TEST.NECK_FEAT}
