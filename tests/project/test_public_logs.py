"""studies/public_logs.py: what the logs of code bases like DeMo say, on logs in their form."""

import json
import shlex

from studies import public_logs

CONFIG = """2025-12-06 15:30:12,985 DeMo INFO: Running with config:
DATASETS:
  NAMES: RGBNT201
MODEL:
  DEVICE_ID: {device}
  SDTPS_BETA: {beta}
  USE_SDTPS: {sdtps}
OUTPUT_DIR: {device}
SOLVER:
  BASE_LR: 0.001
=> RGBNT201 loaded
  train    |   171 |     3951 |         4
"""
EVALUATION = """2025-12-06 DeMo.train INFO: Current is the {features} feature testing!
2025-12-06 DeMo.train INFO: Validation Results - Epoch: {epoch}
2025-12-06 DeMo.train INFO: mAP: {mAP}%
2025-12-06 DeMo.train INFO: CMC curve, Rank-1  :{rank}%
2025-12-06 DeMo.train INFO: CMC curve, Rank-5  :99.0%
2025-12-06 DeMo.train INFO: Best mAP: 99.0%
"""


def write_log(path, maps, sdtps=True, beta=0.25, device=0, model=""):
    """A log of `maps` after epochs 1, 2, … of the last features; those of the first are others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = CONFIG.format(sdtps=sdtps, beta=beta, device=device) + model
    for epoch, value in enumerate(maps, start=1):
        for features, shift in (("ori", 9), ("[moe,ori]", 0)):
            numbers = {"mAP": value - shift, "rank": value - shift + 2}
            text += EVALUATION.format(features=features, epoch=epoch, **numbers)
    path.write_text(text)


def test_runs_that_differ_in_one_thing_are_compared(tmp_path, command):
    logs = tmp_path / "logs"
    write_log(logs / "one" / "base.log", [50.0, 60.0, 55.0], sdtps=False)
    write_log(logs / "one" / "sdtps.log", [51.0, 58.0, 57.5], device=1)
    write_log(logs / "one" / "more.log", [40.0, 41.0], beta=0.35)
    write_log(logs / "two" / "base.log", [80.0], sdtps=False)
    write_log(logs / "two" / "sdtps.log", [90.0], model="    (cross): CrossModalAttention(\n")
    write_log(logs / "one" / "copy.log", [50.0, 60.0, 55.0], sdtps=False)
    (logs / "one" / "begun.log").write_text(CONFIG.format(sdtps=False, beta=0.3, device=0))
    words = shlex.split("--source somewhere --json x.json")[:-1]
    code, stdout, stderr = command(public_logs.main, tmp_path, *words, tmp_path / "x.json")
    assert code == 0 and stdout.startswith("Wrote 3 comparisons in 7 logs"), stderr
    content = json.loads((tmp_path / "x.json").read_text())
    switched, changed, other = content["comparisons"]
    assert switched["module"] == "SDTPS" and switched["beside"] == []
    assert switched["off"] == {"best": [2, 60.0, 62.0], "last": [3, 55.0, 57.0]}
    assert switched["on"] == {"best": [2, 58.0, 60.0], "last": [3, 57.5, 59.5]}
    assert changed["values"] == ["0.25", "0.35"] and changed["on"]["last"] == [2, 41.0, 43.0]
    row, last = public_logs.alone_table(content).splitlines()[-2:]
    assert row.endswith("| 3 | 60.0 → 58.0 | 55.0 → 57.5 |") and other["cross_attention"]
    assert last.startswith("| RGBNT201 | SDTPS, by cross-attention |")
    line, _ = public_logs.module_table(content).splitlines()[2:]  # without that of unequal length
    assert line == "| RGBNT201 | SDTPS | none | 1 | 1 | +2.5 | +2.5 to +2.5 |"
