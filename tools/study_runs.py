"""Runs of a study in processes of their own, several at a time; finished runs are not repeated."""
import hashlib
import logging
import os
import shlex
import subprocess
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

from tqdm.contrib.logging import logging_redirect_tqdm

from demo_sdtps.config import UserError
from demo_sdtps.config.files import locked, read_json
from demo_sdtps.config.progress import progress
from demo_sdtps.config.threads import cpu_cores
from demo_sdtps.engine.evaluation.selection import selects_patches
from demo_sdtps.engine.run.output import LAST, METRICS
from demo_sdtps.engine.run.record import FINISHED, RECORD, read_record
from demo_sdtps.tools.run_records import evaluated, read_records
from demo_sdtps.tools.study_file import Variant

logger = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parent.parent

Failures = dict[tuple[str, int], str]  # the reason of every failure, by the variant's name and seed


class StoppedError(Exception):
    """The study is being stopped, and no further process may start."""


class Processes:
    """Runs Python scripts from several threads; `stop` terminates all of them."""

    def __init__(self, jobs: int):
        threads = str(max(1, cpu_cores() // jobs))
        self.environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
        self.alive: set[subprocess.Popen] = set()
        self.lock = threading.Lock()
        self.is_stopped = False

    def run(self, arguments: list[str], log: Path) -> str:
        """Run a script to its end, append its output to `log`, return the reason of a failure or ''. Raises `StoppedError`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a", encoding="utf-8") as file:
            with self.lock:  # so that no process starts after `stop` has terminated the others
                if self.is_stopped:
                    raise StoppedError
                process = subprocess.Popen([sys.executable, *arguments], stdout=file, stderr=subprocess.PIPE, text=True,
                                           env=self.environment)
                self.alive.add(process)
            errors = process.communicate()[1]
            self.alive.discard(process)
            file.write(errors)
        last = (errors.strip().splitlines() or [""])[-1]
        if process.returncode == 2 and last.startswith("error: "):
            return last.removeprefix("error: ")
        return f"it ended with code {process.returncode}; see {log}" if process.returncode else ""

    def stop(self) -> None:
        with self.lock:
            self.is_stopped = True
            for process in self.alive:
                process.terminate()


def run_all(variants: list[Variant], seeds: list[int], jobs: int, study: dict[str, Any]) -> Failures:
    """Train and measure whatever is not finished, `jobs` runs at a time; returns the failures."""
    runs: dict[Path, list[tuple[Variant, int]]] = defaultdict(list)  # variants that differ only in `evaluate` share a run
    for variant, seed in product(variants, seeds):
        runs[variant.run_folder(seed)].append((variant, seed))
    processes, pool = Processes(jobs), ThreadPoolExecutor(jobs)
    failures: Failures = {}
    try:
        tasks = [pool.submit(_run_steps, sharing, study, processes) for sharing in runs.values()]
        with logging_redirect_tqdm():
            for task in progress(as_completed(tasks), "runs", len(tasks), unit="run"):
                for variant, seed, error in task.result():
                    folder = variant.run_folder(seed)
                    if error:
                        failures[variant.name, seed] = error
                        logger.warning("FAILED: %s, seed %d: %s (%s)", variant.name, seed, error, folder)
                    else:
                        logger.info("%s, seed %d: %s", variant.name, seed, folder)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        processes.stop()
        raise
    pool.shutdown()
    return failures


def _run_steps(sharing: list[tuple[Variant, int]], study: dict[str, Any],
               processes: Processes) -> list[tuple[Variant, int, str]]:
    """Run the unfinished steps of variants that share a run folder; returns each with the reason of its failure or ''.

    Another study that uses the same folder is waited for, and what it has finished is not repeated.
    """
    errors: dict[Path, str] = {}  # by output; a failed step is not repeated for another variant
    outcomes = []
    variant, seed = sharing[0]
    folder = variant.run_folder(seed)
    with locked(folder.with_suffix(".lock"), f"The run {folder}", wait=True):
        for variant, seed in sharing:
            log = folder.with_suffix(".log")
            for command, output in steps(variant, seed, study):
                if output not in errors:
                    try:
                        errors[output] = "" if is_done(output) else processes.run(command, log)
                        if not errors[output] and not is_done(output):  # by SIGTERM: a training then saves and exits with 0
                            errors[output] = f"it was stopped before its end; see {log}"
                    except UserError as error:
                        errors[output] = str(error)
                if errors[output]:
                    break
            outcomes.append((variant, seed, errors[output]))
    return outcomes


def steps(variant: Variant, seed: int, study: dict[str, Any]) -> list[tuple[list[str], Path]]:
    """The commands of a run, training first, each with the JSON file that it writes."""
    folder = variant.run_folder(seed)
    arguments = [*variant.arguments, "SOLVER.SEED", str(seed), "OUTPUT_DIR", str(folder)]
    # Relative, so that the command in run.json works in the study's working directory.
    found = [([os.path.relpath(ROOT / "train_net.py"), "--overwrite", *arguments], folder / RECORD)]
    arguments += [*variant.evaluate, "TEST.WEIGHT", str(folder / LAST)]
    suffix = f"-{hashlib.sha256(' '.join(variant.evaluate).encode()).hexdigest()[:6]}" if variant.evaluate else ""
    for name, script, options in (("missing", "test_net.py", ("TEST.MISS", "all")),
                                  ("selection", "tools/selection_quality.py", ())):
        if study[name] and (name != "selection" or selects_patches(variant.cfg)):
            output = folder / f"{name}{suffix}.json"
            found.append(([os.path.relpath(ROOT / script), *arguments, *options, "--overwrite", "--json", str(output)],
                          output))
    return found


def is_done(output: Path) -> bool:
    """Whether the run is finished and `output`, one of its files, is not older than the run's record.

    Raises `UserError` where the run's record or metrics are not as training writes them.
    """
    folder = output.parent
    if not output.exists() or read_record(folder).get("status") != FINISHED:
        return False
    if not evaluated(read_records(folder)[-1:]):
        raise UserError(f"{folder / METRICS} has no evaluation after the last epoch, though {RECORD} says that the run is "
                        f"{FINISHED}; restore the file, or remove the folder to train again.")
    return output.stat().st_mtime >= (folder / RECORD).stat().st_mtime


def gather(variant: Variant, seeds: list[int], failures: Failures, study: dict[str, Any]) -> dict[str, Any]:
    """The results of a variant's runs by seed (as text, for JSON)."""
    command = shlex.join(["python", os.path.relpath(ROOT / "train_net.py"), *variant.arguments])
    found: dict[str, Any] = {"command": command, "evaluate": list(variant.evaluate), "records": {}, "made_with": {},
                             "failed": {}, "missing": {}, "selection": {}}
    for seed in seeds:
        folder, name = variant.run_folder(seed), str(seed)
        found["records"][name], found["made_with"][name] = [], {}
        with suppress(UserError):  # reported as the failure of the run
            found["records"][name] = read_records(folder)
            found["made_with"][name] = {key: value for key, value in read_record(folder).items() if key != "command"}
        if (variant.name, seed) in failures:
            found["failed"][name] = failures[variant.name, seed]
            continue
        for _, output in steps(variant, seed, study)[1:]:
            if is_done(output):
                measurement = output.stem.partition("-")[0]
                found[measurement][name] = read_json(output)["cases"] if measurement == "missing" else read_json(output)
    return found
