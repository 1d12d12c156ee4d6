"""Write the tables of README.md and docs/ that are made from data: python -m tools.tables [--check]"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import demo_sdtps
from benchmarks.rows import as_report, headline
from demo_sdtps.commands import COMMANDS, cli
from demo_sdtps.config import RETURN_PATTERNS, UserError
from demo_sdtps.config.keys import KEYS
from demo_sdtps.evaluation.tables import PATTERN_NAMES, markdown_table, read_records
from demo_sdtps.plug_in.hosts import HOSTS
from demo_sdtps.runtime.files import atomic_write
from studies import figures
from studies.report import (
    difference_text,
    final_metric,
    identity_difference,
    interval,
    np,
    seed_count,
    study_markdown,
)

Record = dict[str, Any]
"""The content of a JSON file of docs/."""
ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TABLE_MARKER = "<!-- table: "
MARKED = re.compile(
    rf"^({TABLE_MARKER}(.+?) -->\n)(?:(?!{TABLE_MARKER}).)*?(<!-- end -->)", re.S | re.M
)
SUMMARY = {
    "dense, eight epochs": "dense",
    "dense, sixteen epochs": "dense, sixteen epochs",
    "dense, sixteen epochs, with the teacher": "dense with the dense teacher",
    "`slim` by default, without training": "slimmed without training, 72 %",
    "ToMe, without training": "ToMe without training, 67 %",
    "EViT, without training": "EViT without training, 68 %",
    "slimmed, two thirds": "slimmed, 65 %",
    "slimmed, half": "slimmed, 49 %",
    "slimmed, a third": "slimmed, 33 %",
    "ToMe, two thirds": "ToMe, 66 %",
    "ToMe, half": "ToMe, 50 %",
    "ToMe, a third": "ToMe, 35 %",
    "EViT, two thirds": "EViT, 68 %",
    "EViT, half": "EViT, 52 %",
    "dropped, then merged by ToMe, two thirds": "dropped then merged, 65 %",
    "dropped, then merged by ToMe, half": "dropped then merged, 49 %",
    "dropped, then merged by ToMe, a third": "dropped then merged, 35 %",
    "SDTPS": "SDTPS",
    "HDM and ATMoE": "HDM + ATMoE",
}
"""Rows of the README's table: what it is called there, and the variant of studies/real/persons.yml or persons_modules.yml."""
DENSE = ("dense", "dense, sixteen epochs")
TAUGHT = "dense with the dense teacher"

