"""Check and measure the project on a GPU: python tools/gpu_check.py [--only PART …] [--json X.json]

It runs with any interpreter that has PyTorch and torchvision; other packages may come from a folder (tools/bundle.py).
"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script
    import demo_sdtps.tools.bundle

    demo_sdtps.tools.bundle.use()

import argparse
import logging
import math
import multiprocessing
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from demo_sdtps.benchmarks.gpu import decoding_rows, graph_rows, same_precision_rows
from demo_sdtps.benchmarks.model import evaluation_rows
from demo_sdtps.benchmarks.ranking import ranking_speed_rows, reranking_speed_rows
from demo_sdtps.benchmarks.record import about, headline
from demo_sdtps.benchmarks.rows import Row, as_markdown
from demo_sdtps.benchmarks.seps import seps_speed_rows
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.cli import add_output, check_outputs, positive_int, print_lines, run
from demo_sdtps.config.files import write_json
from demo_sdtps.config.progress import progress
from demo_sdtps.engine.runtime import choose_device, set_seed
from demo_sdtps.tools import bundle
from demo_sdtps.tools import gpu_checks as checks
from demo_sdtps.tools.gpu_checks import FAILED, SKIPPED, Found, Place

NOT_RUN = "not run"
LOG = "log.txt"

class Part(NamedTuple):
    """A part: what it is about, and a function that yields what it finds."""

    about: str
    work: Callable[[Place], Iterable[Found | Row]]
    needs: tuple[str, ...] = ()  # modules beyond those without which nothing runs


def evaluation(place: Place) -> Iterator[Row]:
    for mode in ("off", "bf16"):
        yield from evaluation_rows(place.quick, *((2, 8) if place.quick else (16, 64)), mode)


def ranking(place: Place) -> Iterator[Row]:
    yield from ranking_speed_rows(place.quick, 1, place.device)
    yield from reranking_speed_rows(place.quick, 1, place.device)


def graphs(place: Place) -> Iterator[Found | Row]:
    if place.device.type == "cuda":
        yield from graph_rows(place.quick)
    else:
        yield Found("CUDA graph", given=SKIPPED, note="needs a GPU")


PARTS = {
    "golden": Part("the reference systems' numbers in float32, at the tests' tolerances", checks.golden, ("pytest",)),
    "precision": Part("training in float32, bfloat16 and float16 stays finite", checks.precisions),
    "attention": Part("fused attention equals plain", checks.attention),
    "repeat": Part("two runs of one seed are equal to the last bit", checks.repeated),
    "loss": Part("a loss that is not a number is noticed", checks.losses),
    "waiting": Part("a training step and evaluation's loop do not wait for the GPU", checks.waits),
    "memory": Part("training does not collect memory", checks.memory),
    "processes": Part("several processes train like one (NCCL on GPUs, gloo on a CPU)", checks.processes),
    "resume": Part("a killed run goes on to the last bit", checks.resumed, ("tensorboard",)),
    "compile": Part("compiled blocks equal others", checks.compiled),
    "model": Part("speed of inference and training beside DeMo's plain formulation, in the same precision",
                  lambda place: same_precision_rows(place.quick)),
    "graph": Part("speed of a CUDA graph and of compiled blocks", graphs),
    "evaluation": Part("speed of the evaluation of an epoch beside the plain formulation, in the same precision", evaluation),
    "ranking": Part("speed of mAP, CMC and re-ranking beside loops on the CPU", ranking),
    "seps": Part("speed of SEPS beside a loop over the captions", lambda place: seps_speed_rows(place.quick, place.device)),
    "decoding": Part("cores that decode 2,000 triplets in a second", lambda place: decoding_rows(place.quick)),
}
"""In the order in which they run: what must hold before what is measured."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Check on a GPU what the tests check on a CPU, and what a CPU cannot tell, and measure the speed beside "
                    "DeMo's\nplain formulation, within --minutes. The exit code is 1 where a part has failed, or was not run: "
                    "the last lines\nsay which, and why (no time was left, or the interpreter lacks a module). What needs a "
                    "GPU is skipped on a CPU,\nand what takes long with --quick; neither changes the exit code.",
        epilog="parts:\n" + "\n".join(f"  {name:12}{part.about}" for name, part in PARTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                        help="auto (default) is the first GPU that torch can use; cpu checks what a CPU can")
    parser.add_argument("--only", nargs="+", metavar="PART", default=[], help="parts to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, as a test without results")
    parser.add_argument("--minutes", type=positive_int, default=8, metavar="N",
                        help="time limit: what has not ended by then is stopped, and the rest is not run (default: 8)")
    parser.add_argument("--bundle", type=Path, metavar="DIR", help="copy the packages of pure Python that the checks need from "
                        "this environment into a new folder, for a machine without a package index, and end")
    add_output(parser, "--json", ".json", help="write the results as JSON too")
    arguments = parser.parse_args()
    if arguments.bundle:
        make_bundle(arguments.bundle)
        return
    check_outputs(arguments)
    for part in arguments.only:
        if part not in PARTS:
            raise UserError(f"There is no part {part!r} to check; choose from {', '.join(PARTS)}.")
    device = choose_device(load_cfg(None, ["MODEL.DEVICE", arguments.device]))
    if device.type == "cpu" and arguments.device == "auto":
        raise UserError("torch finds no GPU here; install a torch that is built for it, or pass --device cpu to check what a "
                        "CPU can.")
    if device.type == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the benchmarks choose a GPU where they see one
    # Python tells what a process that was killed has left.
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker"]))
    started = time.monotonic()
    parts = [part for part in PARTS if part in arguments.only or not arguments.only]
    with tempfile.TemporaryDirectory() as folder:
        place = Place(device, arguments.quick, Path(folder))
        checks.make_data(place.folder)
        results, rows = check(place, parts, started + 60 * arguments.minutes)
    record = about(device, arguments.quick) | {"seconds": time.monotonic() - started, "checks": results,
                                               "rows": [row._asdict() for row in rows]}
    if arguments.json:
        write_json(arguments.json, record)
    print_lines(*report(record).splitlines())
    if any(one["result"] in (FAILED, NOT_RUN) for one in results):
        sys.exit(1)


