"""Rows of the benchmark for threads: training on an idle machine and beside other processes, by how threads wait."""
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from demo_sdtps.benchmarks.rows import Row
from demo_sdtps.runtime.progress import progress
from demo_sdtps.synthetic import pedestrians

ROOT = Path(__file__).resolve().parents[1]
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "spinning threads": {"GOMP_SPINCOUNT": "300000"},  # libgomp's own default
    "passive threads": {"OMP_WAIT_POLICY": "PASSIVE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
OURS = "the commands' default"
LOSS = {"idle": 0.95, "busy": 0.8}
"""Least speed of the commands' default relative to the best of SETTINGS."""


def busy_rows(quick: bool, _: object) -> Iterator[Row]:
    """Seconds to train the demo on 1,000 triplets: each of SETTINGS beside the commands' default, which chooses by the load."""
    unset = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY",
                                                                                "GOMP_SPINCOUNT")}
    with tempfile.TemporaryDirectory() as folder:
        pedestrians.write_data_set(Path(folder) / pedestrians.FOLDER, 8 if quick else 300, 1, 1, 128, 64)  # 1,200 triplets
        for machine, neighbours in (("idle", 0), ("busy", os.cpu_count() or 1)):
            seconds: dict[str, list[float]] = {name: [] for name in (*SETTINGS, OURS)}
            with busy_neighbours(neighbours):
                for _ in progress(range(1 if quick else 5), f"training on {machine} cores", unit="round"):
                    for name, own in seconds.items():
                        own.append(training_seconds(Path(folder), unset | dict(SETTINGS.get(name, {}))))
            medians = {name: statistics.median(own) for name, own in seconds.items()}
            best = min(medians[name] for name in SETTINGS)
            where = "on an idle machine" if not neighbours else f"beside {neighbours} busy processes"
            for name in SETTINGS:
                ratio = medians[name] / medians[OURS]
                is_best = medians[name] == best
                yield Row(f"training on 1,000 triplets {where}, {name}", medians[name], medians[OURS], "s", ratio,
                          f"≥ {LOSS[machine]:g}×" if is_best else "", ratio >= LOSS[machine] if is_best else None)


def training_seconds(root: Path, environment: Mapping[str, str]) -> float:
    """Seconds per 1,000 triplets of the last of two epochs of train_net.py."""
    with tempfile.TemporaryDirectory() as output:
        subprocess.run([sys.executable, ROOT / "train_net.py", "--config_file", "Synthetic/DeMo_Slim.yml", "DATASETS.ROOT_DIR",
                        root, "OUTPUT_DIR", output, "SOLVER.MAX_EPOCHS", "2", "SOLVER.EVAL_PERIOD", "9",
                        "SOLVER.EVAL_UNTRAINED", "False"], env=environment, check=True, capture_output=True)
        log = Path(output, "log.txt").read_text(encoding="utf-8")
    return 1000 / float(re.findall(r"([\d,.]+) triplets/s", log)[-1].replace(",", ""))


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Inside, `count` single-threaded processes compute without end."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
