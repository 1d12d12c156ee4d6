"""A run as its commands begin and end it: in OUTPUT_DIR, with a log and a record, started or continued."""
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from yacs.config import CfgNode

from demo_sdtps.config.files import atomic_write
from demo_sdtps.engine.distributed import is_main, wait_for_all
from demo_sdtps.engine.run.output import CONFIG, DAMAGED, LAST, PREVIOUS, make_output
from demo_sdtps.engine.run.record import track_run
from demo_sdtps.engine.run.resume import Resumed
from demo_sdtps.engine.run.stop import Stopped
from demo_sdtps.engine.runtime import log_to

logger = logging.getLogger(__name__)


@contextmanager
def run_folder(cfg: CfgNode, device: torch.device, resumed: Resumed | None) -> Iterator[Path]:
    """OUTPUT_DIR while the run inside goes on, with its configuration, log and record; a run that was stopped ends it quietly.

    The files of an earlier run are replaced, unless it is this one that goes on. Of several processes the main one does all
    this. Raises `UserError`.
    """
    wait_for_all()  # nothing is replaced that another process still reads
    if not is_main():
        with suppress(Stopped):
            yield Path(cfg.OUTPUT_DIR)
        return
    output = Path(cfg.OUTPUT_DIR) if resumed else make_output(Path(cfg.OUTPUT_DIR))
    if resumed and resumed.path.name == PREVIOUS and (output / LAST).exists():
        # Out of the way: the next save would keep it in place of the good one.
        os.replace(output / LAST, output / DAMAGED)
    with atomic_write(output / CONFIG) as temporary:
        temporary.write_text(cfg.dump(), encoding="utf-8")
    with log_to(output):
        try:
            with track_run(output, cfg, device, resumed):
                if resumed:
                    for warning in resumed.warnings:
                        logger.warning("%s", warning)
                    logger.info("continuing after %s, from %s", resumed.place, resumed.path)
                yield output
                logger.info("the run is in %s", output)
        except Stopped:
            logger.info("stopped by SIGTERM, the run is saved in %s; the same command with RESUME auto continues it", output)
