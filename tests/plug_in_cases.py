"""A miniature of DeMo's checkout with SDTPS, changed by hand as the guide says or patched, run in a process of its own."""
import json
import os
import shutil
import subprocess
import sys

import torch
from plug_in_guide import HOST, change

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
WIDTH, BATCH, FULL_WIDTH, FULL_CLASSES = 64, 4, 512, 171
OPTIONS = {
    "Gumbel": (["MODEL.SDTPS_USE_GUMBEL", True], {}),
    "warm Gumbel": (["MODEL.SDTPS_USE_GUMBEL", True, "MODEL.SDTPS_GUMBEL_TAU", 5.0], {}),
    "Gumbel selection": (["MODEL.SDTPS_USE_GUMBEL", True, "MODEL.SDTPS_GUMBEL_SELECT", True], {}),
    "ratios": (["MODEL.SDTPS_SPARSE_RATIO", 0.75, "MODEL.SDTPS_AGGR_RATIO", 0.5, "MODEL.SDTPS_BETA", 0.1], {}),
    "bfloat16": (["MODEL.HDM", True], {"precision": "bfloat16"}),
    "float16": (["MODEL.HDM", True], {"precision": "float16"}),
    "bfloat16 with Gumbel": (["MODEL.SDTPS_USE_GUMBEL", True], {"precision": "bfloat16"}),
}
"""Cases with SDTPS: further keys, and how they are run."""


def try_by_hand(folder):
    """What the checkout that the guide changes computes, without this project on the path."""
    checkout = shutil.copytree(HOST, folder / "checkout", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "example.yml").write_text(change(checkout))
    cases = _cases("untouched", "make_model", {})
    cases |= {f"full size, {name}": {"module": module, "opts": ["MODEL.TRANSFORMER_TYPE", "one_block", *opts],
                                     "num_classes": FULL_CLASSES, "only_cost": True} for name, module, opts in (
        ("untouched", "untouched", []), ("off", "make_model", []), ("on", "make_model", ON))}
    cases["example"] = {"opts": [*SIZE, "MODEL.HDM", True], "yaml": str(folder / "example.yml")}
    return _run(folder, checkout, cases, {name: text for name, text in os.environ.items() if name != "PYTHONPATH"})


def try_patched(folder):
    """What the same checkout computes as it is, with demo_sdtps.add_config and demo_sdtps.patch."""
    checkout = shutil.copytree(HOST, folder / "checkout", ignore=shutil.ignore_patterns("__pycache__"))
    return _run(folder, checkout, _cases("make_model", "make_model", {"patched": True}), os.environ)


def _cases(untouched, module, how):
    changed = {"module": module, **how}
    ways = (("untouched", {"module": untouched}, []), ("off", changed, []), ("on", changed, ON))
    cases = {f"{setting}, {name}": {"opts": [*SIZE, *opts, *more], **way}
             for setting, opts in SETTINGS.items() for name, way, more in ways}
    return cases | {name: {"opts": [*SIZE, *ON, *more], **changed, **settings}
                    for name, (more, settings) in OPTIONS.items()}


def _run(folder, checkout, cases, environment):
    (folder / "cases.json").write_text(json.dumps(cases))
    done = subprocess.run([sys.executable, "run_cases.py", folder / "cases.json", folder / "out.pt"], cwd=checkout,
                          env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "out.pt", weights_only=True)
