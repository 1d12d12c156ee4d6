"""What tools/study.py does: the runs of a study, variants × seeds, and the files that compare them."""

import argparse
import hashlib
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from tqdm.contrib.logging import logging_redirect_tqdm
from yacs.config import CfgNode

from demo_sdtps.config import RETURN_PATTERNS, UserError, load_cfg, with_values
from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.common import CROSS_MODAL_DISTANCES
from demo_sdtps.config.load import read_yaml
from demo_sdtps.datasets import identity_labels, read_splits
from demo_sdtps.evaluation.operations import count_macs
from demo_sdtps.evaluation.selection import selects_patches
from demo_sdtps.evaluation.tables import read_records
from demo_sdtps.modeling import make_model
from demo_sdtps.runtime.files import atomic_write, check_output_file, read_json
from demo_sdtps.runtime.progress import progress
from demo_sdtps.runtime.threads import cpu_cores, threads_by_user
from demo_sdtps.training.output import LAST
from demo_sdtps.training.record import FINISHED, RECORD, command, source_tree
from demo_sdtps.training.timing import seconds_of
from studies.report import draw_costs, draw_results, read_result, study_markdown
from studies.results import measurement, write_result

logger = logging.getLogger("study")
ROOT = Path(__file__).resolve().parents[1]
TABLES, RESULT = "study.md", "study.json"
PLOTS = {"results.png": draw_results, "costs.png": draw_costs}
DEFAULTS = {
    "title": "",
    "config": "",
    "seeds": 3,
    "set": {},
    "return_patterns": list(RETURN_PATTERNS),
    "missing": False,
    "selection": False,
    "cross_modal": False,
    "times": False,
    "variants": {},
}
PROVENANCE = ("commit", "changed", "versions", "machine", "seconds")
"""What a result has of run.json."""
VARIANT_DEFAULTS = {"config": "", "set": {}}


@dataclass(frozen=True)
class Variant:
    """One row of the tables: a configuration and its command-line arguments."""

    name: str
    cfg: CfgNode
    arguments: tuple[str, ...]
    folder: Path

    def run_folder(self, seed: int) -> Path:
        return self.folder / f"seed_{seed}"

    @property
    def command(self) -> str:
        return shlex.join(["python", script("train_net.py"), *self.arguments])


def script(name: str) -> str:
    """A script of the checkout; relative, so that the command in run.json works in the study's working directory."""
    return os.path.relpath(ROOT / name)


def run_study(arguments: argparse.Namespace) -> None:
    """Make the runs that are missing, write result, tables and plots, and print the tables. Exit code 1 where a run failed."""
    output = arguments.output or Path("runs/studies", arguments.study.stem)
    files = {
        name: check_output_file(output / name, Path(name).suffix, arguments.overwrite)
        for name in (TABLES, *PLOTS)
    }
    if arguments.study.suffix == ".json":
        result = read_result(arguments.study)
    else:
        result = make_result(arguments, arguments.json or output / RESULT)
    table = study_markdown(result)
    with atomic_write(files[TABLES]) as temporary:
        temporary.write_text(table, encoding="utf-8")
    for name, plot in PLOTS.items():
        plot(result, files[name])
    print_lines(table, *files.values())
    if any("failed" in run for one in result["variants"] for run in one["runs"].values()):
        sys.exit(1)


def make_result(arguments: argparse.Namespace, path: Path) -> dict[str, Any]:
    """The result of a study, in `path` after every variant: those that it holds are not made again."""
    study = read_study(arguments.study)
    check_output_file(path, ".json", overwrite=True)
    tree = check_tree(arguments.changed_tree)
    known = None if arguments.changed_tree else tree  # variants of other files may be kept
    seeds = list(range(1, 1 + (arguments.seeds or study["seeds"])))
    variants = make_variants(study, arguments.opts, arguments.runs, tree)
    finished = finished_variants(path, variants, seeds, known)
    left = [variant for variant in variants if variant.name not in finished]
    costs = {variant.name: cost(variant.cfg) for variant in left}
    result: dict[str, Any] = {
        "title": study["title"],
        "command": command(),
        "tree": known,
        "seeds": seeds,
        "patterns": study["return_patterns"],
    }

    def write() -> None:
        result["variants"] = [finished[one.name] for one in variants if one.name in finished]
        write_result(path, result)

    def keep(variant: Variant, failures: Sequence[str]) -> None:
        runs = gather(variant, seeds, failures, study)
        finished[variant.name] = {"name": variant.name, **costs[variant.name], **runs}
        write()

    jobs = arguments.jobs or (1 if torch.cuda.is_available() else cpu_cores())
    records = [read_json(record) or {} for record in arguments.runs.glob(f"*/*/{RECORD}")]
    if seconds := [record["seconds"] for record in records if "seconds" in record]:
        count = len(left) * len(seeds)
        logger.info(
            f"{len(left)} of {len(variants)} variants are left: at most {count} runs, {jobs} at a time, of "
            f"{mean(seconds):.0f} s as those in {arguments.runs}: {count * mean(seconds) / jobs / 60:.0f} minutes"
        )
    run_all(left, seeds, jobs, study, keep)
    if study["times"] and not all("inference" in one for one in finished.values()):
        for name, times in seconds_of({variant.name: variant.cfg for variant in variants}).items():
            finished[name] |= times
    write()
    return result