def make_bundle(folder: Path) -> None:
    if folder.exists():
        raise UserError(f"The folder {folder} already exists; remove it or choose another.")
    if missing := [name for name in bundle.START if name not in bundle.required()]:
        raise UserError(f"This environment has no {', '.join(missing)} to copy; install what is missing, as make setup does.")
    with tempfile.TemporaryDirectory(dir=folder.absolute().parent, prefix=f".{folder.name}.") as place:
        copied, left_out = bundle.make(Path(place, folder.name))
        os.rename(Path(place, folder.name), folder)  # a folder of this name is whole
    print_lines(f"Copied {', '.join(copied)} to {folder}",
                *([f"Left out, as they are compiled: {', '.join(left_out)}"] if left_out else []),
                f"On the machine with the GPU the checkout needs it as {bundle.FOLDER.name}/")


def check(place: Place, parts: Sequence[str], deadline: float) -> tuple[list[dict], list[Row]]:
    """Results of the checks, and rows of the benchmark. `deadline` is a time of `time.monotonic`."""
    found: list[tuple[str, Found | Row, float]] = []
    worker: Worker | None = None
    try:
        for part in (bar := progress(parts, unit="part")):
            bar.set_description(part)
            began = time.monotonic()
            if began >= deadline:
                found.append((part, Found(PARTS[part].about, given=NOT_RUN, note="no time was left"), 0.0))
                continue
            worker = worker or Worker(place)
            try:
                found += ((part, *result) for result in worker.results(part, deadline))
            except (TimeoutError, EOFError) as error:
                why = "it was stopped, as no time was left" if isinstance(error, TimeoutError) else worker.last_words()
                found.append((part, Found(PARTS[part].about, given=FAILED, note=why), time.monotonic() - began))
            if any(name == part and isinstance(one, Found) and one.result == FAILED for name, one, _ in found):
                worker.end(patience=0)  # an error of CUDA leaves its process without a GPU that it could use
                worker = None
    finally:
        if worker:
            worker.end()
    results = [{"part": part, "what": one.what, "result": one.result, "figure": finite(one.figure), "limit": one.limit,
               "unit": one.unit, "note": one.note, "seconds": seconds}
              for part, one, seconds in found if isinstance(one, Found)]
    return results, [one for _, one, _ in found if isinstance(one, Row)]


