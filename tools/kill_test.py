"""Interrupt a training at random moments, resume it each time, and compare it with an uninterrupted run.

    python tools/kill_test.py --kills 20

The training is tiny, uses all sources of randomness and runs on synthetic data in a temporary folder. It saves after every
step; every third kill waits until it saves. Half of the interruptions, drawn at random, are others than SIGKILL: SIGHUP, two
starts at once in one folder, which only one may survive, and a full /dev/shm. All of them count as kills.
"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import argparse
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache
from io import StringIO

import torch

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import add_output, check_outputs, positive_int, run
from demo_sdtps.config.files import write_json
from demo_sdtps.config.progress import progress
from demo_sdtps.engine.run.output import BEST, LAST, METRICS, OWN, PREVIOUS
from demo_sdtps.engine.run.record import FINISHED, read_record
from demo_sdtps.tools import make_synthetic, make_synthetic_captions

ROOT = Path(__file__).resolve().parent.parent
STARTED = "\ndevice "  # line of the log before the first step
SAVING_EVERY = 3  # one in so many kills waits until the training saves
KILL, HANG_UP, TWO_STARTS, FULL = "SIGKILL", "SIGHUP", "two starts at once", "full /dev/shm"
KINDS = (KILL, KILL, KILL, HANG_UP, TWO_STARTS, FULL)  # drawn in another order for each round of so many
PRIVATE_SHARED_MEMORY = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o "size=$0" tmpfs /dev/shm && exec "$@"')
"""Words before the size of a /dev/shm, which a command, the words after it, has to itself."""
TOO_SMALL = "64k"  # for the batches below
SHARED = ("DATALOADER.NUM_WORKERS", "0", "MODEL.DEVICE", "cpu", "SOLVER.IMS_PER_BATCH", "8", "SOLVER.EVAL_PERIOD", "1",
          "SOLVER.CHECKPOINT_MINUTES", "1e-6", "MODEL.SDTPS_USE_GUMBEL", "True", "MODEL.DROP_PATH", "0.1", "RESUME", "auto")
CLI_ARGS = {  # of a tiny run of each command
    "train_net": ("--config_file", "configs/Synthetic/DeMo_SDTPS.yml", "INPUT.SIZE_TRAIN", "[32,16]",
                  "INPUT.SIZE_TEST", "[32,16]", "MODEL.PATCH_SIZE", "4", "MODEL.STRIDE_SIZE", "[4,4]",
                  "DATALOADER.NUM_INSTANCE", "2", "MODEL.SDTPS_GUMBEL_SELECT", "True",
                  "MODEL.METRIC_LOSS_TYPE", "triplet_center"),
    "train_seps": ("--config_file", "configs/SEPS/shapes.yml", "MODEL.TRANSFORMER_TYPE", "test_vit", "MODEL.PATCH_SIZE", "8",
                   "MODEL.EMBED_SIZE", "16", "INPUT.SIZE", "[32,32]", "SOLVER.STEPS", "(1,2)"),
}
NOT_COMPARED = ("/meter/waited", "/meter/seconds", "/config")  # durations and paths in last.pth, which differ between runs


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--kills", type=positive_int, default=20, metavar="N", help="number of interruptions")
    made.add_argument("--command", choices=CLI_ARGS, default="train_net", help="command that is killed")
    made.add_argument("--epochs", type=positive_int, default=10, metavar="N", help="epochs of the training")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="another seed gives other moments")
    add_output(made, "--json", ".json", help="write the kills and the comparison as JSON")
    made.add_argument("opts", nargs="*", metavar="KEY VALUE", help="configuration keys and values")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    check_outputs(options)
    with tempfile.TemporaryDirectory() as folder:
        found = kill_test(Path(folder), options)
    if options.json:
        write_json(options.json, found)
    print(table(found))
    if found["differences"]:
        sys.exit(1)


def kill_test(folder: Path, options: argparse.Namespace) -> dict:
    """Kills, and differences of the killed runs from the uninterrupted run and from what a kill should do."""
    command = [sys.executable, str(ROOT / f"{options.command}.py"), *CLI_ARGS[options.command], *SHARED,
               *make_data(folder / "data", options.command), "SOLVER.MAX_EPOCHS", str(options.epochs), *options.opts]
    reference = folder / "uninterrupted"
    kills: list[dict] = []
    runs: list[Path] = []
    with progress(total=options.kills + 1, desc="training without kills", unit="kill") as bar:
        seconds = uninterrupted(command, reference)
        bar.set_description("killing")
        bar.update()
        while len(kills) < options.kills:  # a further run, if one has ended before all of its kills
            # A kill after the end has a number too, so that the next one has another moment.
            numbers = range(len(kills) + len(runs), options.kills + len(runs))
            runs.append(folder / f"killed_{len(runs)}")
            for kill in killed(command, runs[-1], options, seconds, numbers):
                kills.append({"run": len(runs), **kill})
                bar.update()
    differences = [f"run {number}: {difference}" for number, output in enumerate(runs, start=1)
                   for difference in differing(reference, output)]
    differences += [f"kill {number}: {kill['wrong']}" for number, kill in enumerate(kills, start=1) if kill.get("wrong")]
    return {"command": options.command, "epochs": options.epochs, "seed": options.seed, "opts": options.opts, "runs": len(runs),
            "seconds": seconds, "kills": kills, "differences": differences}


def make_data(root: Path, command: str) -> list[str]:
    """Write tiny synthetic data → the command line arguments for them."""
    with redirect_stdout(StringIO()):
        if command == "train_seps":
            make_synthetic_captions.main(["--root", str(root), "--images", "20", "--dev_images", "6", "--test_images", "8",
                                          "--captions", "2", "--size", "32"])
            return ["DATASETS.ROOT_DIR", str(root), "MODEL.TEXT_TOWER", str(root / "shapes" / "bert")]
        make_synthetic.main(["--root", str(root), "--identities", "6", "--test_identities", "4", "--images_per_camera", "2",
                             "--height", "32", "--width", "16", "--workers", "1"])
    return ["DATASETS.ROOT_DIR", str(root)]


def uninterrupted(command: list[str], output: Path) -> float:
    """Train to the end → seconds from the first step to the end."""
    process, log = start(command, output)
    began = time.monotonic()
    wait_for_end(process, log)
    return time.monotonic() - began


def killed(command: list[str], output: Path, options: argparse.Namespace, seconds: float, numbers: range) -> Iterator[dict]:
    """Kill and resume a run once for each of these numbers, then let it end → each kill."""
    for count, number in enumerate(numbers, start=options.kills - len(numbers)):
        kind, wrong = kind_of(options.seed, count), ""
        began = time.monotonic()
        if kind == FULL:
            during, wrong = fill_shared_memory(command, output)
            yield {"kind": kind, "after": round(time.monotonic() - began, 3), "during": during, "log": "-", "wrong": wrong}
            continue
        process, log = start(command, output)
        if kind == TWO_STARTS:
            process.kill()
            process.wait()
            process, log, wrong = start_twice(command, output)
        began = time.monotonic()
        # The expected sum of all delays is about the duration of the training.
        time.sleep(random.Random(f"{options.seed} {number}").uniform(0, 2 * seconds / (options.kills + 1)))
        if number % SAVING_EVERY == SAVING_EVERY - 1:
            wait_until(process, (output / f".{LAST}.part").exists, interval=0.0005)
        if process.poll() is not None:
            wait_for_end(process, log)
            return
        process.send_signal(signal.SIGHUP if kind == HANG_UP else signal.SIGKILL)
        # After the end of the run, signals act as in any other process.
        if process.wait() and kind == HANG_UP and read_record(output).get("status") != FINISHED:
            wrong = f"exit code {process.returncode} after {kind}"
        began_at = next((line.split(", from ")[0] for line in log.read_text(encoding="utf-8").splitlines()
                         if line.startswith("continuing after")), "from the beginning")
        yield {"kind": kind, "after": round(time.monotonic() - began, 3), "during": activity(output), "log": began_at,
               "wrong": wrong}
    wait_for_end(*start(command, output))


def start(command: list[str], output: Path) -> tuple[subprocess.Popen, Path]:
    """Process of a training, after the start of its first step or its end, and its log file."""
    log = output.with_suffix(".log")
    process = launch(command, output, log)
    wait_until(process, lambda: STARTED in log.read_text(encoding="utf-8"), interval=0.005)
    return process, log


def launch(command: list[str], output: Path, log: Path) -> subprocess.Popen:
    with open(log, "w", encoding="utf-8") as file:
        return subprocess.Popen([*command, "OUTPUT_DIR", str(output)], cwd=ROOT, stdout=file, stderr=file)


def kind_of(seed: int, count: int) -> str:
    """The kind of a kill, `count` others after the first: each round of kills has all KINDS."""
    whole, place = divmod(count, len(KINDS))
    return random.Random(f"{seed} {whole}").sample(KINDS, len(KINDS))[place]


def start_twice(command: list[str], output: Path) -> tuple[subprocess.Popen, Path, str]:
    """Process and log file of the one of two trainings, started at once in one folder, that goes on, and what is wrong."""
    logs = [output.with_suffix(f".{number}.log") for number in (1, 2)]
    both = [launch(command, output, log) for log in logs]
    for process, log in zip(both, logs, strict=True):
        wait_until(process, lambda log=log: STARTED in log.read_text(encoding="utf-8"), interval=0.005)  # type: ignore[misc]
    going = [place for place, process in enumerate(both) if process.poll() is None]
    chosen = going[0] if going else 0
    other = both[1 - chosen]
    wrong = "both of two starts at once go on" if len(going) == 2 else ""
    if len(going) == 1 and other.returncode != 2:
        wrong = f"exit code {other.returncode} of the second of two starts at once"
    other.kill()
    other.wait()
    return both[chosen], logs[chosen], wrong


def fill_shared_memory(command: list[str], output: Path) -> tuple[str, str]:
    """Run a training with loading processes in a tiny /dev/shm → what happened, and what is wrong."""
    if why := why_no_private_shared_memory():
        return f"skipped: {why}", ""
    log = output.with_suffix(".log")
    process = launch([*PRIVATE_SHARED_MEMORY, TOO_SMALL, *command, "DATALOADER.NUM_WORKERS", "2"], output, log)
    process.wait()
    said = log.read_text(encoding="utf-8").strip()
    if process.returncode == 0 and "is finished" in said:  # the kill before came after its last save
        return "finished", ""
    is_named = process.returncode == 2 and "/dev/shm" in said.splitlines()[-1]
    return "loading", "" if is_named else f"exit code {process.returncode} with a {FULL}"


@cache
def why_no_private_shared_memory() -> str:
    """Why a process here cannot have a /dev/shm of its own; empty where it can."""
    try:
        tried = subprocess.run([*PRIVATE_SHARED_MEMORY, TOO_SMALL, "true"], capture_output=True, text=True)
    except OSError as error:
        return f"unshare cannot be run ({error.strerror})"
    return f"no /dev/shm of its own ({tried.stderr.strip()})" if tried.returncode else ""


def wait_until(process: subprocess.Popen, condition: Callable[[], bool], interval: float) -> None:
    """Wait until the condition is true or the process has ended; `interval` in seconds."""
    while process.poll() is None and not condition():
        time.sleep(interval)


def wait_for_end(process: subprocess.Popen, log: Path) -> None:
    """Raise `UserError` where the training fails."""
    if process.wait():
        lines = log.read_text(encoding="utf-8").strip().splitlines()
        raise UserError(f"The training failed: {lines[-1] if lines else 'without a message'}")


def activity(output: Path) -> str:
    """What a killed run was doing, according to its files."""
    if saving := [name for name in OWN if (output / f".{name}.part").exists()]:
        return f"saving {', '.join(saving)}"
    if not (output / LAST).exists():
        return "between two renames" if (output / PREVIOUS).exists() else "before the first save"
    return "training"


def differing(reference: Path, output: Path) -> list[str]:
    found = [] if (reference / METRICS).read_bytes() == (output / METRICS).read_bytes() else [METRICS]
    for name in (LAST, BEST):
        one, other = (dict(leaves(torch.load(folder / name, weights_only=True))) for folder in (reference, output))
        found += [f"{name} {key}" for key in sorted(one.keys() | other.keys()) if key not in NOT_COMPARED
                  and not (key in one and key in other and equal(one[key], other[key]))]
    return found


def leaves(content: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Tensors, numbers and texts in nested mappings and sequences, with their paths."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from leaves(value, f"{name}/{key}")
    elif isinstance(content, list | tuple):
        for index, value in enumerate(content):
            yield from leaves(value, f"{name}/{index}")
    else:
        yield name, content


def equal(one: object, other: object) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) else one == other


def table(found: dict) -> str:
    rows = [f"{'kill':>4} {'run':>3} {'by':<18} {'seconds':>7}  {'this process began':<44} killed while"]
    rows += [f"{number:>4} {kill['run']:>3} {kill['kind']:<18} {kill['after']:>7.2f}  {kill['log']:<44} {kill['during']}"
             for number, kill in enumerate(found["kills"], start=1)]
    saving = sum(kill["during"].startswith(("saving", "between")) for kill in found["kills"])
    differences = found["differences"]
    result = (f"their files DIFFER from those of the uninterrupted run: {', '.join(differences[:9])}" if differences else
              "metrics.json, last.pth (model, optimisers, random states) and best.pth equal those of the uninterrupted run, "
              "bit for bit.")
    return "\n".join([*rows, f"{found['command']}, {found['epochs']} epochs, {len(found['kills'])} kills in {found['runs']} "
                             f"run{'s' if found['runs'] > 1 else ''}, {saving} of them while saving: {result}"])


if __name__ == "__main__":
    run(main)