def check_tree(is_free: bool) -> str | None:
    """`source_tree`, None outside of a checkout and where it is free to have changes."""
    tree, changes = source_tree(ROOT)
    if changes and not is_free:
        raise UserError(
            f"The checkout has changes in no commit ({changes[0].strip()}{', …' * (len(changes) > 1)}), so "
            "a result could not say what it was made with; commit them, or give --changed_tree."
        )
    return None if changes else tree


def finished_variants(
    path: Path, variants: Sequence[Variant], seeds: Sequence[int], tree: str | None
) -> dict[str, Any]:
    """The variants that the result at `path` holds with all seeds and no failure, by name."""
    if not path.exists():
        return {}
    result, commands = read_result(path), {variant.name: variant.command for variant in variants}
    if result["variants"] and result["seeds"] != list(seeds):
        raise UserError(
            f"{path} has the seeds {result['seeds']}, but {list(seeds)} are asked for; give another --json."
        )
    if tree and result.get("tree") != tree:
        raise UserError(
            f"{path} was made with the sources {str(result.get('tree'))[:10]}, but the checkout's are {tree[:10]}; "
            "give --changed_tree to keep its variants, or another --json."
        )
    return {
        one["name"]: one
        for one in result["variants"]
        if one["command"] == commands.get(one["name"])
        and not any("failed" in run for run in one["runs"].values())
        and list(map(str, seeds)) == [*one["runs"]]
    }


def cost(cfg: CfgNode) -> dict[str, float]:
    """GMACs of one complete triplet; the data set gives the classes."""
    samples = read_splits(cfg, ("train",))["train"]
    model = make_model(
        cfg, len(identity_labels(samples)), 1 + max(sample.camera for sample in samples)
    ).eval()
    return {"gmacs": count_macs(cfg, model)[""] / 1e9}


def read_study(path: Path) -> dict[str, Any]:
    """A study file completed by the defaults."""
    content = read_yaml(path, "study", "give a YAML file such as studies/modules.yml")
    study = _check_section(path, "it", {"title": path.stem} | content, DEFAULTS)
    if not study["variants"] or study["seeds"] < 1:
        raise UserError(
            f"The study {path} has no variants, or no seeds; see tools/study.py --help for an example."
        )
    study["variants"] = {
        str(name): _check_section(path, f"the variant {name!r}", variant or {}, VARIANT_DEFAULTS)
        for name, variant in study["variants"].items()
    }
    patterns = study["return_patterns"]
    if not patterns or not all(pattern in RETURN_PATTERNS for pattern in patterns):
        raise UserError(
            f"The study {path}: return_patterns is {patterns!r}, but it must be some of 1 (original), 2 (enhanced) "
            "and 3 (both)."
        )
    return study


def _check_section(
    path: Path, where: str, content: Any, defaults: dict[str, Any]
) -> dict[str, Any]:
    """A section of a study completed by `defaults`, whose keys and types it has."""
    for key, value in content.items() if isinstance(content, dict) else [("", content)]:
        if key not in defaults:
            raise UserError(
                f"The study {path}: {where} has {key or value!r}, which is no key; the keys are "
                f"{', '.join(defaults)}."
            )
        if type(value) is not type(defaults[key]):
            raise UserError(
                f"The study {path}: {key} of {where} is {value!r}, but it must be like {defaults[key]!r}."
            )
    return defaults | content


