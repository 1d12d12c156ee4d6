"""Kill a training at random moments, continue it each time, and compare with the run that nobody disturbed.

    python tools/kill_test.py --kills 20

The training is a tiny one with everything random that there is, on synthetic data made for it in a temporary folder.
It saves after every step, so that some kills come while it saves; every third is aimed there.
"""
if not __package__:  # run as a script: of its checkout demo_sdtps alone is found, no folder under its common name
    import sys
    from pathlib import Path

    ROOT = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(ROOT))
    import demo_sdtps  # noqa: F401

    sys.path[:] = [folder for folder in sys.path if folder not in (str(ROOT), str(Path(__file__).resolve().parent))]

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import torch

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import positive_int, run
from demo_sdtps.config.files import check_output_file, write_json
from demo_sdtps.config.progress import progress
from demo_sdtps.engine.run.output import BEST, LAST, METRICS, PREVIOUS
from demo_sdtps.tools import make_synthetic, make_synthetic_captions

ROOT = Path(__file__).resolve().parent.parent
AT_WORK = "device "
"""What the log of a training says when its first step comes."""
AIMED_EVERY = 3
SHARED = ("DATALOADER.NUM_WORKERS", "0", "MODEL.DEVICE", "cpu", "SOLVER.IMS_PER_BATCH", "8", "SOLVER.EVAL_PERIOD", "1",
          "SOLVER.CHECKPOINT_MINUTES", "1e-6", "MODEL.SDTPS_USE_GUMBEL", "True", "MODEL.DROP_PATH", "0.1", "RESUME", "auto")
