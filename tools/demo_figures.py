"""The demo's figures beside the README's: python tools/demo_figures.py --run runs/demo; --json measures their range."""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import argparse
import os
import platform
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import add_output, print_lines, read_arguments, run
from demo_sdtps.runtime.files import read_json, write_json
from demo_sdtps.runtime.progress import progress

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "demo.json"
PATTERNS = ("1", "2", "3")
SEEDS = (1111, 1, 2)  # the README's first
IMITATIONS: Mapping[str, tuple[Mapping[str, str], Sequence[str]]] = {
    "as it is": ({}, ()),
    "AVX2, float32": ({"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}, ("SOLVER.AMP", "off")),
}
"""The processors that one machine can stand for: environment and configuration."""
CONFIDENCE = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Print the mAP of `make demo` beside the README's, and the range in which that of another "
                                "processor or seed lies. With --json, measure this range: train the demo with several seeds, "
                                "on this processor as it is and without its newer instructions (a minute or two each).")
    parser.add_argument("--run", type=Path, metavar="DIR", help="OUTPUT_DIR of make demo")
    add_output(parser, "--json", ".json",
               help="write the runs and the range there; runs on other processors that the file holds are kept")
    arguments = read_arguments(parser)
    if arguments.json:
        kept = read_json(arguments.json)["runs"] if arguments.json.exists() else []
        measure(arguments.json, [own for own in kept if own["processor"] != processor()])
    figures = read_json(arguments.json or FIGURES)
    if arguments.run:
        print_lines(comparison(last_map(arguments.run), figures))


def measure(path: Path, kept: Sequence[Mapping[str, Any]]) -> None:
    """Train the demo with each of SEEDS and IMITATIONS and write the record to `path`, the README's run first."""
    from demo_sdtps.training.record import command, commit

    runs = []
    for name, (environment, options), seed in progress([(name, how, seed) for name, how in IMITATIONS.items()
                                                        for seed in SEEDS], "training the demo", unit="run"):
        with tempfile.TemporaryDirectory() as output:
            subprocess.run([sys.executable, ROOT / "train_net.py", "--config_file", "Synthetic/DeMo_Slim.yml", "SOLVER.SEED",
                            str(seed), "OUTPUT_DIR", output, *options], env=os.environ | environment, cwd=ROOT, check=True,
                           capture_output=True)
            runs.append({"processor": processor(), "setting": name, "seed": seed, "mAP": last_map(Path(output))})
            write_json(path, {"command": command(), **commit(), "runs": [*runs, *kept], "range": ranges([*runs, *kept])})


def ranges(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """By pattern, the interval in which a further run lies with CONFIDENCE, if the runs are normally distributed: Student's
    prediction interval, in percent. One run has none."""
    if len(runs) < 2:
        return {}
    from scipy import stats

    reach = stats.t.ppf((1 + CONFIDENCE) / 2, len(runs) - 1) * (1 + 1 / len(runs)) ** 0.5
    found = {pattern: [own["mAP"][pattern] for own in runs] for pattern in PATTERNS}
    return {pattern: [statistics.mean(own) + sign * reach * statistics.stdev(own) for sign in (-1, 1)]
            for pattern, own in found.items()}


def last_map(run_folder: Path) -> dict[str, float]:
    """mAP of the last epoch in percent, by pattern."""
    records = read_json(run_folder / "metrics.json")
    if not records or "patterns" not in records[-1]:
        raise UserError(f"{run_folder} holds no finished run (no metrics.json with an evaluated last epoch); run make demo, or "
                        "give the OUTPUT_DIR of another run.")
    return {pattern: 100 * found["mAP"] for pattern, found in records[-1]["patterns"].items()}


def comparison(found: Mapping[str, float], figures: Mapping[str, Any]) -> str:
    """One line: the figures of a run, the README's, and the range."""
    def listed(values: Mapping[str, float]) -> str:
        return " / ".join(f"{values[pattern]:.1f}" for pattern in PATTERNS)

    limits = " / ".join("{:.1f} to {:.1f}".format(*figures["range"][pattern]) for pattern in PATTERNS)
    return (f"mAP of original / enhanced / both: {listed(found)} here, {listed(figures['runs'][0]['mAP'])} in the README; on "
            f"another processor or with another seed: {limits} ({CONFIDENCE:.0%} of runs)")


def processor() -> str:
    """The processor's name, as Linux tells it."""
    try:
        names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                 if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    run(main)
