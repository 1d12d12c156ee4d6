"""What demo-sdtps study does: the runs of a study, variants × seeds, and the result that compares them."""

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm.contrib.logging import logging_redirect_tqdm
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.common import CROSS_MODAL_DISTANCES
from demo_sdtps.datasets import identity_labels, read_splits
from demo_sdtps.evaluation.operations import count_macs, dense_macs
from demo_sdtps.evaluation.tables import evaluated_records, read_records, read_run, write_tables
from demo_sdtps.modeling import make_model
from demo_sdtps.runtime.files import check_output_file, read_json
from demo_sdtps.runtime.progress import progress
from demo_sdtps.runtime.threads import cpu_cores, threads_by_user
from demo_sdtps.training.output import FINISHED, LAST, RECORD
from studies import results
from studies.report import COSTS, legend, result_table, study_markdown
from studies.sources import source_tree
from studies.variants import ROOT, Variant, make_variants, read_study

logger = logging.getLogger("study")
RESULTS = ROOT / "docs" / "results"
PROVENANCE = ("commit", "changed", "versions", "machine", "seconds")  # of run.json
Runs = Sequence[tuple[Variant, int]]  # with their seeds


def run_study(arguments: argparse.Namespace) -> None:
    """Make the runs that are missing, write the result, and print its table. Exit code 1 where a run failed."""
    path = arguments.json or Path("runs/studies", f"{arguments.study.stem}.json")
    result = make_result(arguments, path)
    print_lines(f"{study_markdown(result)}\n\n{legend(result)}", path)
    write_tables(result_table(result), arguments.csv, arguments.latex)
    if any("failed" in run for one in result["variants"] for run in one["runs"].values()):
        sys.exit(1)


def make_result(arguments: argparse.Namespace, path: Path) -> dict[str, Any]:
    """The result of a study, in `path` after every variant: runs that it holds are not made again."""
    study = read_study(arguments.study)
    check_output_file(path, ".json", overwrite=True)
    tree = check_tree(arguments.changed_tree)
    known = None if arguments.changed_tree else tree  # runs of other files may be kept
    rates = (
        results.chosen_rates(RESULTS) | results.chosen_rates(path.parent) if study["tuned"] else {}
    )
    variants = make_variants(study, arguments.opts, arguments.runs, tree, rates)
    rows = {variant.name: variant.facts | {"runs": {}} for variant in variants}
    for name, runs in finished_runs(path, variants, known).items():
        rows[name] |= runs
    result: dict[str, Any] = {"title": study["title"], "tree": known}
    result["patterns"] = study["return_patterns"]

    def keep(variant: Variant, seed: int, reason: str) -> None:
        row = rows[variant.name]
        if not study["grid"] and "gmacs" not in row:
            row |= cost(variant.cfg)
        row["runs"] = with_run(row["runs"], seed, gather(variant, seed, reason, study))
        write()

    def write() -> None:
        result["variants"] = [rows[one.name] for one in variants if rows[one.name]["runs"]]
        results.write_result(path, result)

    def run(variants: Sequence[Variant]) -> None:
        pairs = ((one, seed) for one in variants for seed in one.seeds)
        left = [(one, seed) for one, seed in pairs if str(seed) not in rows[one.name]["runs"]]
        for wave in waves(left):
            run_all(wave, arguments.jobs, study, keep)

    wanted = variants
    if study["grid"]:
        pattern, seeds = study["return_patterns"][-1], tuple(study["seeds"])
        while names := results.next_rates(rows.values(), pattern):
            run([one for one in variants if one.name in names])
        names = results.finalists(rows.values(), pattern)
        wanted = [replace(one, seeds=seeds) for one in variants if one.name in names]
    run([replace(one, seeds=one.seeds[: len(study["seeds"])]) for one in wanted])
    if study["times"] and not all("inference" in one for one in rows.values()):
        from benchmarks.timing import time_variants

        key = "MODEL.TEACHER"
        taught = {one.name: one.sources[key].cfg for one in variants if key in one.sources}
        for name, times in time_variants({one.name: one.cfg for one in variants}, taught).items():
            rows[name] |= times
        write()
    run(wanted)  # the further seeds of single variants
    write()
    return result


def with_run(runs: dict[str, Any], seed: int, run: Any) -> dict[str, Any]:
    """`runs` and another, in the order of the seeds. One that is there stays: its weights alone were made again."""
    return dict(sorted(({str(seed): run} | runs).items(), key=lambda one: int(one[0])))


def waves(left: Runs) -> tuple[Runs, Runs]:
    """Runs without sources, with those whose weights others need and that are not there; then the other runs."""
    first = {(one.name, seed): (one, seed) for one, seed in left if not one.sources}
    for one, seed in left:
        for source in one.sources.values():
            if not is_done(source.run_folder(seed) / RECORD):
                first[source.name, seed] = source, seed
    return [*first.values()], [(one, seed) for one, seed in left if one.sources]


def check_tree(is_free: bool) -> str | None:
    """`source_tree`, None outside of a checkout and where it is free to have changes."""
    tree, changes = source_tree(ROOT)
    if changes and not is_free:
        raise UserError(
            f"The checkout has changes in no commit ({changes[0].strip()}{', …' * (len(changes) > 1)}), so "
            "a result could not say what it was made with; commit them, or give --changed_tree."
        )
    return None if changes else tree


