"""Comparisons in the training logs of code bases like DeMo: python -m studies.public_logs FOLDER --source NAME --json FILE

A comparison is of two runs of an experiment (FOLDER/KIND/EXPERIMENT) whose printed configurations differ in one switch of
a module (MODEL.USE_…), off and on, or in one setting of SDTPS. Its figures are mAP and Rank-1 of the last evaluated features,
best epoch and last, as the logs have them. MODEL.USE_SDTPS names two modules, which the printed models tell apart: SDTPS, which
scores patches by a small MLP, and one that scores by cross-attention and does not aggregate.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from statistics import mean
from typing import Any

from demo_sdtps.config import UserError, cli
from demo_sdtps.reports.rows import markdown_table
from demo_sdtps.runtime.files import write_json

RESULT = Path(__file__).resolve().parents[1] / "docs" / "public_logs.json"
SWITCH, SETTING = "MODEL.USE_", "MODEL.SDTPS_"
SETTINGS = {
    "epochs": "SOLVER.MAX_EPOCHS",
    "rate": "SOLVER.BASE_LR",
    "seed": "SOLVER.SEED",
    "kept": "MODEL.SDTPS_SPARSE_RATIO",
    "aggregated": "MODEL.SDTPS_AGGR_RATIO",
    "loss weight": "MODEL.SDTPS_LOSS_WEIGHT",
}
WITHOUT_EFFECT = ("OUTPUT_DIR", "MODEL.DEVICE_ID", "DATALOADER.NUM_WORKERS")
NUMBER, KEY = re.compile(r"\d*\.?\d+"), re.compile(r"( *)([A-Za-z_0-9]+): ?(.*)")
FEATURES = re.compile(r"Current is the (.+?) (?:feature )?testing")
CROSS_ATTENTION = "CrossModalAttention("
"""Printed of a model whose SDTPS is the other one."""
EPOCH = re.compile(r"Validation Results - Epoch: (\d+)")
MAP, RANK = re.compile(r"INFO: mAP: ([\d.]+)%"), re.compile(r"INFO: CMC curve, Rank-1\s*:([\d.]+)%")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="searched for *.log")
    parser.add_argument("--source", required=True, help="where the logs are from")
    cli.add_output(parser, "--json", ".json", required=True, help="write the comparisons there")
    arguments = cli.read_arguments(parser)
    runs = {
        str(path.relative_to(arguments.folder)): read_log(path)
        for path in sorted(arguments.folder.rglob("*.log"))
    }
    if not runs:
        raise UserError(f"{arguments.folder} has no file *.log; give a folder with logs.")
    rows = list(comparisons(runs))
    content = {"source": arguments.source, "logs": len(runs), "comparisons": rows}
    write_json(arguments.json, content)
    cli.print_lines(f"Wrote {len(rows)} comparisons in {len(runs)} logs to {arguments.json}")


def read_log(path: Path) -> dict[str, Any]:
    """The configuration that a log prints, by key, its evaluations (epoch, mAP, Rank-1) of the last features, and whether its
    SDTPS scores by cross-attention."""
    settings: dict[str, str] = {}
    evaluations: dict[str, list[list[float]]] = defaultdict(list)
    section, is_config, features, epoch = "", False, "", 0
    text = path.read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        is_config = "Running with config:" in line or (is_config and bool(KEY.fullmatch(line)))
        if is_config and (match := KEY.fullmatch(line)):
            indent, key, value = match.groups()
            if not indent and not value:
                section = f"{key}."
            settings[f"{section if indent else ''}{key}"] = value
        elif match := FEATURES.search(line):
            features = match[1]
        elif match := EPOCH.search(line):
            epoch = int(match[1])
        elif match := MAP.search(line):
            evaluations[features].append([epoch, float(match[1])])
        elif match := RANK.search(line):
            evaluations[features][-1].append(float(match[1]))
    return {
        "settings": settings,
        "evaluations": evaluations.get(features, []),
        "cross_attention": CROSS_ATTENTION in text,
    }


def comparisons(runs: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Those of runs by path, in order; two of the same numbers, of a run that was copied, count once."""
    seen = set()
    for one, other in permutations(runs, 2):
        off, on = runs[one], runs[other]
        keys = {*off["settings"], *on["settings"]}.difference(WITHOUT_EFFECT)
        differing = [key for key in keys if off["settings"].get(key) != on["settings"].get(key)]
        if len(differing) != 1 or not (off["evaluations"] and on["evaluations"]):
            continue
        values = [run["settings"].get(differing[0], "") for run in (off, on)]
        is_switch = differing[0].startswith(SWITCH) and values[0] == "False"
        is_setting = differing[0].startswith(SETTING) and all(map(NUMBER.fullmatch, values))
        is_setting = is_setting and float(values[0]) < float(values[1])
        if Path(one).parts[:2] != Path(other).parts[:2] or not (is_switch or is_setting):
            continue
        numbers = str((differing, off["evaluations"], on["evaluations"]))
        if numbers in seen:
            continue
        seen.add(numbers)
        settings = on["settings"]
        switches = sorted(key for key, value in off["settings"].items() if value == "True")
        yield {
            "data": settings["DATASETS.NAMES"],
            "module": differing[0].removeprefix(SWITCH).removeprefix(SETTING),
            "values": values,
            "cross_attention": on["cross_attention"],
            "beside": [key.removeprefix(SWITCH) for key in switches if key.startswith(SWITCH)],
            "settings": {name: settings.get(key, "") for name, key in SETTINGS.items()},
            "logs": [one, other],
            "off": _figures(off["evaluations"]),
            "on": _figures(on["evaluations"]),
        }