WORDS = {
    "train_net": ("--config_file", "configs/Synthetic/DeMo_SDTPS.yml", "INPUT.SIZE_TRAIN", "[32,16]",
                  "INPUT.SIZE_TEST", "[32,16]", "MODEL.PATCH_SIZE", "4", "MODEL.STRIDE_SIZE", "[4,4]",
                  "DATALOADER.NUM_INSTANCE", "2", "MODEL.SDTPS_GUMBEL_SELECT", "True",
                  "MODEL.METRIC_LOSS_TYPE", "triplet_center"),
    "train_seps": ("--config_file", "configs/SEPS/shapes.yml", "MODEL.TRANSFORMER_TYPE", "test_vit", "MODEL.PATCH_SIZE", "8",
                   "MODEL.EMBED_SIZE", "16", "INPUT.SIZE", "[32,32]", "SOLVER.STEPS", "(1,2)"),
}
"""Of a tiny run of each command."""
TIMINGS = ("/meter/waited", "/meter/seconds", "/config")
"""What of last.pth differs between equal runs: how long they took and where they are."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--kills", type=positive_int, default=20, metavar="N", help="how often the training is killed")
    made.add_argument("--command", choices=WORDS, default="train_net", help="the training")
    made.add_argument("--epochs", type=positive_int, default=10, metavar="N", help="epochs of the training")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="another seed kills at other moments")
    made.add_argument("--json", type=Path, metavar="FILE", help="keep the kills and the comparison as JSON")
    made.add_argument("opts", nargs="*", metavar="KEY VALUE", help="configuration keys and values")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.json:
        check_output_file(options.json, ".json")
    with tempfile.TemporaryDirectory() as folder:
        found = kill_test(Path(folder), options)
    if options.json:
        write_json(options.json, found)
    print(table(found))
    if found["differences"]:
        sys.exit(1)


def kill_test(folder: Path, options: argparse.Namespace) -> dict:
    """Every kill and how the runs differ from the undisturbed one."""
    command = [sys.executable, str(ROOT / f"{options.command}.py"), *WORDS[options.command], *SHARED,
               *make_data(folder / "data", options.command), "SOLVER.MAX_EPOCHS", str(options.epochs), *options.opts]
    reference = folder / "undisturbed"
    with progress(total=options.kills + 1, desc="training undisturbed", unit="kill") as bar:
        seconds = undisturbed(command, reference)
        bar.set_description("killing")
        bar.update()
        kills, runs = [], []
        while len(kills) < options.kills:  # in another run, should one have come to its end too early
            # A kill that came too late has a number too, so that the next one is drawn anew.
            numbers = range(len(kills) + len(runs), options.kills + len(runs))
            runs.append(folder / f"killed_{len(runs)}")
            for kill in killed(command, runs[-1], options, seconds, numbers):
                kills.append({"run": len(runs), **kill})
                bar.update()
    differences = [f"run {number}: {difference}" for number, output in enumerate(runs, start=1)
                   for difference in differing(reference, output)]
    return {"command": options.command, "epochs": options.epochs, "seed": options.seed, "opts": options.opts, "runs": len(runs),
            "seconds": seconds, "kills": kills, "differences": differences}


def make_data(root: Path, command: str) -> list[str]:
    """Tiny synthetic data → the words that name them."""
    with redirect_stdout(StringIO()):
        if command == "train_seps":
            make_synthetic_captions.main(["--root", str(root), "--images", "20", "--dev_images", "6", "--test_images", "8",
                                          "--captions", "2", "--size", "32"])
            return ["DATASETS.ROOT_DIR", str(root), "MODEL.TEXT_TOWER", str(root / "shapes" / "bert")]
        make_synthetic.main(["--root", str(root), "--identities", "6", "--test_identities", "4", "--images_per_camera", "2",
                             "--height", "32", "--width", "16", "--workers", "1"])
    return ["DATASETS.ROOT_DIR", str(root)]


def undisturbed(command: list[str], output: Path) -> float:
    """Train to the end → the seconds that it was at work."""
    process, log = start(command, output)
    wait_for_work(process, log)
    began = time.monotonic()
    if process.wait():
        raise told(log)
    return time.monotonic() - began


def killed(command: list[str], output: Path, options: argparse.Namespace, seconds: float, numbers: range) -> Iterator[dict]:
    """Kill and continue a run once for each of these numbers, then let it end → each kill."""
    for number in numbers:
        draw = random.Random(f"{options.seed} {number}")
        process, log = start(command, output)
        wait_for_work(process, log)
        began = time.monotonic()
        # In the mean all delays together are about the training, so that they are spread over it.
        time.sleep(draw.uniform(0, 2 * seconds / (options.kills + 1)))
        if number % AIMED_EVERY == AIMED_EVERY - 1:
            wait_for_saving(process, output)
        if process.poll() is not None:
            if process.returncode:
                raise told(log)
            return
        process.kill()
        process.wait()
        yield {"after": round(time.monotonic() - began, 3), "during": scene(output), "log": last_line(log)}
    process, log = start(command, output)
    if process.wait():
        raise told(log)


def start(command: list[str], output: Path) -> tuple[subprocess.Popen, Path]:
    """A training in a process of its own, and the file that receives what it says."""
    log = output.with_suffix(".log")
    with open(log, "w", encoding="utf-8") as file:
        return subprocess.Popen([*command, "OUTPUT_DIR", str(output)], cwd=ROOT, stdout=file, stderr=file), log


def wait_for_work(process: subprocess.Popen, log: Path) -> None:
    """Wait until the training begins, or has ended."""
    while process.poll() is None and f"\n{AT_WORK}" not in log.read_text(encoding="utf-8"):
        time.sleep(0.005)


def wait_for_saving(process: subprocess.Popen, output: Path) -> None:
    """Wait until last.pth is being written, or the training has ended."""
    while process.poll() is None and not (output / f"{LAST}.part").exists():
        time.sleep(0.0005)


def scene(output: Path) -> str:
    """What a killed run was doing, by what it left."""
    saving = [path.name.removesuffix(".part") for path in sorted(output.glob("*.part"))]
    if saving:
        return f"saving {', '.join(saving)}"
    if not (output / LAST).exists():
        return "between two names" if (output / PREVIOUS).exists() else "before the first save"
    return "training"


def last_line(log: Path) -> str:
    """Where a process said that it went on, or that it began."""
    lines = log.read_text(encoding="utf-8").splitlines()
    return next((line.split(", from ")[0] for line in lines if line.startswith("continuing after")), "from the beginning")


def told(log: Path) -> UserError:
    """The error that a training ended with."""
    lines = log.read_text(encoding="utf-8").strip().splitlines()
    return UserError(f"The training failed: {lines[-1] if lines else 'without a word'}")


def differing(reference: Path, output: Path) -> list[str]:
    """What differs between two finished runs, but for the time that they took."""
    found = [] if (reference / METRICS).read_bytes() == (output / METRICS).read_bytes() else [METRICS]
    for name in (LAST, BEST):
        one, other = (dict(leaves(torch.load(folder / name, weights_only=True))) for folder in (reference, output))
        found += [f"{name} {key}" for key in sorted(one.keys() | other.keys()) if key not in TIMINGS
                  and not (key in one and key in other and equal(one[key], other[key]))]
    return found


def leaves(content: object, name: str = "") -> Iterator[tuple[str, object]]:
    """The tensors, numbers and texts in nested mappings and sequences."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from leaves(value, f"{name}/{key}")
    elif isinstance(content, list | tuple):
        for place, value in enumerate(content):
            yield from leaves(value, f"{name}/{place}")
    else:
        yield name, content


def equal(one: object, other: object) -> bool:
    """Whether two tensors, numbers or texts are the same to the last bit."""
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def table(found: dict) -> str:
    """The kills and the comparison, to read."""
    rows = [f"{'kill':>4} {'run':>3} {'s at work':>9}  {'this process began':<44} killed while"]
    rows += [f"{number:>4} {kill['run']:>3} {kill['after']:>9.2f}  {kill['log']:<44} {kill['during']}"
             for number, kill in enumerate(found["kills"], start=1)]
    saving = sum(kill["during"].startswith(("saving", "between")) for kill in found["kills"])
    differences = found["differences"]
    result = (f"what they left DIFFERS from the undisturbed run: {', '.join(differences[:9])}" if differences else
              "metrics.json, last.pth (model, optimisers, random states) and best.pth are the undisturbed run's, bit for bit.")
    return "\n".join([*rows, f"{found['command']}, {found['epochs']} epochs, {len(found['kills'])} kills in {found['runs']} "
                             f"run{'s' if found['runs'] > 1 else ''}, {saving} of them while saving: {result}"])


if __name__ == "__main__":
    run(main)
