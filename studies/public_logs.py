"""SDTPS in the training logs of code bases like DeMo: python -m studies.public_logs FOLDER --source NAME --json FILE

A comparison is of two runs of an experiment (FOLDER/KIND/EXPERIMENT) that differ in MODEL.USE_SDTPS alone, off and on, or in
one number MODEL.SDTPS_…; settings of another module (MODEL.X_…) count where it is on in both. Its figures are epoch, mAP and
Rank-1 of the last evaluated features, at the last epoch that both runs reach. MODEL.USE_SDTPS names several modules, which the
printed models tell apart (`FORMS`).
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from statistics import mean
from typing import Any

from demo_sdtps.config import UserError, cli
from demo_sdtps.evaluation.tables import markdown_table
from demo_sdtps.runtime.files import atomic_write
from studies.report import result_json

SWITCH, SETTING = "MODEL.USE_", "MODEL.SDTPS_"
WITHOUT_EFFECT = ("OUTPUT_DIR", "MODEL.DEVICE_ID", "DATALOADER.NUM_WORKERS")
NUMBER, KEY = re.compile(r"\d*\.?\d+"), re.compile(r"( *)([A-Za-z_0-9]+): ?(.*)")
FORMS = {
    (True, False): "",
    (True, True): ", MLP and cross-attention",
    (False, True): ", cross-attention",
    (False, False): ", no model printed",
}
"""What follows SDTPS in its name, by whether the printed model aggregates tokens and whether it has cross-attention."""
FEATURES = re.compile(r"Current is the (.+?) (?:feature )?testing")
EPOCH_RATE = re.compile(r"Base Lr: ([\d.]+e[-+]\d+)")
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
    with atomic_write(arguments.json) as temporary:
        temporary.write_text(result_json(content, levels=2) + "\n", encoding="utf-8")
    cli.print_lines(f"Wrote {len(rows)} comparisons in {len(runs)} logs to {arguments.json}")


def read_log(path: Path) -> dict[str, Any]:
    """The configuration that a log prints, by key; its evaluations (epoch, mAP, Rank-1) of the last features; its learning
    rates in order; and the form of its SDTPS."""
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
        "rates": [float(rate) for rate in dict.fromkeys(EPOCH_RATE.findall(text))],
        "form": FORMS["TokenAggregation(" in text, "CrossModalAttention(" in text],
    }


def comparisons(runs: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Those of runs by path, in order; two of the same numbers, of runs repeated with the same result, count once."""
    counted = set()
    for one, other in permutations(runs, 2):
        off, on = runs[one], runs[other]
        if Path(one).parts[:2] != Path(other).parts[:2]:
            continue
        if not (off["evaluations"] and on["evaluations"]):
            continue
        differing = _differing(off["settings"], on["settings"])
        rates = zip(off["rates"], on["rates"], strict=False)  # one can be shorter
        if len(differing) != 1 or any(rate != other_rate for rate, other_rate in rates):
            continue
        (key,) = differing
        values = [run["settings"].get(key, "") for run in (off, on)]
        if key.startswith(SETTING) and all(map(NUMBER.fullmatch, values)):
            is_in_order = float(values[0]) < float(values[1])
        else:
            is_in_order = key == f"{SWITCH}SDTPS" and values[0] == "False"
        numbers = str((key, off["evaluations"], on["evaluations"]))
        if numbers in counted or not is_in_order:
            continue
        counted.add(numbers)
        switches = sorted(name for name, value in off["settings"].items() if value == "True")
        last = min(run["evaluations"][-1][0] for run in (off, on))
        yield {
            "data": on["settings"]["DATASETS.NAMES"],
            "setting": key if key.startswith(SETTING) else "",
            "form": on["form"],
            "values": values,
            "beside": [name.removeprefix(SWITCH) for name in switches if name.startswith(SWITCH)],
            "logs": [one, other],
            **{
                name: [row for row in run["evaluations"] if row[0] <= last][-1]
                for name, run in (("off", off), ("on", on))
            },
        }


def _differing(off: dict[str, str], on: dict[str, str]) -> set[str]:
    """The keys that differ, without those of a module that is off in one of the runs."""
    keys = {key for key in {*off, *on} if off.get(key) != on.get(key)}.difference(WITHOUT_EFFECT)
    switches = [key for key in {*off, *on} if key.startswith(SWITCH)]
    unused = [key for key in switches if "False" in (off.get(key), on.get(key))]
    prefixes = tuple(f"MODEL.{key.removeprefix(SWITCH)}_" for key in unused)
    return {key for key in keys if not key.startswith(prefixes)}


def name(row: dict[str, Any]) -> str:
    """What a comparison is of."""
    return (f"`{row['setting']}`, higher" if row["setting"] else "SDTPS") + row["form"]


def module_table(content: dict[str, Any]) -> str:
    """A row for each data set and form of SDTPS, or setting: the differences at the last epoch."""
    differences: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in content["comparisons"]:
        beside = "others" if row["beside"] else "none"
        difference = row["on"][1] - row["off"][1]
        differences[row["data"], name(row), beside].append(difference)
    rows = []
    for key, values in sorted(differences.items()):
        gains, span = sum(one > 0 for one in values), f"{min(values):+.1f} to {max(values):+.1f}"
        rows.append([*key, str(len(values)), str(gains), f"{mean(values):+.1f}", span])
    titles = ("data", "module", "beside", "comparisons", "gains", "mean", "range")
    return markdown_table(titles, rows)


def means(content: dict[str, Any]) -> str:
    """`module_table`, and where the logs are from."""
    about = (
        f"{len(content['comparisons'])} comparisons in {content['logs']} logs of {content['source']}, all in "
        "[public_logs.json](public_logs.json), by `python -m studies.public_logs`."
    )
    return f"{module_table(content)}\n\n{about}"


if __name__ == "__main__":
    cli.run(main)
