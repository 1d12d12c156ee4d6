"""The flag of the commands that evaluate, without torch."""
from pathlib import Path

from demo_sdtps.config.cli import CheckpointFlag
from demo_sdtps.config.common import WEIGHT_EXAMPLE
from demo_sdtps.config.load import StoredText


def weight_flag(example: str = WEIGHT_EXAMPLE) -> CheckpointFlag:
    """The flag --weight; `example` is the checkpoint that errors suggest."""
    def stored(path: Path) -> StoredText:
        from demo_sdtps.modeling.checkpoint import stored_config

        return stored_config(path, example)

    return CheckpointFlag("weight", "W", "a checkpoint", "TEST.WEIGHT", stored)