def _figures(evaluations: list[list[float]]) -> dict[str, list[float]]:
    """Epoch, mAP and Rank-1 of the epoch with the best mAP, and of the last."""
    return {"best": max(evaluations, key=lambda row: row[1]), "last": evaluations[-1]}


def alone(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The comparisons of SDTPS beside no other module: first those that score by the MLP."""
    rows = [row for row in content["comparisons"] if row["module"] == "SDTPS" and not row["beside"]]
    return sorted(rows, key=lambda row: row["cross_attention"])


def name(row: dict[str, Any]) -> str:
    """What a comparison is of."""
    if row["values"][0] != "False":
        return f"`{SETTING}{row['module']}`, higher"
    is_other = row["module"] == "SDTPS" and row["cross_attention"]
    return f"{row['module']}{', by cross-attention' * is_other}"


def alone_table(content: dict[str, Any]) -> str:
    """A row for each comparison of `alone`: mAP off → on."""
    rows = []
    for row in alone(content):
        epochs = [f"{row[side]['last'][0]}" for side in ("off", "on")]
        rows.append(
            [
                row["data"],
                name(row),
                f"`{row['logs'][1]}`",
                row["settings"]["rate"],
                row["settings"]["seed"],
                " and ".join(dict.fromkeys(epochs)),
                *(f"{row['off'][at][1]:.1f} → {row['on'][at][1]:.1f}" for at in ("best", "last")),
            ]
        )
    titles = ("data", "module", "log with it", "rate", "seed", "epochs", "best epoch", "last epoch")
    return markdown_table(titles, rows)


def module_table(content: dict[str, Any]) -> str:
    """A row for each data set and module, or setting of SDTPS: the differences at the last epoch of runs of equal length."""
    differences: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in content["comparisons"]:
        off, on = row["off"]["last"], row["on"]["last"]
        if off[0] == on[0]:
            beside = "others" if row["beside"] else "none"
            differences[row["data"], name(row), beside].append(on[1] - off[1])
    rows = []
    for key, values in sorted(differences.items()):
        gains, span = sum(one > 0 for one in values), f"{min(values):+.1f} to {max(values):+.1f}"
        rows.append([*key, str(len(values)), str(gains), f"{mean(values):+.1f}", span])
    titles = ("data", "module", "beside", "comparisons", "gains", "mean", "range")
    return markdown_table(titles, rows)


def tables() -> str:
    content = json.loads(RESULT.read_text(encoding="utf-8"))
    about = (
        f"{content['logs']} logs of {content['source']}, read by `python -m studies.public_logs`."
    )
    return "\n\n".join([alone_table(content), module_table(content), about])


if __name__ == "__main__":
    cli.run(main)