def finite(figure: float | None) -> float | None:
    return figure if figure is not None and math.isfinite(figure) else None


class Worker:
    """A process that runs parts: one that crashes or hangs does not end the others."""

    def __init__(self, place: Place):
        context = multiprocessing.get_context("spawn")
        self.log = place.folder / LOG
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, place))
        self.process.start()
        theirs.close()

    def results(self, part: str, deadline: float) -> Iterator[tuple[Found | Row, float]]:
        """What a part finds, and the seconds of each. Raises `TimeoutError` at the deadline, and `EOFError` where the process
        has ended."""
        self.connection.send(part)
        while True:
            if not self.connection.poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            result = self.connection.recv()
            if result is None:
                return
            yield result

    def last_words(self) -> str:
        self.process.join()
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"its process has ended with code {self.process.exitcode}: {lines[-1] if lines else 'no message'}"

    def end(self, patience: float = 5) -> None:
        """End the process, at once where it has not done so after `patience` seconds, and those that a part has started."""
        self.connection.close()
        self.process.join(patience)
        assert self.process.pid
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)  # torchrun ends its processes, which are in no group of this one
            for _ in range(100):
                self.process.join(0.1)
                os.killpg(self.process.pid, 0)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()  # before `serve` there is no such group
        self.process.join()


def serve(connection: Connection, place: Place) -> None:
    """In the worker: run the parts that are asked for."""
    os.setsid()
    log = open(place.folder / LOG, "ab")  # noqa: SIM115 (until the process ends)
    for stream in (1, 2):
        os.dup2(log.fileno(), stream)
    logging.getLogger().setLevel(logging.WARNING)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    with suppress(EOFError):  # the parent has ended
        while True:
            for result in results_of(connection.recv(), place):
                connection.send(result)
            connection.send(None)


def results_of(name: str, place: Place) -> Iterator[tuple[Found | Row, float]]:
    """What a part finds, and the seconds of each; what it raises is a failure."""
    part, began = PARTS[name], time.perf_counter()
    if missing := [module for module in part.needs if not bundle.is_there(module)]:
        yield Found(part.about, given=NOT_RUN, note=f"{sys.executable} has no {' and no '.join(missing)}; {bundle.HOW_TO}"), 0.0
        return
    set_seed(0)  # as before a training, whatever has run before: a GPU's algorithms are deterministic, if possible
    try:
        for found in part.work(place):
            now = time.perf_counter()
            yield found, now - began
            began = now
    except Exception as error:  # whatever a check raises; the others go on
        lines = str(error).strip().splitlines() or ["no message"]
        yield Found(part.about, given=FAILED, note=f"{type(error).__name__}: {lines[0]}"), time.perf_counter() - began


def report(record: dict) -> str:
    """The results as Markdown: where they were found, the checks, the rows of the benchmark, and what was not checked."""
    counts = Counter(one["result"] for one in record["checks"])
    lines = [("part", "check", "result", "figure", "limit", "seconds", "note"), ("---",) * 7]
    for one in record["checks"]:
        figure = "" if one["figure"] is None else f"{one['figure']:.3g} {one['unit']}".strip()
        limit = "" if one["limit"] is None else f"≤ {one['limit']:g}"
        lines.append((one["part"], one["what"], one["result"], figure, limit, f"{one['seconds']:.1f}", one["note"]))
    table = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
    rows = [Row(**row) for row in record["rows"]]
    not_run: dict[str, list[str]] = {}
    for one in record["checks"]:
        if one["result"] == NOT_RUN:
            not_run.setdefault(one["note"], []).append(one["part"])
    return "\n\n".join([headline(record), *([table] if record["checks"] else []), *([as_markdown(rows)] if rows else []),
                        f"{', '.join(f'{number} {result}' for result, number in counts.items()) or 'no check'}; "
                        f"{len(rows)} rows of speed; {record['seconds']:.0f} s",
                        *(f"NOT CHECKED: {', '.join(parts)}: {why}." for why, parts in not_run.items())])


if __name__ == "__main__":
    run(main)
