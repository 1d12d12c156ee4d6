"""The files of a run: their names, the check before a run, metrics.json and TensorBoard."""
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from demo_sdtps.config import UserError
from demo_sdtps.config.files import write_json

METRICS, LAST, PREVIOUS, BEST = "metrics.json", "last.pth", "last.previous.pth", "best.pth"
CONFIG, RECORD, LOG = "config.yml", "run.json", "log.txt"
DAMAGED = "last.damaged.pth"  # a damaged last.pth, where the run was resumed from the previous checkpoint
RESULTS = (METRICS, LAST, PREVIOUS, BEST)


def check_output(output: Path, overwrite: bool) -> None:
    """Raise `UserError` where the folder holds a run that `overwrite` does not allow to replace."""
    earlier = [name for name in RESULTS if (output / name).exists()]
    if earlier and not overwrite:
        raise UserError(f"OUTPUT_DIR {output} already holds a run ({earlier[0]}); choose another OUTPUT_DIR, pass --overwrite "
                        "to replace it, or RESUME yes to continue it.")


def make_output(output: Path) -> Path:
    """Make the folder and remove the files of an earlier run in it. Raises `UserError` where it cannot be written."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name in (*RESULTS, DAMAGED, CONFIG, RECORD, LOG, "events.out.tfevents.*"):
            for file in output.glob(name):
                file.unlink()
    except OSError as error:
        raise UserError(f"OUTPUT_DIR {output} cannot be written ({error.strerror}); choose another.") from None
    return output


@contextmanager
def scalar_board(output: Path, first: int | None = None) -> Iterator[SummaryWriter]:
    """TensorBoard's writer for a run; earlier points from epoch `first` on are hidden. Raises `UserError` where its file cannot
    be written."""
    with _writing(output):
        board = SummaryWriter(output, purge_step=first)
    try:
        yield board
    finally:
        with _writing(output):
            board.close()


def write_records(records: list[dict], output: Path, board: SummaryWriter, scalars: Mapping[str, float]) -> None:
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
