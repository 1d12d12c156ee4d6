"""OUTPUT_DIR during a run."""
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.files import atomic_write, check_apart
from demo_sdtps.config.lock import LOCK, locked
from demo_sdtps.engine.coordination import end_all
from demo_sdtps.engine.distributed import all_gather_object, broadcast_from_main, is_main
from demo_sdtps.engine.run.output import CONFIG, DAMAGED, LAST, LOG, PREVIOUS, make_output, remove_temporaries
from demo_sdtps.engine.run.record import read_record, track_run
from demo_sdtps.engine.run.resume import Resumed
from demo_sdtps.engine.run.stop import STOP, Stopped
from demo_sdtps.engine.runtime import log_to

REPLACE_RUN = "replace an earlier run in OUTPUT_DIR: its own files; any other file is left unchanged"  # of --overwrite
logger = logging.getLogger(__name__)


@contextmanager
def locked_output(cfg: CfgNode, inputs: Iterable[str | Path]) -> Iterator[None]:
    """Inside, no other run uses OUTPUT_DIR; the main process alone holds its lock.

    Ends all processes by `end_all` where another run does, where the folder cannot be written and where it lies in one of the
    `inputs`.
    """
    output = Path(cfg.OUTPUT_DIR)
    with ExitStack() as stack:
        def refusal() -> str:
            try:
                check_apart(f"OUTPUT_DIR {output}", output, inputs)
                stack.enter_context(locked(output / LOCK, f"OUTPUT_DIR {output}"))
            except UserError as error:
                return str(error)
            return ""

        end_all(broadcast_from_main(refusal))
        yield


@contextmanager
def run_folder(cfg: CfgNode, device: torch.device, resumed: Resumed | None) -> Iterator[Path]:
    """OUTPUT_DIR with configuration, log and record of the run in the context; `Stopped` ends the context without an error.

    Files of an earlier run are replaced, unless it is resumed. Only the main process writes. Raises `UserError`.
    """
    all_gather_object(None)  # wait: another process may still read what is replaced
    if not is_main():
        with suppress(Stopped), STOP.listening():
            yield Path(cfg.OUTPUT_DIR)
        return
    if resumed:
        read_record(Path(cfg.OUTPUT_DIR))  # one that is not as training writes it is refused before anything is replaced
    output = Path(cfg.OUTPUT_DIR) if resumed else make_output(Path(cfg.OUTPUT_DIR))
    if resumed and resumed.path.name == PREVIOUS and (output / LAST).exists():
        # The next save would otherwise keep it as the previous checkpoint, in place of the good one.
        os.replace(output / LAST, output / DAMAGED)
    remove_temporaries(output)
    with atomic_write(output / CONFIG) as temporary:
        temporary.write_text(cfg.dump(), encoding="utf-8")
    with log_to(output / LOG):
        try:
            with track_run(output, cfg, device, resumed):
                if resumed:
                    for warning in resumed.warnings:
                        logger.warning("%s", warning)
                    logger.info("continuing after %s, from %s", resumed.progress, resumed.path)
                yield output
                logger.info("the run is in %s", output)
        except Stopped:
            logger.info("stopped by %s, the run is saved in %s; the same command with RESUME auto continues it",
                        STOP.requested or "a signal to another process", output)
