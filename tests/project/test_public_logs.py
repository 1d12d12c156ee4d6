"""studies/public_logs.py: what the logs of code bases like DeMo say, on logs in their form."""

import json

from studies import public_logs

CONFIG = """2025-12-06 15:30:12,985 DeMo INFO: Running with config:
DATASETS:
  NAMES: RGBNT201
MODEL:
  DEVICE_ID: {device}
  SDTPS_BETA: {beta}
  USE_LIF: {lif}
  USE_SDTPS: {sdtps}
OUTPUT_DIR: {device}
SOLVER:
  BASE_LR: 0.001
=> RGBNT201 loaded
  train    |   171 |     3951 |         4
"""
EVALUATION = """2025-12-06 DeMo.train INFO: Epoch[{epoch}] Loss: 2.5, Acc: 0.9, Base Lr: {rate:.2e}
2025-12-06 DeMo.train INFO: Current is the {features} feature testing!
2025-12-06 DeMo.train INFO: Validation Results - Epoch: {epoch}
2025-12-06 DeMo.train INFO: mAP: {mAP}%
2025-12-06 DeMo.train INFO: CMC curve, Rank-1  :{rank}%
2025-12-06 DeMo.train INFO: CMC curve, Rank-5  :99.0%
2025-12-06 DeMo.train INFO: Best mAP: 99.0%
"""


def write_log(
    path,
    maps,
    sdtps=True,
    beta=0.25,
    device=0,
    model="(a): TokenAggregation(\n",
    fall=0.1,
    lif=False,
):
    """A log of `maps` after epochs 1, 2, … of the last features; those of the first are others. The rate falls by `fall`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = CONFIG.format(sdtps=sdtps, beta=beta, device=device, lif=lif) + model
    for epoch, value in enumerate(maps, start=1):
        for features, shift in (("ori", 9), ("[moe,ori]", 0)):
            numbers = {"mAP": value - shift, "rank": value - shift + 2, "rate": 1 - fall * epoch}
            text += EVALUATION.format(features=features, epoch=epoch, **numbers)
    path.write_text(text)


def test_runs_that_differ_in_one_thing_are_compared(tmp_path, command):
    logs = tmp_path / "logs"
    write_log(logs / "one" / "base.log", [50.0, 60.0, 55.0, 99.0], sdtps=False, beta=0.3)
    write_log(logs / "one" / "sdtps.log", [51.0, 58.0, 57.5, 57.0], device=1)
    write_log(logs / "one" / "more.log", [40.0, 41.0], beta=0.35)
    write_log(logs / "two" / "base.log", [80.0], sdtps=False)
    write_log(logs / "two" / "sdtps.log", [90.0], model="(cross): CrossModalAttention(\n")
    write_log(logs / "one" / "again.log", [50.0, 60.0, 55.0, 99.0], sdtps=False)
    write_log(logs / "three" / "base.log", [50.0] * 5, sdtps=False)
    write_log(logs / "three" / "steps.log", [60.0] * 5, fall=0)
    write_log(logs / "one" / "other.log", [58.0], device=1, lif=True)  # another module's switch
    (logs / "one" / "begun.log").write_text(
        CONFIG.format(sdtps=False, beta=0.3, device=0, lif=False)
    )
    words = "--source", "somewhere", "--json", tmp_path / "x.json"
    code, stdout, stderr = command(public_logs.main, tmp_path, *words)
    assert code == 0 and stdout.startswith("Wrote 4 comparisons in 10 logs"), stderr
    content = json.loads((tmp_path / "x.json").read_text())
    shorter, switched, changed, other = content["comparisons"]
    assert switched["setting"] == "" and switched["beside"] == []
    assert (switched["off"], switched["on"]) == ([4, 99.0, 101.0], [4, 57.0, 59.0])
    # until the last epoch of the shorter run
    assert shorter["off"] == [2, 60.0, 62.0]
    assert changed["setting"] == "MODEL.SDTPS_BETA" and changed["values"] == ["0.25", "0.35"]
    assert changed["off"] == [2, 58.0, 60.0] and other["setting"] == ""
    line, last, *_ = public_logs.module_table(content).splitlines()[2:]
    assert line == "| RGBNT201 | SDTPS | none | 2 | 0 | -30.5 | -42.0 to -19.0 |"
    assert last.startswith("| RGBNT201 | SDTPS, cross-attention | none | 1 | 1 | +10.0 |")
