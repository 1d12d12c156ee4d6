"""The runs of a study: each in processes of its own, several at a time, and never twice; what they leave behind."""
import hashlib
import json
import logging
import os
import shlex
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tqdm.contrib.logging import logging_redirect_tqdm

from demo_sdtps.config.progress import progress
from demo_sdtps.datasets.loaders import cpu_cores
from demo_sdtps.engine.run.output import LAST, METRICS
from demo_sdtps.engine.run.record import FINISHED, RECORD
from demo_sdtps.modeling.selectors import selector_name
from demo_sdtps.tools.study_file import ROOT, TRAINING, Variant

logger = logging.getLogger(__name__)

Failures = dict[tuple[Path, tuple[str, ...]], str]
"""What went wrong, by the run's folder and the words of its evaluation."""


class StoppedError(Exception):
    """The study is being ended: nothing more is to be started."""


class Processes:
    """Runs commands, and ends those that run when the study is ended."""

    def __init__(self, jobs: int):
        threads = str(max(1, cpu_cores() // jobs))
        self.environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
        self.alive: set[subprocess.Popen] = set()
        self.lock = threading.Lock()
        self.is_stopped = False

    def run(self, words: list[str], log: Path) -> None:
        """Run a Python script to its end, its output appended to `log`. Raises `RuntimeError` with the reason of a failure."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a", encoding="utf-8") as file:
            with self.lock:  # so that no process is started after the others have been ended
                if self.is_stopped:
                    raise StoppedError
                process = subprocess.Popen([sys.executable, *words], stdout=file, stderr=subprocess.PIPE, text=True,
                                           env=self.environment)
                self.alive.add(process)
            errors = process.communicate()[1]
            self.alive.discard(process)
            file.write(errors)
        if process.returncode:
            last = (errors.strip().splitlines() or [""])[-1]
            told = process.returncode == 2 and last.startswith("error: ")
            raise RuntimeError(last.removeprefix("error: ") if told else f"it ended with code {process.returncode}; see {log}")

    def stop(self) -> None:
        with self.lock:
            self.is_stopped = True
            for process in self.alive:
                process.terminate()


def run_all(variants: list[Variant], seeds: list[int], jobs: int, study: dict) -> Failures:
    """Train and measure what is not there yet, several runs at a time: → what went wrong."""
    wanted = {}
    for variant in variants:
        for seed in seeds:
            wanted.setdefault((variant.run_folder(seed), variant.evaluate), (variant, seed))
    failed: Failures = {}
    locks = {folder: threading.Lock() for folder, _ in wanted}
    broken: dict[Path, str] = {}  # a step that failed is not tried again for a variant that shares it
    processes, pool = Processes(jobs), ThreadPoolExecutor(jobs)

    def do(variant: Variant, seed: int) -> None:
        folder = variant.run_folder(seed)
        with locks[folder]:  # variants that differ in their evaluation alone share a run
            for words, product in steps(variant, seed, study):
                if product in broken:
                    raise RuntimeError(broken[product])
                if not is_done(product):
                    try:
                        processes.run(words, folder.with_suffix(".log"))
                        if not is_done(product):  # SIGTERM, upon which a training saves and ends well
                            raise RuntimeError(f"it was stopped before its end; see {folder.with_suffix('.log')}")
                    except RuntimeError as error:
                        broken[product] = str(error)
                        raise

    try:
        tasks = {pool.submit(do, *one): one for one in wanted.values()}
        with logging_redirect_tqdm():
            for task in progress(as_completed(tasks), "runs", len(tasks), unit="run"):
                variant, seed = tasks[task]
                folder = variant.run_folder(seed)
                error = task.exception()
                if isinstance(error, RuntimeError):
                    failed[folder, variant.evaluate] = str(error)
                    logger.warning("FAILED: %s, seed %d: %s (%s)", variant.name, seed, error, folder)
                elif error:
                    raise error
                else:
                    logger.info("%s, seed %d: %s", variant.name, seed, folder)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        processes.stop()
        raise
    pool.shutdown()
    return failed


def steps(variant: Variant, seed: int, study: dict) -> list[tuple[list[str], Path]]:
    """The commands of a run, in their order, and what each leaves behind."""
    folder = variant.run_folder(seed)
    words = [*variant.words, "SOLVER.SEED", str(seed), "OUTPUT_DIR", str(folder)]
    measure = [*words, *variant.evaluate, "TEST.WEIGHT", str(folder / LAST)]
    wanted = [([_script(variant.script), "--overwrite", *words], folder / RECORD)]
    if variant.script == TRAINING:  # what another script changes, the measuring commands would not know
        missing, selection = measured(variant, seed)
        if study["missing"]:
            wanted.append(([_script(ROOT / "test_net.py"), *measure, "TEST.MISS", "all", "--json", str(missing)], missing))
        if study["selection"] and selector_name(variant.cfg):
            wanted.append(([_script(ROOT / "tools" / "selection_quality.py"), *measure, "--json", str(selection)], selection))
    return wanted


def measured(variant: Variant, seed: int) -> tuple[Path, Path]:
    """Where the evaluations of missing modalities and of the selection are kept."""
    suffix = f"-{hashlib.sha256(' '.join(variant.evaluate).encode()).hexdigest()[:6]}" if variant.evaluate else ""
    return tuple(variant.run_folder(seed) / f"{name}{suffix}.json" for name in ("missing", "selection"))


def _script(path: Path) -> str:
    return os.path.relpath(path)  # so that run.json's command can be typed where the study was


def is_done(product: Path) -> bool:
    """Whether a step has been done: the run is finished, and a measurement of it is not older than the run."""
    record = product.with_name(RECORD)
    if not product.exists() or (_read(record) or {}).get("status") != FINISHED:
        return False
    return product.stat().st_mtime >= record.stat().st_mtime


def gather(variant: Variant, seeds: list[int], failed: Failures, study: dict) -> dict:
    """What the runs of a variant left behind, by seed (as text, for JSON)."""
    found = {"command": shlex.join(["python", _script(variant.script), *variant.words]), "evaluate": list(variant.evaluate),
             "records": {}, "made_with": {}, "failed": {}, "missing": {}, "selection": {}}
    for seed in seeds:
        folder, name = variant.run_folder(seed), str(seed)
        if (folder, variant.evaluate) in failed:
            found["failed"][name] = failed[folder, variant.evaluate]
        found["records"][name] = _read(folder / METRICS) or []
        found["made_with"][name] = {key: value for key, value in (_read(folder / RECORD) or {}).items() if key != "command"}
        missing, selection = measured(variant, seed)
        if study["missing"] and name not in found["failed"] and is_done(missing):
            found["missing"][name] = _read(missing)["cases"]
        if study["selection"] and name not in found["failed"] and is_done(selection):
            found["selection"][name] = _read(selection)
    return found


def _read(path: Path) -> dict | list | None:
    """A JSON file; None where there is none, or half of one after a power cut."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
