"""The files of a run: their names, metrics.json and TensorBoard."""
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from demo_sdtps.config import UserError
from demo_sdtps.config.files import temporaries, write_json

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

METRICS, LAST, PREVIOUS, BEST = "metrics.json", "last.pth", "last.previous.pth", "best.pth"
CONFIG, RECORD, LOG = "config.yml", "run.json", "log.txt"
DAMAGED = "last.damaged.pth"  # a damaged last.pth, where the run was resumed from the previous checkpoint
OWN = (METRICS, LAST, PREVIOUS, BEST, CONFIG, RECORD, LOG, DAMAGED)
EVENTS = "events.out.tfevents.*"


def own_files(output: Path) -> list[Path]:
    """What is in the folder under the names of a run's files, also links to nothing."""
    return [path for path in (*(output / name for name in OWN), *sorted(output.glob(EVENTS))) if os.path.lexists(path)]


def make_output(output: Path) -> Path:
    """Make the folder and remove the files of an earlier run in it. Raises `UserError` where it cannot be written."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        # Those by which a run is recognised last: a start that is killed here leaves a folder that another start takes.
        for file in sorted(own_files(output), key=lambda file: file.name in (CONFIG, RECORD)):
            file.unlink()
    except OSError as error:
        raise UserError(f"OUTPUT_DIR {output} cannot be written ({error.strerror}); choose another.") from None
    return output


def remove_temporaries(output: Path) -> None:
    """Remove what a run that was killed while it wrote has left."""
    for file in temporaries(output, OWN):
        file.unlink()


@contextmanager
def scalar_board(output: Path, first: int | None = None) -> Iterator["SummaryWriter"]:
    """TensorBoard's writer for a run; earlier points from epoch `first` on are hidden. Raises `UserError` where its file cannot
    be written."""
    from torch.utils.tensorboard import SummaryWriter  # training alone needs it, and its import is slow

    with _writing(output):
        board = SummaryWriter(output, purge_step=first)
    try:
        yield board
    finally:
        with _writing(output):
            board.close()


def write_records(records: list[dict], output: Path, board: "SummaryWriter", scalars: Mapping[str, float]) -> None:
    """Write all records to metrics.json, and scalars of the last epoch to TensorBoard. Raises `UserError`."""
    write_json(output / METRICS, records)
    with _writing(output):
        for name, value in scalars.items():
            board.add_scalar(name, value, records[-1]["epoch"])
        board.flush()  # before a checkpoint counts the epoch as done


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"TensorBoard's file in {output} cannot be written ({error.strerror or error}); free some space or "
                        "choose another OUTPUT_DIR.") from None
