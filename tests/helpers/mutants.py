"""How much the tests notice: each mistake of tests/mutants.yml is planted in a copy of the checkout, and the tests of it run;
prints and writes to runs/mutants.json which are noticed: python -m tests.helpers.mutants [--only TEXT] [--sample N]"""

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from demo_sdtps.runtime.progress import progress
from demo_sdtps.training.run import commit

ROOT = Path(__file__).resolve().parents[2]
LIST, JSON = ROOT / "tests" / "mutants.yml", Path("runs/mutants.json")
LEAST = 0.9
LIMIT = 300
"""Seconds after which tests that do not end have noticed."""
NOTICED, LIVED, EQUIVALENT = "noticed", "lived", "equivalent"


class Mutant(NamedTuple):
    """The text `before` of a file, `after` in its place, `tests` as words of pytest, and the `reason` why none can notice."""

    file: str
    name: str
    before: str
    after: str
    tests: tuple[str, ...]
    reason: str = ""

    def plant(self, root: Path) -> str:
        """The text of the file in a checkout with the mistake."""
        text = (root / self.file).read_text(encoding="utf-8")
        if (count := text.count(self.before)) != 1:
            raise ValueError(f"{self.file} has the text of {self.name!r} {count} times, not once.")
        return text.replace(self.before, self.after)


def read_mutants(path: Path = LIST) -> Iterator[Mutant]:
    """Those of the list. Of the tests of a file the slow ones are left out, of those that a mutant names none."""
    for file, group in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        for name, (before, after, *words) in group["mutants"].items():
            words = shlex.split(words[0] if words else f"{group['tests']} -m 'not slow'")
            tests = tuple(f"tests/{word}" if ".py" in word else word for word in words)
            yield Mutant(file, name, before, after, tests)
        for name, (before, after, reason) in group.get(EQUIVALENT, {}).items():
            yield Mutant(file, name, before, after, (), reason)


def run_tests(root: Path, tests: tuple[str, ...]) -> int | None:
    """pytest's exit code in a copy of the checkout: 0, or 1 where a test fails; None where the tests do not end."""
    # a file may change twice in a second, which bytecode would not notice
    variables = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(root)}
    words = ["-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    settings = {"cwd": root, "env": os.environ | variables, "start_new_session": True}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([sys.executable, *words], **settings, **pipes) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(tests)} cannot run:\n{output}")
    return process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="those with this text in their file: name")
    parser.add_argument("--sample", type=int, metavar="N", help="N of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    mutants = [each for each in read_mutants() if arguments.only in f"{each.file}: {each.name}"]
    count = min(arguments.sample or len(mutants), len(mutants))
    rows, counts, sound = [], Counter(), set()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "checkout")
        others = shutil.ignore_patterns(".*", "__pycache__", "runs", "data", "build")
        shutil.copytree(ROOT, root, symlinks=True, ignore=others)
        for mutant in progress(random.Random(arguments.seed).sample(mutants, count), "mutants"):
            result, file = EQUIVALENT, root / mutant.file
            if not mutant.reason:
                text = file.read_text(encoding="utf-8")
                file.write_text(mutant.plant(root), encoding="utf-8")
                result = LIVED if run_tests(root, mutant.tests) == 0 else NOTICED
                file.write_text(text, encoding="utf-8")
            if result == NOTICED and mutant.tests not in sound:
                sound.add(mutant.tests)
                if run_tests(root, mutant.tests) != 0:
                    raise SystemExit(f"{' '.join(mutant.tests)} fails without any mistake.")
            print(f"{result:11}{mutant.file}: {mutant.name} {mutant.reason}", flush=True)
            rows.append({"file": mutant.file, "name": mutant.name, "result": result})
            counts[result] += 1
    JSON.parent.mkdir(exist_ok=True)
    content = {**commit(), "counts": counts, "mutants": rows}
    JSON.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    asked = counts[NOTICED] + counts[LIVED]
    print(f"{counts[NOTICED]} of {asked} noticed, {counts[EQUIVALENT]} equivalent: {JSON}")
    return int(counts[NOTICED] < LEAST * asked)


if __name__ == "__main__":
    sys.exit(main())
