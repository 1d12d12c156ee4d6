"""Numeric tests with several seeds, as this processor is and as others compute: python tests/helpers/seeds.py [--json X.json]
A table shows how many passed and failed, and the largest share of its tolerance that a comparison used."""

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from demo_sdtps.runtime.progress import progress
from demo_sdtps.training.run import commit
from tools.tables import seeds

LOG = Path("runs/seeds.log")
"""What pytest prints."""
SETTINGS = {
    "as it is": {},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "no vectors in torch, MKL with AVX2": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=range(5), help="of TEST_SEED")
    parser.add_argument("--json", type=Path, metavar="X.json", help="write the table there too")
    arguments = parser.parse_args()
    LOG.parent.mkdir(parents=True, exist_ok=True)
    cases = [(setting, seed) for setting in SETTINGS for seed in arguments.seeds]
    with open(LOG, "w", encoding="utf-8") as log:
        rows = [numeric_tests(*case, log) for case in progress(cases, "numeric tests", unit="run")]
    if arguments.json:
        arguments.json.write_text(
            json.dumps({**commit(), "processor": processor(), "rows": rows}, indent=1) + "\n"
        )
    print(seeds({"rows": rows}))
    return int(any(row["failed"] for row in rows))


def processor() -> str:
    """Its name, as Linux tells it, or its kind."""
    cpuinfo = Path("/proc/cpuinfo")
    names = (
        re.findall(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.M) if cpuinfo.exists() else []
    )
    return names[0] if names else platform.machine()


def numeric_tests(setting: str, seed: int, log) -> dict:
    """Run the numeric tests that are not slow."""
    with tempfile.TemporaryDirectory() as folder:
        margins = Path(folder, "margins")
        words = "-m pytest -q -n auto --maxprocesses 8 -m 'numeric and not slow'"
        variables = SETTINGS[setting] | {"TEST_SEED": str(seed), "TEST_MARGINS": str(margins)}
        done = subprocess.run(
            [sys.executable, *shlex.split(words)],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        log.write(f"{setting}, TEST_SEED={seed}\n{done.stdout}\n")
        log.flush()
        lines = margins.read_text().splitlines() if margins.exists() else []
    shares = [float(line.split()[0]) for line in lines]
    counts = {
        name: int(number)
        for number, name in re.findall(r"(\d+) (passed|failed|error)", done.stdout.splitlines()[-1])
    }
    failed = counts.get("failed", 0) + counts.get("error", 0) + (done.returncode > 1)
    return {
        "setting": setting,
        "seed": seed,
        "passed": counts.get("passed", 0),
        "failed": failed,
        "share": max(shares, default=0.0),
    }


if __name__ == "__main__":
    sys.exit(main())
