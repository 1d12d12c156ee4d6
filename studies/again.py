"""One further run of what older results rest on: python -m studies.again --json docs/again.json

A study's result keeps the hash of its sources. Where today's are others, the variants of AGAIN are trained once more with a
seed that the result lacks, and their differences of mAP are compared with the range in which 95 % of further ones lie.
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
from studies.report import interval
from studies.results import final_metric, read_result
from studies.runs import RESULTS, ROOT, check_tree, make_result
from studies.variants import MEASUREMENTS

AGAIN = {
    "slimming": ("dense", "self_supervised"),
    "epochs": ("dense", "self_supervised"),
    "fine": ("dense", "slimmed, 160x80"),
    "modules": ("DeMo", "Baseline", "Baseline + SDTPS"),
}
"""By study the variants on whose difference to the first its answer rests; none that starts from trained weights, which a
result does not identify."""
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
    content = {}
    for name in AGAIN:
        content[name] = run_again(name, arguments.jobs)
        write_json(arguments.json, content)
    cli.print_lines(*table(content).splitlines())


def run_again(name: str, jobs: int | None) -> dict[str, Any]:
    """The result of `study_again`, made with today's sources."""
    folder = FOLDER / str(check_tree(False))[:10]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yml"
    path.write_text(safe_dump(study_again(name), sort_keys=False), encoding="utf-8")
    options = {"runs": Path("runs/studies/runs"), "opts": [], "changed_tree": False, "jobs": jobs}
    return make_result(argparse.Namespace(study=path, **options), path.with_suffix(".json"))


def study_again(name: str) -> dict[str, Any]:
    """The study of the variants of AGAIN alone, without other measurements, with the first seed that the older result lacks."""
    study, older = read_yaml(ROOT / "studies" / f"{name}.yml", "study", ""), older_variants(name)
    seed = 1 + max(int(seed) for variant in AGAIN[name] for seed in older[variant]["runs"])
    variants = {one: study["variants"][one] | {"seeds": []} for one in AGAIN[name]}
    nothing = dict.fromkeys((*MEASUREMENTS, "times"), False)
    return study | nothing | {"seeds": [seed], "variants": variants}


def older_variants(name: str) -> dict[str, Any]:
    """The variants of a study's result in docs/results, by name."""
    return {one["name"]: one for one in read_result(RESULTS / f"{name}.json")["variants"]}


def table(content: Mapping[str, Any]) -> str:
    """A row per variant but the first of a study: its difference of mAP to that in the older runs, the range of a further one,
    and that of the further runs; bold outside of the range."""
    headers = ("study", "variant", "Δ mAP", "95 % of further ones", "again", "files")
    rows = []
    for name, result in content.items():
        older, again = older_variants(name), {one["name"]: one for one in result["variants"]}
        first, *others = again
        for variant in others:
            differences = paired_values(older[variant], older[first])
            mean, low, high = interval(differences, 1 + 1 / len(differences))
            reached = "failed"
            if values := paired_values(again[variant], again[first]):
                (value,) = values
                reached = f"{value:+.1f}" if low <= value <= high else f"**{value:+.1f}**"
            limits = f"{low:+.1f} to {high:+.1f}"
            rows.append([name, variant, f"{mean:+.1f}", limits, reached, result["tree"][:10]])
    return markdown_table(headers, rows)


def paired_values(variant: Mapping[str, Any], first: Mapping[str, Any]) -> list[float]:
    """The differences of mAP in percent of two variants, by the seeds of both."""
    values, baseline = (final_metric(one, 3, "mAP") for one in (variant, first))
    return [value - baseline[seed] for seed, value in values.items() if seed in baseline]


if __name__ == "__main__":
    cli.run(main)