REFERENCE = {
    "demo_sdtps": [f"demo_sdtps.{name}" for name in demo_sdtps.__all__],
    "modules": [
        "demo_sdtps.modeling.checkpoints.names.from_demo",
        "demo_sdtps.modeling.checkpoints.names.to_demo",
        "demo_sdtps.modeling.fusion.HDM",
        "demo_sdtps.modeling.fusion.ATMoE",
        "demo_sdtps.modeling.losses",
        "vit_slim.stage",
        "demo_sdtps.modeling.backbones",
        "demo_sdtps.datasets.base",
        "demo_sdtps.evaluation.metrics.evaluate_ranking",
        "demo_sdtps.evaluation.distances.k_reciprocal",
        "demo_sdtps.training.optim.make_scheduler",
    ],
    "seps": ["seps.CrossSparseAggrNet", "seps.HRPA", "seps.SEPSLoss"],
}
"""Names whose docstrings docs/api.md introduces and a page of the site's reference shows."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write the tables between the markers <!-- table: NAME --> and <!-- end --> of the pages, from the JSON in "
        "docs/ that other commands wrote, the schema of the configuration and the list of commands; and draw the figures of "
        "studies."
    )
    cli.add_switch(parser, "--check", "write nothing, name pages that are not current, exit code 1")
    meaning = "write nothing, print the mAP of `make demo` beside the range of that of another seed"
    parser.add_argument("--demo", type=Path, metavar="DIR", help=meaning)
    arguments = cli.read_arguments(parser)
    if arguments.demo:
        cli.print_lines(demo_comparison(arguments.demo))
        return
    texts = {page: with_tables(page) for page in (*ROOT.glob("*.md"), *DOCS.glob("*.md"))}
    changed = [page for page in sorted(texts) if texts[page] != page.read_text(encoding="utf-8")]
    if arguments.check:
        cli.print_lines(*(f"{page}: its tables are not those of the data" for page in changed))
        sys.exit(1 if changed else 0)
    for page in changed:
        with atomic_write(page) as temporary:
            temporary.write_text(texts[page], encoding="utf-8")
    for name, (draw, source) in FIGURES.items():
        draw(data(source), DOCS / "images" / f"{name}.png")
        with figures.dark():
            draw(data(source), DOCS / "images" / f"{name}_dark.png")
    cli.print_lines(*(f"{page}: written" for page in changed))


def with_tables(page: Path) -> str:
    """The text of a page with its tables as the data have them."""

    def replacement(match: re.Match) -> str:
        make, source = TABLES[match[2]]
        table = make(data(source)) if source else make()
        return f"{match[1]}{table}\n{match[3]}"

    return MARKED.sub(replacement, page.read_text(encoding="utf-8"))


def data(name: str) -> Any:
    """The content of docs/NAME.json."""
    return json.loads((DOCS / f"{name}.json").read_text(encoding="utf-8"))


def keys() -> str:
    """Keys of the configuration, by section."""
    rows = [
        (f"`{key.name}`", f"`{key.default!r}`", key.description.replace("<", "&lt;"))
        for key in KEYS
    ]
    return markdown_table(("key", "default", "meaning"), rows)


def interface() -> str:
    """The names of REFERENCE and what their docstrings begin with."""
    rows = []
    for name in chain(*REFERENCE.values()):
        first = (resolve_name(name).__doc__ or "").split("\n\n")[0]
        rows.append((f"`{name}`", " ".join(first.split())))
    return markdown_table(("name", "meaning"), rows)


def commands() -> str:
    rows = [(f"`{name}`", what) for name, (_, what) in COMMANDS.items()]
    return markdown_table(("`demo-sdtps …`", "what it does"), rows)


def hosts(record: Record) -> str:
    """The code bases of the plug-in, measured by `make test-hosts`."""
    rows = []
    for host_record in record["hosts"]:
        host = next(host for host in HOSTS.values() if host.name == host_record["host"])
        repository, commit = host_record["commit"].split()
        row = [f"[{host.name}](https://github.com/{repository}) {commit}", "refused", "", "", ""]
        if not host.unslimmed:  # today, whatever was measured
            macs, speeds = host_record["macs"], host_record["images_per_second"]
            row[1:] = [
                "runs",
                f"{macs['before'] / 1e9:.1f} → {macs['after'] / 1e9:.1f} ({macs['after'] / macs['before']:.0%})",
                f"{speeds['before']:.2f} → {speeds['after']:.2f} ({speeds['after'] / speeds['before']:.2f}×)",
                f"{host_record['keep_all']:g}",
            ]
        rows.append([*row, "no" if "refused" in host_record["sdtps"] else "yes"])
    measured = "G per triplet", "images per second", "difference with all kept"
    headers = "code base", "token pruning", *measured, "SDTPS"
    return f"{markdown_table(headers, rows)}\n\n{headline(record)}"


def seeds(record: Record) -> str:
    """The numeric tests by processor and seed, as tests/helpers/seeds.py counted them."""
    names = ("setting", "seed", "passed", "failed")
    headers = ("processor", "TEST_SEED", "passed", "failed", "largest share of a tolerance")
    table = [[*(str(row[name]) for name in names), f"{row['share']:.2f}"] for row in record["rows"]]
    return markdown_table(headers, table)


def demo(result: Record) -> str:
    """The demo's figures, and the range in which others lie."""
    rows = [
        [PATTERN_NAMES[pattern], f"{mean:.1f}", f"{low:.1f} to {high:.1f}"]
        for pattern, (mean, low, high) in demo_ranges(result).items()
    ]
    return markdown_table(("return pattern", "mAP, mean", "95 % of further seeds"), rows)


def demo_ranges(result: Record) -> dict[int, tuple[float, float, float]]:
    """By return pattern the mean mAP, in percent, of the runs of studies/demo.yml, and the interval of 95 % of other seeds."""
    (variant,) = result["variants"]
    maps = {pattern: [*final_metric(variant, pattern).values()] for pattern in RETURN_PATTERNS}
    return {pattern: interval(values, 1 + 1 / len(values)) for pattern, values in maps.items()}


