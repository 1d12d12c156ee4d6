"""Runs as a training leaves them, of models as they are made."""

import json

import torch
from commands import CONFIG, EPOCH, SMALL
from numeric import shift_seed

from demo_sdtps.config import load_cfg
from demo_sdtps.modeling.checkpoints.loading import save_checkpoint
from demo_sdtps.modeling.demo import make_model


def make_run(folder, root, *opts, config=CONFIG):
    """A finished run of an untrained model → the folder."""
    cfg = load_cfg(
        config, ["DATASETS.ROOT_DIR", str(root), *SMALL, "OUTPUT_DIR", str(folder), *opts]
    )
    torch.manual_seed(shift_seed(cfg.SOLVER.SEED))
    save_checkpoint(folder / "last.pth", cfg, make_model(cfg, 6, 8), 2)
    (folder / "config.yml").write_text(cfg.dump())
    untrained = {"epoch": 0, "patterns": EPOCH["patterns"]}
    (folder / "metrics.json").write_text(json.dumps([untrained, EPOCH, EPOCH | {"epoch": 2}]))
    return folder
