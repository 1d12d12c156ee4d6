"""Weights & Biases beside TensorBoard (SOLVER.WANDB): what wandb writes lies in OUTPUT_DIR/wandb.

WANDB_MODE (online, offline, disabled), WANDB_ENTITY and the other variables of wandb count as usual.
"""
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.runtime.distributed import is_main
from demo_sdtps.runtime.extras import check_extra

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
def wandb_run(cfg: CfgNode, output: Path, identifier: str | None) -> Iterator[Callable[[Mapping[str, float], int], None]]:
    """A function (scalars, epoch) that sends an epoch's scalars; a resumed run goes on under its identifier.

    Raises `UserError` where wandb cannot start.
    """
    import wandb

    with _starting():
        run = wandb.init(project=cfg.SOLVER.WANDB, name=output.name, dir=output, resume="allow", id=identifier,
                         config=yaml.safe_load(cfg.dump()),
                         settings=wandb.Settings(console="off", disable_git=True, silent=True))
    logger.info("Weights & Biases: %s", Path(run.dir).parent if run.offline else run.url or "disabled")
    exit_code = 1
    try:
        yield lambda scalars, epoch: run.log(dict(scalars), step=epoch)
        exit_code = 0
    finally:
        run.finish(exit_code=exit_code)


@contextmanager
def _starting() -> Iterator[None]:
    """Inside, errors of wandb are raised as `UserError`."""
    import wandb

    try:
        yield
    except (wandb.Error, ValueError, OSError) as error:
        raise UserError(f"SOLVER.WANDB is set, but Weights & Biases cannot start ({' '.join(str(error).split())}); run 'wandb "
                        "login', set WANDB_MODE=offline, or leave the key out.") from None
