"""A miniature of DeMo's checkout, untouched and patched, run in a process of its own."""

import json
import shutil
import subprocess
import sys

import torch
from plug_in_host import HOST

SIZE = ["INPUT.SIZE_TRAIN", [128, 64]]
SETTINGS = {
    "direct 1": [],
    "direct 0": ["MODEL.DIRECT", 0],
    "direct 1, HDM": ["MODEL.HDM", True],
    "direct 1, HDM, ATM": ["MODEL.HDM", True, "MODEL.ATM", True],
    "direct 0, HDM, ATM": ["MODEL.DIRECT", 0, "MODEL.HDM", True, "MODEL.ATM", True],
    "without PIFE, n missing": ["MODEL.GLOBAL_LOCAL", False, "TEST.MISS", "n"],
    "overlapping patches": ["MODEL.STRIDE_SIZE", [12, 14]],
}
ON = ["MODEL.USE_SDTPS", True]
ALL_PATCHES = ["MODEL.HDM", True, "MODEL.ATM", True, "MODEL.SDTPS_FEEDS_HDM", False]
WIDTH, BATCH = 64, 4
OPTIONS = {
    "Gumbel": (["MODEL.SDTPS_USE_GUMBEL", True], {}),
    "warm Gumbel": (["MODEL.SDTPS_USE_GUMBEL", True, "MODEL.SDTPS_GUMBEL_TAU", 5.0], {}),
    "Gumbel selection": (["MODEL.SDTPS_USE_GUMBEL", True, "MODEL.SDTPS_GUMBEL_SELECT", True], {}),
    "ratios": (
        ["MODEL.SDTPS_SPARSE_RATIO", 0.75, "MODEL.SDTPS_AGGR_RATIO", 0.5, "MODEL.SDTPS_BETA", 0.1],
        {},
    ),
    "HDM on all patches": (ALL_PATCHES, {}),
    "bfloat16": (["MODEL.HDM", True], {"precision": "bfloat16"}),
    "float16": (["MODEL.HDM", True], {"precision": "float16"}),
    "bfloat16 with Gumbel": (["MODEL.SDTPS_USE_GUMBEL", True], {"precision": "bfloat16"}),
}
"""Cases with SDTPS: further keys, and how they are run."""


def try_patched(folder):
    """What the checkout computes, untouched and with demo_sdtps.add_config and demo_sdtps.patch."""
    checkout = shutil.copytree(
        HOST, folder / "checkout", ignore=shutil.ignore_patterns("__pycache__")
    )
    ways = (("untouched", False, []), ("off", True, []), ("on", True, ON))
    cases = {
        f"{setting}, {name}": {"opts": [*SIZE, *opts, *more], "patched": patched}
        for setting, opts in SETTINGS.items()
        for name, patched, more in ways
    }
    cases |= {
        name: {"opts": [*SIZE, *ON, *more], "patched": True, **settings}
        for name, (more, settings) in OPTIONS.items()
    }
    (folder / "cases.json").write_text(json.dumps(cases))
    done = subprocess.run(
        [sys.executable, "run_cases.py", folder / "cases.json", folder / "out.pt"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "out.pt", weights_only=True)
