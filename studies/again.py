"""One further run of what older results rest on: python -m studies.again --json docs/again.json

A study's result keeps the hash of its sources. Where today's are others, the variants of AGAIN are trained once more with a
seed that the result lacks, and the mAP is compared with the range in which 95 % of further runs of the older sources lie.
"""

import argparse
import logging
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yaml import safe_dump

from demo_sdtps.config import cli
from demo_sdtps.config.load import read_yaml
from demo_sdtps.evaluation.tables import markdown_table
from demo_sdtps.runtime.files import check_output_file, write_json
from demo_sdtps.study.report import interval
from demo_sdtps.study.results import final_metric, read_result
from demo_sdtps.study.runs import RESULTS, ROOT, make_result
from demo_sdtps.study.variants import MEASUREMENTS

AGAIN = {
    "slimming": ("dense", "self_supervised"),
    "epochs": ("dense", "self_supervised"),
    "fine": ("slimmed, 160x80",),
    "modules": ("DeMo", "Baseline", "Baseline + SDTPS"),
    "vehicles": ("dense", "self_supervised, 0.5 twice", "self_supervised, 0.8 twice"),
    "slimming_loose": ("dense", "self_supervised"),
}
"""By study the variants on whose difference its answer rests."""
FOLDER = Path("runs/again")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    meaning = "the result; runs that are finished are kept in runs/again"
    parser.add_argument("--json", type=Path, required=True, metavar="X.json", help=meaning)
    cli.add_count(parser, "--jobs", None, "parallel runs (default: 1 with a GPU, else 1 per core)")
    arguments = cli.read_arguments(parser)
    check_output_file(arguments.json, ".json", overwrite=True)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as demo-sdtps study does
    content = {name: run_again(name, arguments.jobs) for name in AGAIN}
    write_json(arguments.json, content)
    cli.print_lines(*table(content).splitlines())


def run_again(name: str, jobs: int | None) -> dict[str, Any]:
    """The result of a study's variants of AGAIN with the first seed that the older result lacks."""
    study, older = read_yaml(ROOT / "studies" / f"{name}.yml", "study", ""), older_variants(name)
    seed = 1 + max(int(seed) for variant in AGAIN[name] for seed in older[variant]["runs"])
    study |= dict.fromkeys((*MEASUREMENTS, "times"), False) | {"seeds": [seed]}
    settings = study["variants"]
    study["variants"] = {one: settings[one] | {"seeds": []} for one in AGAIN[name]}
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.yml"
    path.write_text(safe_dump(study, sort_keys=False), encoding="utf-8")
    options = {"runs": Path("runs/studies/runs"), "opts": [], "changed_tree": False, "jobs": jobs}
    return make_result(argparse.Namespace(study=path, **options), path.with_suffix(".json"))


def older_variants(name: str) -> dict[str, Any]:
    """The variants of a study's result in docs/results, by name."""
    return {one["name"]: one for one in read_result(RESULTS / f"{name}.json")["variants"]}


def table(content: Mapping[str, Any]) -> str:
    """A row per variant: its older runs, the range of a further one, and that one; bold outside of the range."""
    headers = ("study", "variant", "older runs, mAP", "95 % of further ones", "again", "files")
    rows = []
    for name, result in content.items():
        older = older_variants(name)
        for variant in result["variants"]:
            values = [*final_metric(older[variant["name"]], 3, "mAP").values()]
            mean, low, high = interval(values, 1 + 1 / len(values))
            (again,) = final_metric(variant, 3, "mAP").values()
            emphasis = "" if low <= again <= high else "**"
            figures = f"{mean:.1f}", f"{low:.1f} to {high:.1f}", f"{emphasis}{again:.1f}{emphasis}"
            rows.append([name, variant["name"], *figures, result["tree"][:10]])
    return markdown_table(headers, rows)


if __name__ == "__main__":
    cli.run(main)
