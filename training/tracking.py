"""Weights & Biases beside TensorBoard (SOLVER.WANDB): what wandb writes lies in OUTPUT_DIR/wandb.

WANDB_MODE (online, offline, disabled), WANDB_ENTITY and the other variables of wandb count as usual.
"""
import logging
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.runtime.distributed import is_main
from demo_sdtps.runtime.extras import check_extra

RUN = re.compile(r"(offline-)?run-\d{8}_\d{6}-(?P<id>[0-9a-f]{16})")  # the identifiers of wandb itself have 8 characters

logger = logging.getLogger(__name__)


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
def wandb_run(cfg: CfgNode, output: Path, is_resumed: bool) -> Iterator[Callable[[Mapping[str, float], int], None]]:
    """A function (scalars, epoch) that sends an epoch's scalars; a resumed run goes on under its identifier.

    Raises `UserError` where wandb cannot start. Where it fails later, a warning says so and the training goes on.
    """
    import wandb

    known = run_ids(output) if is_resumed else []
    with _starting():
        run = wandb.init(project=cfg.SOLVER.WANDB, name=output.name, dir=output, resume="allow",
                         id=known[-1] if known else secrets.token_hex(8), config=yaml.safe_load(cfg.dump()),
                         settings=wandb.Settings(console="off", disable_git=True, silent=True))
    logger.info("Weights & Biases: %s", Path(run.dir).parent if run.offline else run.url or "disabled")
    is_alive = True

    def write(scalars: Mapping[str, float], epoch: int) -> None:
        nonlocal is_alive
        try:
            if is_alive:
                run.log(dict(scalars), step=epoch)
        except Exception as error:  # of any kind, as its service may end at any time
            is_alive = False
            logger.warning("Weights & Biases receives nothing more of this run (%s); TensorBoard and metrics.json go on", error)

    exit_code = 1
    try:
        yield write
        exit_code = 0
    finally:
        try:
            run.finish(exit_code=exit_code)
        except Exception as error:  # as above
            logger.warning("Weights & Biases did not finish the run (%s)", error)


def run_ids(output: Path) -> list[str]:
    """The identifiers of the folders of runs in OUTPUT_DIR/wandb, from the earliest to the latest."""
    found = [match for path in (output / "wandb").glob("*") if (match := RUN.fullmatch(path.name))]
    return [match["id"] for match in sorted(found, key=lambda match: match[0].removeprefix("offline-"))]


@contextmanager
def _starting() -> Iterator[None]:
    """Inside, errors of wandb are raised as `UserError`."""
    import wandb

    try:
        yield
    except (wandb.Error, ValueError, OSError) as error:
        raise UserError(f"SOLVER.WANDB is set, but Weights & Biases cannot start ({' '.join(str(error).split())}); run 'wandb "
                        "login', set WANDB_MODE=offline, or leave the key out.") from None
