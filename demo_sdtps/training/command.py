"""The command of a training: start or resume the run of a configuration in OUTPUT_DIR."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import torch
from yacs.config import CfgNode

from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.load import DEMO_SCHEMA
from demo_sdtps.config.schema import Schema
from demo_sdtps.runtime.device import choose_device, log_to
from demo_sdtps.runtime.distributed import all_gather_object, check_equal, is_main
from demo_sdtps.runtime.files import LOCK, atomic_write, lock_file
from demo_sdtps.training.output import CONFIG, LAST, LOG, PREVIOUS, check_tracking, make_output
from demo_sdtps.training.record import mark_finished, restore_threads, track_run
from demo_sdtps.training.resume import Resumed, check_unchanged, find_run
from demo_sdtps.training.stop import Stopped
from demo_sdtps.training.trainer import Trainer

AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)
logger = logging.getLogger(__name__)


def train(
    cfg: CfgNode,
    overwrite: bool,
    make_trainer: Callable[[CfgNode, torch.device, Resumed | None], AnyTrainer],
    schema: Schema = DEMO_SCHEMA,
) -> AnyTrainer | None:
    """Start or resume the run of `cfg` in each of the processes → its trainer, None where nothing is left to do.

    Nothing is written or replaced before the input has been checked.
    """
    output = Path(cfg.OUTPUT_DIR)
    with lock_file(output / LOCK, f"OUTPUT_DIR {output}") if is_main() else nullcontext():
        device, resumed = choose_device(cfg), find_run(cfg, overwrite, schema)
        if resumed and resumed.state["epoch"] >= cfg.SOLVER.MAX_EPOCHS:
            if is_main():
                mark_finished(output)
                print_lines(
                    f"The run in {output} is finished ({resumed.progress}); nothing is left to do."
                )
            return None
        if resumed:
            restore_threads(output)
        check_tracking(cfg)
        trainer = make_trainer(cfg, device, resumed)
        check_equal(trainer.digest, "files of the data set")
        if resumed:
            check_unchanged(resumed, trainer.digest)
        with run_folder(output, cfg, device, resumed):
            trainer.run(output, resumed)
        return trainer


@contextmanager
def run_folder(
    output: Path, cfg: CfgNode, device: torch.device, resumed: Resumed | None
) -> Iterator[None]:
    """Configuration, log and record of the run in OUTPUT_DIR in the context.

    `Stopped` ends the context without an error, and after Ctrl-C as `KeyboardInterrupt`. Files of an earlier run are
    replaced, unless it is resumed. Only the main process writes.
    """
    all_gather_object(None)  # wait: another process may still read what is replaced
    if is_main():
        if not resumed:
            make_output(output)
        elif resumed.path.name == PREVIOUS:
            # The next save would otherwise keep the damaged one as the previous checkpoint, in place of the good one.
            (output / LAST).unlink(missing_ok=True)
        with atomic_write(output / CONFIG) as temporary:
            temporary.write_text(cfg.dump(), encoding="utf-8")
    tracked = track_run(output, cfg, device, resumed) if is_main() else nullcontext()
    with log_to(output / LOG) if is_main() else nullcontext():
        try:
            with tracked:
                if resumed:
                    logger.info("continuing after %s, from %s", resumed.progress, resumed.path)
                yield
                logger.info("the run is in %s", output)
        except Stopped as stopped:
            reason = stopped.args[0] or "a signal to another process"
            logger.info(
                f"stopped by {reason}, the run is saved in {output}; the same command with RESUME auto continues it"
            )
            if stopped.args[0] == "SIGINT":
                raise KeyboardInterrupt from None