def demo_comparison(run: Path) -> str:
    """The mAP of a run of `make demo`, and the range of those of other seeds."""
    records = read_records(run)
    if not records or "patterns" not in records[-1]:
        raise UserError(
            f"{run} holds no finished run (no metrics.json with an evaluated last epoch); run make demo, "
            "or give the OUTPUT_DIR of another run."
        )
    maps = (100 * records[-1]["patterns"][str(pattern)]["mAP"] for pattern in RETURN_PATTERNS)
    ranges = demo_ranges(data("results/demo"))
    limits = " / ".join(f"{low:.1f} to {high:.1f}" for _, low, high in ranges.values())
    reached = " / ".join(f"{value:.1f}" for value in maps)
    return (
        f"mAP of original / enhanced / both: {reached}; with other seeds: {limits} (95 % of them)"
    )


def deploy(record: Record) -> str:
    """Milliseconds an image by runtime and precision, and by threads and batch; the rows with a target are the last."""
    cells: dict[str, dict[str, str]] = {}
    for row in record["parts"]["deploy"]:
        case, _, what = row["what"].partition(": ")
        times = f"{1000 * row['reference']:.1f} → {1000 * row['ours']:.1f} ({row['ratio']:.1f}×)"
        cells.setdefault(what, {})[case] = times
    cases = list(dict.fromkeys(case for row in cells.values() for case in row))
    rows = [[what, *(row[case] for case in cases)] for what, row in cells.items()]
    headers = ["dense → slimmed", *cases]
    return f"{markdown_table(headers, rows)}\n\n{headline(record)}"


def study(name: str, result: Record) -> str:
    """A study's table below its file, or below a sentence where what it compared has left the project."""
    files = [f"studies/{folder}{name}.yml" for folder in ("", "real/")]
    there = [f"`{file}`" for file in files if (ROOT / file).is_file()]
    origin = there[0] if there else f"Measured with version {result['version']}."
    return f"{origin}\n\n{study_markdown(result)}"


def origins() -> str:
    """What the runs of each study were made with."""
    rows = []
    for name in RESULTS:
        result = data(f"results/{name}")
        runs = [run for variant in result["variants"] for run in variant["runs"].values()]
        runs = [run for run in runs if "machine" in run]
        facts = (
            [run["commit"][:10] for run in runs],
            ["{cpu}, threads: {threads}".format(**run["machine"]) for run in runs],
            [run["versions"]["torch"] for run in runs],
        )
        row = ["; ".join(sorted({*values})) for values in facts]
        count = seed_count(result).split(" seed")[0]
        rows.append([f"`{name}`", count, result["version"], *row])
    headers = ("study", "seeds", "version", "commits", "processor", "torch")
    return markdown_table(headers, rows)


def summary() -> str:
    """What the variants of SUMMARY cost on real persons: mAP, and its differences with intervals over identities."""
    results = (data(f"results/{name}")["variants"] for name in ("persons_modules", "persons"))
    by_name = {row["name"]: row for row in chain(*results)}
    rows, dense = [], by_name[DENSE[0]]
    for called, name in SUMMARY.items():
        row = by_name[name]
        against = row.get("against", "" if name in DENSE else DENSE[0])
        others = [against, TAUGHT if against == DENSE[1] else ""]
        differences = [
            difference_text(identity_difference(row, by_name[other]))
            if other not in ("", name)
            else ""
            for other in others
        ]
        maps = f"{np.mean([*final_metric(row, 3).values()]):.1f}"
        rows.append([called, f"{row['gmacs'] / dense['gmacs']:.0%}", maps, *differences])
    headers = ("model", "operations", "mAP", "Δ", "Δ to the dense model with the same teacher")
    return markdown_table(headers, rows)


FIGURES: dict[str, tuple[Callable[[Any, Path], object], str]] = {
    "study_persons": (figures.draw_differences, "results/persons"),
    "study_distill": (figures.draw_costs, "results/distill"),
}
"""Of docs/images: NAME.png, and NAME_dark.png for dark pages: how they are drawn, and the data."""
BENCHMARKS = (
    *("performance", "slimming", "operators", "any_vit", "slim_hosts", "search", "seps", "models"),
    "gpu",
)
RESULTS = sorted(path.stem for path in (DOCS / "results").glob("*.json"))
TABLES: dict[str, tuple[Callable[..., str], str]] = {
    **{make.__name__: (make, "") for make in (interface, commands, keys, origins, summary)},
    **{make.__name__: (make, make.__name__) for make in (hosts, seeds, deploy)},
    **{name: (as_report, name) for name in BENCHMARKS},
    **{f"study {name}": (partial(study, name), f"results/{name}") for name in RESULTS},
    "demo": (demo, "results/demo"),
}
"""By the names in the markers: how they are made, and the data, where these are one file."""


if __name__ == "__main__":
    cli.run(main)
