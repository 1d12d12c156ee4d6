"""What features depend on, as an index, an export and a calibration record it."""

from collections.abc import Mapping
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.common import WITHOUT_EFFECT
from demo_sdtps.config.load import DEMO_SCHEMA, flatten
from demo_sdtps.evaluation.distances import make_comparison
from demo_sdtps.modeling.checkpoints.loading import weights_file
from demo_sdtps.retrieval.features import encode_present, modality_mask
from demo_sdtps.runtime.device import choose_device, choose_precision
from demo_sdtps.runtime.files import sha256

RECORDED = ("checkpoint", "data_set", "gallery")  # beside what features depend on


def describe_features(cfg: CfgNode, pattern: int) -> dict[str, Any]:
    """What features depend on: the content of the checkpoint, the return pattern, and the configuration, whose `sources` are
    the codes of the modalities (`encode_present`) of each of the equal parts of a feature."""
    path = weights_file(cfg.TEST.WEIGHT)
    # auto is another one on other hardware
    precision = choose_precision(cfg.TEST.AMP, choose_device(cfg))
    amp = cfg.TEST.AMP if cfg.TEST.AMP != "auto" else f"auto, {precision or 'float32'}"
    sources = make_comparison(cfg, pattern).sources
    codes = [int(encode_present(modality_mask(source))) for source in sources]
    return {
        # of OpenVINO's two files the one with the weights
        "checkpoint_sha256": sha256(path.with_suffix(".bin") if path.suffix == ".xml" else path),
        "return_pattern": pattern,
        "configuration": {**model_keys(cfg), "TEST.AMP": amp, "sources": codes},
    }


def check_origin(
    place: str, facts: Mapping[str, Any], origin: Mapping[str, Any], advice: str
) -> None:
    """Raise `UserError` where stored features, by the recorded `facts`, depend on something else than `origin`."""
    was, now = ({**each, **each.get("configuration", {})} for each in (facts, origin))
    for name in now:
        if name not in (*RECORDED, "configuration") and was.get(name) != now[name]:
            what = f"{name} ({was.get(name)!r}, not {now[name]!r})"
            if name.endswith("_sha256"):
                what = name.removesuffix("_sha256")
            raise UserError(f"The features in {place} are of another {what}; {advice}.")


def model_keys(cfg: CfgNode) -> dict[str, Any]:
    """The configuration keys on which features depend, but for the precision."""
    values, rooms = flatten(cfg), ("MODEL.", "INPUT.")
    names = (name for name in DEMO_SCHEMA.by_name if name.startswith(rooms))
    keys = {name: values[name] for name in names if name not in WITHOUT_EFFECT}
    return {**keys, "TEST.NECK_FEAT": cfg.TEST.NECK_FEAT}
