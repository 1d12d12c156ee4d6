"""The command of a training: start or resume the run of a configuration."""
import argparse
from collections.abc import Callable

import torch
from yacs.config import CfgNode

from demo_sdtps.config.cli import add_overwrite, config_parser, print_lines
from demo_sdtps.config.load import DEMO_SCHEMA
from demo_sdtps.config.schema import Schema
from demo_sdtps.runtime.device import choose_device
from demo_sdtps.runtime.distributed import check_equal, is_main
from demo_sdtps.training.digest import check_unchanged
from demo_sdtps.training.folder import locked_output, run_folder
from demo_sdtps.training.record import mark_finished, restore_threads
from demo_sdtps.training.resume import Resumed, find_run
from demo_sdtps.training.tracking import check_tracking
from demo_sdtps.training.trainer import Trainer

FILES = ("OUTPUT_DIR receives config.yml, run.json (seed, commit, versions), metrics.json, log.txt, TensorBoard scalars, "
         "last.pth and best.pth. RESUME auto continues it.")


def training_parser(description: str, example: str, schema: Schema = DEMO_SCHEMA) -> argparse.ArgumentParser:
    """Parser of a training's command."""
    parser = config_parser(f"{description} {FILES}", f"example: {example}", schema)
    add_overwrite(parser, "replace an earlier run in OUTPUT_DIR: its own files; any other file is left unchanged")
    # Passed by old versions of torch.distributed.launch; the environment has it too.
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    return parser


def train(cfg: CfgNode, overwrite: bool, make_trainer: Callable[[CfgNode, torch.device, Resumed | None], Trainer],
          schema: Schema = DEMO_SCHEMA) -> None:
    """Start or resume the run of `cfg` in each of the processes.

    Nothing is written or replaced before the input has been checked. Raises `UserError`.
    """
    with locked_output(cfg):
        device, resumed = choose_device(cfg), find_run(cfg, overwrite, schema)
        if resumed and resumed.state["epoch"] >= cfg.SOLVER.MAX_EPOCHS:
            if is_main():
                mark_finished(resumed.path.parent)
                print_lines(f"The run in {resumed.path.parent} is finished ({resumed.progress}); nothing is left to do.")
            return
        if resumed:
            restore_threads(resumed.path.parent)
        check_tracking(cfg)
        trainer = make_trainer(cfg, device, resumed)
        check_equal(trainer.data, "files of the data set")
        if resumed:
            check_unchanged(resumed, trainer.data)
        with run_folder(cfg, device, resumed) as output:
            trainer.run(output, resumed)
