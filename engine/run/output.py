"""The folder of a run: its files' names, and what is done before and while they are written."""
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from demo_sdtps.config import UserError
from demo_sdtps.config.files import write_json
from demo_sdtps.engine.run.record import RECORD

METRICS, LAST, PREVIOUS, BEST, CONFIG = "metrics.json", "last.pth", "last.previous.pth", "best.pth", "config.yml"
DAMAGED = "last.damaged.pth"
"""What was last.pth, where the one before it was gone on from."""
RESULTS = (METRICS, LAST, PREVIOUS, BEST)


def check_output(output: Path, overwrite: bool) -> None:
    """Raise `UserError` where the folder holds a run that must not be lost."""
    earlier = [name for name in RESULTS if (output / name).exists()]
    if earlier and not overwrite:
        raise UserError(f"OUTPUT_DIR {output} already holds a run ({earlier[0]}); choose another OUTPUT_DIR, pass --overwrite "
                        "to replace it, or RESUME yes to continue it.")


def make_output(output: Path) -> Path:
    """The run's folder, without the files of an earlier run. Raises `UserError` where it cannot be made."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name in (*RESULTS, DAMAGED, CONFIG, RECORD, "log.txt", "events.out.tfevents.*"):
            for file in output.glob(name):
                file.unlink()
    except OSError as error:
        raise UserError(f"OUTPUT_DIR {output} cannot be written ({error.strerror}); choose another.") from None
    return output


@contextmanager
def scalar_board(output: Path, first: int | None = None) -> Iterator[SummaryWriter]:
    """TensorBoard's file of a run; points from the epoch `first` on that are there already are hidden.

    Raises `UserError` where it cannot be written.
    """
    with _told(output):
        board = SummaryWriter(output, purge_step=first)
    try:
        yield board
    finally:
        with _told(output):
            board.close()


def write_records(records: list[dict], output: Path, board: SummaryWriter, scalars: Mapping[str, float]) -> None:
    """All records to metrics.json (written whole), and numbers of the last one to TensorBoard. Raises `UserError`."""
    write_json(output / METRICS, records)
    with _told(output):
        for name, value in scalars.items():
            board.add_scalar(name, value, records[-1]["epoch"])
        board.flush()  # before a checkpoint counts the epoch as done


@contextmanager
def _told(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"TensorBoard's file in {output} cannot be written ({error.strerror or error}); free some space or "
                        "choose another OUTPUT_DIR.") from None
