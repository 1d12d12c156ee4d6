"""The runs of a study, variants × seeds: training and measurements, each made once, and the result that holds their figures."""

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

from demo_sdtps import __version__
from demo_sdtps.config import UserError
from demo_sdtps.config.common import CROSS_MODAL_DISTANCES
from demo_sdtps.datasets import identity_labels, read_splits
from demo_sdtps.datasets.base import VALIDATION
from demo_sdtps.evaluation.operations import count_macs
from demo_sdtps.evaluation.tables import evaluated_records, read_records, read_run
from demo_sdtps.modeling.demo import make_model
from demo_sdtps.runtime.files import atomic_write, read_json
from demo_sdtps.runtime.progress import progress
from demo_sdtps.runtime.threads import cpu_cores, threads_by_user
from demo_sdtps.training.run import FINISHED, LAST, RECORD
from studies.report import COSTS, finalists, next_rates, read_result, result_json
from studies.run import ROOT, Variant

logger = logging.getLogger("study")
PROVENANCE = ("commit", "changed", "versions", "machine", "seconds")  # of run.json
EVALUATION = "evaluation"
Study = Mapping[str, Any]
Runs = Sequence[tuple[Variant, int]]  # with their seeds


def make_result(
    study: Study, variants: Sequence[Variant], path: Path, jobs: int | None
) -> dict[str, Any]:
    """The result of a study, in `path` after every run: runs that it holds are not made again."""
    rows = finished_rows(path, variants)
    result = {"title": study["title"], "version": __version__}
    result["patterns"] = study["return_patterns"]

    def write() -> None:
        result["variants"] = [rows[one.name] for one in variants if rows[one.name]["runs"]]
        with atomic_write(path) as temporary:
            levels = 2 if study["grid"] else 4
            temporary.write_text(result_json(result, levels) + "\n", encoding="utf-8")

    def keep(variant: Variant, seed: int, reason: str) -> None:
        row = rows[variant.name]
        if not study["grid"] and "gmacs" not in row:
            row["gmacs"] = count_gmacs(variant.cfg)
        row["runs"] = with_run(row["runs"], seed, gather(variant, seed, reason, study))
        write()

    def run(variants: Sequence[Variant]) -> None:
        pairs = ((one, seed) for one in variants for seed in one.seeds)
        left = [(one, seed) for one, seed in pairs if str(seed) not in rows[one.name]["runs"]]
        for wave in waves(left):
            run_all(wave, jobs, study, keep)

    if study["grid"]:
        pattern, seeds = study["return_patterns"][-1], tuple(study["seeds"])
        while names := next_rates(rows.values(), pattern):
            run([one for one in variants if one.name in names])
        names = finalists(rows.values(), pattern)
        run([replace(one, seeds=seeds) for one in variants if one.name in names])
    else:
        run(variants)
    write()
    return result


def finished_rows(path: Path, variants: Sequence[Variant]) -> dict[str, dict[str, Any]]:
    """The rows of a result by variant, with the costs and the runs that the one at `path` holds of the same configuration,
    but for runs that failed. Raises `UserError` where another version has made it."""
    rows = {one.name: one.facts | {"runs": {}} for one in variants}
    if not path.exists():
        return rows
    result = read_result(path)
    if result["version"] != __version__:
        raise UserError(
            f"{path} was made by version {result['version']}, but this is {__version__}; give another --json, or remove it."
        )
    for row in result["variants"]:
        mine = rows.get(row["name"], {})
        if mine.get("configuration") == row["configuration"]:
            mine |= {key: row[key] for key in COSTS.values() if key in row}
            runs = {seed: run for seed, run in row["runs"].items() if "failed" not in run}
            mine["runs"] = runs
    return rows


def with_run(runs: dict[str, Any], seed: int, run: Any) -> dict[str, Any]:
    """`runs` and another, in the order of the seeds. One that is there stays: its weights alone were made again."""
    return dict(sorted(({str(seed): run} | runs).items(), key=lambda one: int(one[0])))


def waves(left: Runs) -> list[Runs]:
    """Runs after those that they need, one for each folder, also where only its weights are missing; then the other runs."""
    placed: dict[Path, tuple[int, Variant, int]] = {}

    def place(one: Variant, seed: int) -> int:
        sources = [(each, seed) for each in one.sources.values()]
        needed = [pair for pair in sources if not is_done(pair[0].run_folder(seed) / RECORD)]
        wave = max((1 + place(*pair) for pair in needed), default=0)
        return placed.setdefault(one.run_folder(seed), (wave, one, seed))[0]

    last = 1 + max((place(*pair) for pair in left), default=0)
    ordered = [[(one, seed) for at, one, seed in placed.values() if at == n] for n in range(last)]
    names = {(one.name, seed) for _, one, seed in placed.values()}
    return [*ordered, [(one, seed) for one, seed in left if (one.name, seed) not in names]]