def make_variants(
    study: dict[str, Any], opts: list[str], runs: Path, tree: str | None = None
) -> list[Variant]:
    """The variants with their configurations, all checked before the first run."""
    variants = []
    for name, variant in study["variants"].items():
        config = variant["config"] or study["config"]
        if not config:
            raise UserError(
                f"The variant {name!r} has no configuration; name one there or as `config` of the study."
            )
        pairs = [str(word) for pair in (study["set"] | variant["set"]).items() for word in pair]
        pairs += opts
        cfg = load_cfg(config, pairs)
        # What determines a run's numbers, except its seed and the data: variants and studies that agree in it share runs.
        dumped = with_values(cfg, {"OUTPUT_DIR": "", "SOLVER.SEED": 0}).dump()
        key = hashlib.sha256(f"{dumped}{tree}".encode()).hexdigest()
        folder = runs / f"{Path(config).stem}-{key[:10]}"
        variants.append(Variant(name, cfg, ("--config_file", config, *pairs), folder))
    for one, other in combinations(variants, 2):
        if one.folder == other.folder:
            raise UserError(
                f"The variants {one.name!r} and {other.name!r} have the same configuration; leave one out."
            )
    return variants


def run_all(
    variants: Sequence[Variant],
    seeds: Sequence[int],
    jobs: int,
    study: Mapping[str, Any],
    keep: Callable[[Variant, Sequence[str]], None],
) -> None:
    """Train and measure whatever is not finished, `jobs` runs at a time; `keep` gets each variant at its end, and what
    `run_steps` says of its runs."""
    threads = str(max(1, cpu_cores() // jobs))
    processes: list[subprocess.Popen] = []
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"] if threads_by_user() else threads,
        # of studies.baselines
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    with logging_redirect_tqdm(), ThreadPoolExecutor(jobs) as pool:
        futures = [
            [pool.submit(run_steps, variant, seed, study, environment, processes) for seed in seeds]
            for variant in variants
        ]
        try:
            for variant, runs in zip(progress(variants, "variants"), futures, strict=True):
                keep(variant, [run.result() for run in runs])
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
            is_told = last.startswith("error: ")
            reason = (
                last.removeprefix("error: ")
                if is_told
                else f"it was stopped before its end; see {log}"
            )
            break
    logger.info("%s, seed %d: %s", variant.name, seed, reason or folder)
    return reason


def steps(variant: Variant, seed: int, study: Mapping[str, Any]) -> list[tuple[list[str], Path]]:
    """The commands of a run, training first, each with the JSON file that it writes."""
    folder = variant.run_folder(seed)
    arguments = [*variant.arguments, "SOLVER.SEED", str(seed), "OUTPUT_DIR", str(folder)]
    commands = [([script("train_net.py"), "--overwrite", *arguments], folder / RECORD)]
    arguments += ["TEST.WEIGHT", str(folder / LAST)]

    def measure(name: str, file: str, *options: str) -> None:
        output = folder / f"{name}.json"
        words = [script(file), *arguments, *options, "--overwrite", "--json", str(output)]
        commands.append((words, output))

    if study["missing"]:
        measure("missing", "test_net.py", "TEST.MISS", "all")
    if study["selection"] and selects_patches(variant.cfg):
        measure("selection", "tools/selection_quality.py")
    for how in CROSS_MODAL_DISTANCES if study["cross_modal"] else ():
        options = ("TEST.CROSS_MODAL", "True", "TEST.CROSS_MODAL_DISTANCE", how)
        measure(f"cross_modal_{how}", "test_net.py", *options)
    return commands


def is_done(output: Path) -> bool:
    """Whether the run is finished and `output`, one of its files, is not older than the run's record."""
    record = output.parent / RECORD
    return (
        (read_json(record) or {}).get("status") == FINISHED
        and output.exists()
        and output.stat().st_mtime >= record.stat().st_mtime
    )


def gather(
    variant: Variant, seeds: Sequence[int], failures: Sequence[str], study: Mapping[str, Any]
) -> dict[str, Any]:
    """The command of a variant, and what its runs gave, by seed (as text, for JSON)."""
    runs: dict[str, Any] = {}
    for seed, reason in zip(seeds, failures, strict=True):
        folder = variant.run_folder(seed)
        record = read_json(folder / RECORD) or {}
        run = runs[str(seed)] = {key: record[key] for key in PROVENANCE if key in record}
        if reason:
            run["failed"] = reason
            continue
        run["patterns"] = read_records(folder)[-1]["patterns"]
        for _, output in steps(variant, seed, study)[1:]:
            run |= measurement(output.stem, read_json(output))
    return {"command": variant.command, "runs": runs}