def finished_runs(
    path: Path, variants: Sequence[Variant], tree: str | None
) -> dict[str, dict[str, Any]]:
    """Of each variant what the result at `path` holds of it, by name, without the runs that failed or are not asked for."""
    if not path.exists():
        return {}
    result, by_name = results.read_result(path), {variant.name: variant for variant in variants}
    if tree and result.get("tree") != tree:
        raise UserError(
            f"{path} was made with the sources {str(result.get('tree'))[:10]}, but the checkout's are {tree[:10]}; "
            "give --changed_tree to keep its runs, or another --json."
        )
    finished = {}
    for row in result["variants"]:
        variant = by_name.get(row["name"])
        if variant and row.get("configuration") == variant.configuration:
            costs = {key: row[key] for key in (*COSTS.values(), "dense") if key in row}
            finished[variant.name] = costs | {
                "runs": {seed: run for seed, run in row["runs"].items() if "failed" not in run}
            }
    return finished


def cost(cfg: CfgNode) -> dict[str, float]:
    """GMACs of one complete triplet, and of the dense model; the data set gives the classes."""
    samples = read_splits(cfg, ("train",))["train"]
    cameras = 1 + max(sample.camera for sample in samples)
    model = make_model(cfg, len(identity_labels(samples)), cameras).eval()
    return {"gmacs": count_macs(cfg, model)[""] / 1e9, "dense": dense_macs(cfg) / 1e9}


def run_all(
    left: Runs,
    jobs: int | None,
    study: Mapping[str, Any],
    keep: Callable[[Variant, int, str], None],
) -> None:
    """Train and measure variants with seeds, `jobs` runs at a time; `keep` gets each at its end, and what `run_steps` says."""
    jobs = jobs or (1 if torch.cuda.is_available() else cpu_cores())
    processes: list[subprocess.Popen] = []
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])  # of studies.baselines
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if not threads_by_user():
        environment["OMP_NUM_THREADS"] = str(max(1, cpu_cores() // jobs))
    with logging_redirect_tqdm(), ThreadPoolExecutor(jobs) as pool:
        futures = {
            pool.submit(run_steps, variant, seed, study, environment, processes): (variant, seed)
            for variant, seed in left
        }
        try:
            for future in progress(as_completed(futures), "runs", total=len(futures)):
                keep(*futures[future], future.result())
        finally:  # after Ctrl-C
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()


def run_steps(
    variant: Variant,
    seed: int,
    study: Mapping[str, Any],
    environment: Mapping[str, str],
    processes: list[subprocess.Popen],
) -> str:
    """Take the unfinished steps of a run, up to one that fails → the reason, or ''."""
    folder, reason = variant.run_folder(seed), ""
    log = folder.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    for words, output in steps(variant, seed, study):
        if is_done(output):
            continue
        with open(log, "a", encoding="utf-8") as file:
            process = subprocess.Popen(
                [sys.executable, *words], stdout=file, stderr=subprocess.STDOUT, env=environment
            )
            processes.append(process)
            process.wait()
        if not is_done(output):
            last = (log.read_text(encoding="utf-8").strip().splitlines() or [""])[-1]
            reason = f"it was stopped before its end; see {log}"
            if last.startswith("error: "):
                reason = last.removeprefix("error: ")
            break
    logger.info("%s, seed %d: %s", variant.name, seed, reason or folder)
    return reason


def steps(variant: Variant, seed: int, study: Mapping[str, Any]) -> list[tuple[list[str], Path]]:
    """The commands of a run, training first, each with the JSON file that it writes."""
    folder = variant.run_folder(seed)
    arguments = [*variant.arguments, "SOLVER.SEED", str(seed), "OUTPUT_DIR", str(folder)]
    program = ["-m", "demo_sdtps.commands"]
    for key, source in variant.sources.items():
        arguments += [key, str(source.run_folder(seed) / LAST)]
    commands = [([*program, "train", "--overwrite", *arguments], folder / RECORD)]
    arguments += ["TEST.WEIGHT", str(folder / LAST)]

    def measure(name: str, start: Sequence[str], *options: str) -> None:
        output = folder / f"{name}.json"
        words = [*start, *arguments, *options, "--overwrite", "--json", str(output)]
        commands.append((words, output))

    test = [*program, "test"]
    if variant.evaluation:
        measure(f"{results.EVALUATION}_{variant.configuration}", test, *variant.evaluation)
    if study["missing"]:
        measure("missing", test, "TEST.MISS", "all")
    for name in ("similarity", "calibration"):
        if study[name]:
            measure(name, ("-m", "studies.measure", "--what", name))
    for how in CROSS_MODAL_DISTANCES if study["cross_modal"] else ():
        options = ("TEST.CROSS_MODAL", "True", "TEST.CROSS_MODAL_DISTANCE", how)
        measure(f"cross_modal_{how}", test, *options)
    return commands


def is_done(output: Path) -> bool:
    """Whether the run is finished and has its weights, and `output`, one of its files, is not older than the run's record."""
    record = output.parent / RECORD
    is_finished = read_run(output.parent).get("status") == FINISHED
    is_whole = is_finished and output.exists() and (output.parent / LAST).exists()
    return is_whole and output.stat().st_mtime >= record.stat().st_mtime


def gather(variant: Variant, seed: int, reason: str, study: Mapping[str, Any]) -> dict[str, Any]:
    """What a run gave; `reason` says why it failed, or ''."""
    folder = variant.run_folder(seed)
    record = read_run(folder)
    run = {key: record[key] for key in PROVENANCE if key in record}
    if reason:
        return run | {"failed": reason}
    records = evaluated_records(read_records(folder))
    run["patterns"] = records[-1]["patterns"]
    if study["curve"]:
        last = str(study["return_patterns"][-1])
        run["curve"] = {one["epoch"]: one["patterns"][last]["mAP"] for one in records}
    for _, output in steps(variant, seed, study)[1:]:
        run |= results.measurement(output.stem, read_json(output, dict))
    return run
