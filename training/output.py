"""The files of a run: their names, metrics.json, TensorBoard and Weights & Biases."""
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.evaluation.tables import METRICS
from demo_sdtps.runtime.distributed import is_main
from demo_sdtps.runtime.files import read_json, write_json
from demo_sdtps.training.tracking import wandb_run

LAST, PREVIOUS, BEST = "last.pth", "last.previous.pth", "best.pth"
CONFIG, RECORD, LOG = "config.yml", "run.json", "log.txt"
OWN = (METRICS, LAST, PREVIOUS, BEST, CONFIG, RECORD, LOG)
EVENTS = "events.out.tfevents.*"

Board = Callable[[Mapping[str, float], int], None]
"""Writes the scalars of an epoch by name."""


def own_files(output: Path) -> list[Path]:
    """What is in the folder under the names of a run's files."""
    return [path for path in (*(output / name for name in OWN), *sorted(output.glob(EVENTS))) if path.exists()]


def make_output(output: Path) -> None:
    """Make the folder and remove the files of an earlier run in it. Raises `UserError` where it cannot be written."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        # config.yml last: a start that is killed here leaves a folder in which RESUME auto starts the same run.
        for file in sorted(own_files(output), key=lambda file: file.name == CONFIG):
            file.unlink()
    except OSError as error:
        raise UserError(f"OUTPUT_DIR {output} cannot be written ({error.strerror}); choose another.") from None


@contextmanager
def scalar_boards(output: Path, cfg: CfgNode, first: int | None = None) -> Iterator[list[Board]]:
    """The boards of a run: TensorBoard's, and that of Weights & Biases with SOLVER.WANDB; none but in the main process.

    A run is resumed from epoch `first` on. Raises `UserError` where Weights & Biases cannot start.
    """
    with ExitStack() as stack:
        boards = [stack.enter_context(_tensorboard(output, first))] if is_main() else []
        if boards and cfg.SOLVER.WANDB:
            boards.append(stack.enter_context(wandb_run(cfg, output, read_json(output / RECORD).get("id"))))
        yield boards


@contextmanager
def _tensorboard(output: Path, first: int | None) -> Iterator[Board]:
    """Earlier points from epoch `first` on are hidden."""
    from torch.utils.tensorboard import SummaryWriter  # training alone needs it, and its import is slow

    with SummaryWriter(output, purge_step=first) as writer:
        def write(scalars: Mapping[str, float], epoch: int) -> None:
            for name, value in scalars.items():
                writer.add_scalar(name, value, epoch)
            writer.flush()  # before a checkpoint counts the epoch as done

        yield write


def write_records(records: list[dict], output: Path, boards: list[Board], scalars: Mapping[str, float]) -> None:
    """Write all records to metrics.json, and scalars of the last epoch to the boards. Raises `UserError`."""
    write_json(output / METRICS, records)
    for write in boards:
        write(scalars, records[-1]["epoch"])
