"""The files of a run in OUTPUT_DIR: their names, TensorBoard and, with SOLVER.WANDB, Weights & Biases in OUTPUT_DIR/wandb."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.evaluation.tables import METRICS, RECORD, read_run
from demo_sdtps.runtime.distributed import is_main
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import atomic_write

LAST, PREVIOUS, BEST = "last.pth", "last.previous.pth", "best.pth"
CONFIG, LOG = "config.yml", "log.txt"
FINISHED = "finished"
"""Status of a run in run.json."""
RUN_FILES = (METRICS, LAST, PREVIOUS, BEST, RECORD, LOG, "events.out.tfevents.*", CONFIG)
"""Patterns of a run's files. config.yml is the last: a start that is killed while it removes them leaves a folder in which
RESUME auto starts the same run."""

WriteScalars = Callable[[Mapping[str, float], int], None]
"""Writes the scalars of an epoch, by name."""

logger = logging.getLogger(__name__)


def run_files(output: Path) -> list[Path]:
    """What is in the folder under the names of a run's files."""
    return [path for pattern in RUN_FILES for path in sorted(output.glob(pattern))]


def prepare_folder(cfg: CfgNode, last: Path | None) -> None:
    """Make OUTPUT_DIR, remove the files of an earlier run where none is resumed from the checkpoint `last`, and write
    config.yml."""
    output = Path(cfg.OUTPUT_DIR)
    try:
        output.mkdir(parents=True, exist_ok=True)
        for file in run_files(output) if last is None else ():
            file.unlink()
    except OSError as error:
        raise UserError(
            f"OUTPUT_DIR {output} cannot be written ({error.strerror}); choose another."
        ) from None
    if last == output / PREVIOUS:
        # The next save would otherwise keep the damaged one as the previous checkpoint, in place of the good one.
        (output / LAST).unlink(missing_ok=True)
    with atomic_write(output / CONFIG) as temporary:
        temporary.write_text(cfg.dump(), encoding="utf-8")


@contextmanager
def scalar_boards(cfg: CfgNode, first: int | None) -> Iterator[WriteScalars]:
    """Writes to TensorBoard and, with SOLVER.WANDB, to Weights & Biases. A run that is resumed from epoch `first` on hides its
    points from there."""
    # Training alone needs it, and its import is slow.
    from torch.utils.tensorboard import SummaryWriter

    before = threading.excepthook
    # a full disk is an error of its thread, which the next call raises again
    threading.excepthook = lambda told: isinstance(told.exc_value, OSError) or before(told)
    writer = SummaryWriter(cfg.OUTPUT_DIR, purge_step=first)
    try:
        with _wandb(cfg) as log:

            def write(scalars: Mapping[str, float], epoch: int) -> None:
                try:
                    for name, value in scalars.items():
                        writer.add_scalar(name, value, epoch)
                    writer.flush()  # before a checkpoint counts the epoch as done
                except OSError as error:
                    raise UserError(
                        f"TensorBoard's events in {cfg.OUTPUT_DIR} cannot be written ({error.strerror}); free some space."
                    ) from None
                log(scalars, epoch)

            yield write
    finally:
        with suppress(OSError):
            writer.close()
        threading.excepthook = before


def check_tracking(cfg: CfgNode) -> None:
    """Raise `UserError` where SOLVER.WANDB is set and wandb is not installed, or nobody is logged in."""
    if not cfg.SOLVER.WANDB:
        return
    check_extra("SOLVER.WANDB", "wandb", {"wandb": "wandb"})
    if is_main():
        import wandb

        with _starting():
            if wandb.setup().settings.mode == "online":
                wandb.login(verify=False)


@contextmanager
def _wandb(cfg: CfgNode) -> Iterator[WriteScalars]:
    """Nothing without SOLVER.WANDB. A resumed run goes on under its identifier."""
    if not cfg.SOLVER.WANDB:
        yield lambda scalars, epoch: None
        return
    import wandb

    output = Path(cfg.OUTPUT_DIR)
    with _starting():
        run = wandb.init(
            project=cfg.SOLVER.WANDB,
            name=output.name,
            dir=output,
            resume="allow",
            id=read_run(output).get("id"),
            config=yaml.safe_load(cfg.dump()),
            settings=wandb.Settings(console="off", disable_git=True, silent=True),
        )
    where = Path(run.dir).parent if run.offline else run.url or "disabled"
    logger.info("Weights & Biases: %s", where)
    with run:
        yield lambda scalars, epoch: run.log(dict(scalars), step=epoch)


@contextmanager
def _starting() -> Iterator[None]:
    """Context manager: errors of wandb are raised as `UserError`."""
    import wandb

    try:
        yield
    except (wandb.Error, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"SOLVER.WANDB is set, but Weights & Biases cannot start ({reason}); run 'wandb login', "
            "set WANDB_MODE=offline, or leave the key out."
        ) from None