def count_gmacs(cfg: CfgNode) -> float:
    """GMACs of one complete triplet; the data set gives the classes."""
    samples = read_splits(cfg, ("train",))["train"]
    cameras = 1 + max(sample.camera for sample in samples)
    model = make_model(cfg, len(identity_labels(samples)), cameras).eval()
    return count_macs(cfg, model)[""] / 1e9


def run_all(
    left: Runs, jobs: int | None, study: Study, keep: Callable[[Variant, int, str], None]
) -> None:
    """Train and measure variants with seeds, `jobs` runs at a time; `keep` gets each at its end, and what `run_steps` says."""
    jobs = jobs or (1 if torch.cuda.is_available() else cpu_cores())
    processes: list[subprocess.Popen] = []
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])  # of studies.baselines
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if not threads_by_user():
        environment["OMP_NUM_THREADS"] = str(max(1, cpu_cores() // jobs))

    def start(words: Sequence[str], log: Path) -> None:
        with open(log, "a", encoding="utf-8") as file:
            command = [sys.executable, "-m", *words]
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
            processes.append(process)
            process.wait()

    with logging_redirect_tqdm(), ThreadPoolExecutor(jobs) as pool:
        futures = {
            pool.submit(run_steps, variant, seed, study, start): (variant, seed)
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
    variant: Variant, seed: int, study: Study, start: Callable[[Sequence[str], Path], None]
) -> str:
    """Take the unfinished steps of a run, up to one that fails → the reason, or ''. `start` runs the words of a command, with
    its output in a log file."""
    folder, reason = variant.run_folder(seed), ""
    log = folder.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    for words, output in steps(variant, seed, study):
        if is_done(output):
            continue
        start(words, log)
        if not is_done(output):
            last = (log.read_text(encoding="utf-8").strip().splitlines() or [""])[-1]
            is_told = last.startswith("error: ")
            reason = last.removeprefix("error: ") if is_told else f"it ended early; see {log}"
            break
    logger.info("%s, seed %d: %s", variant.name, seed, reason or folder)
    return reason


def steps(variant: Variant, seed: int, study: Study) -> list[tuple[list[str], Path]]:
    """The commands of a run, training first, as the words after python -m, each with the JSON file that it writes."""
    folder = variant.run_folder(seed)
    arguments = [*variant.arguments, *variant.fold(seed)]
    arguments += ["SOLVER.SEED", str(seed), "OUTPUT_DIR", str(folder)]
    for key, source in variant.sources.items():
        arguments += [key, str(source.run_folder(seed) / LAST)]
    commands = [(["demo_sdtps.commands", "train", "--overwrite", *arguments], folder / RECORD)]
    arguments += ["TEST.WEIGHT", str(folder / LAST)]

    def measure(name: str, start: Sequence[str], *options: str) -> None:
        output = folder / f"{name}.json"
        words = [*start, *arguments, *options, "--overwrite", "--json", str(output)]
        commands.append((words, output))

    test = ("demo_sdtps.commands", "test")
    if variant.evaluation:
        measure(f"{EVALUATION}_{variant.configuration}", test, *variant.evaluation)
    if study["missing"]:
        measure("missing", test, "TEST.MISS", "all")
    for name in ("similarity", "identities"):
        if study[name]:
            words = ("studies.measure", "--what", name)
            measure(f"{name}_{variant.configuration}", words, *variant.evaluation)
    for how in CROSS_MODAL_DISTANCES if study["cross_modal"] else ():
        options = ("TEST.CROSS_MODAL", "True", "TEST.CROSS_MODAL_DISTANCE", how)
        measure(f"cross_modal_{how}", test, *options)
    return commands


def is_done(output: Path) -> bool:
    """Whether the run of a file `output` is finished and has its weights, and the file is there."""
    is_finished = read_run(output.parent).get("status") == FINISHED
    return is_finished and output.exists() and (output.parent / LAST).exists()


def gather(variant: Variant, seed: int, reason: str, study: Study) -> dict[str, Any]:
    """What a run gave; `reason` says why it failed, or ''."""
    folder = variant.run_folder(seed)
    record = read_run(folder)
    run = {key: record[key] for key in PROVENANCE if key in record}
    if reason:
        return run | {"failed": reason}
    records = evaluated_records(read_records(folder))
    run["patterns"] = records[-1][VALIDATION if study["validation"] else "patterns"]
    for _, output in steps(variant, seed, study)[1:]:
        run |= measurement(output.stem, read_json(output, dict))
    return run


def measurement(name: str, content: Any) -> dict[str, Any]:
    """What the tables read of a JSON file of `steps`: metrics by return pattern, mAP by case and return pattern, mAP by the
    modalities of query and gallery, or what studies/measure.py wrote."""
    if name.startswith(EVALUATION):
        return {"patterns": next(iter(content["cases"].values()))}
    if name == "missing":
        cases = content["cases"].items()
        return {name: {case: {p: one["mAP"] for p, one in maps.items()} for case, maps in cases}}
    if "cross_modal" in content:
        return {name: content["cross_modal"]["mAP"]}
    return {name.partition("_")[0]: content}
