"""Whether a command starts or resumes a run (RESUME), and from which checkpoint."""
import logging
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from yacs.config import CfgNode

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.load import DEMO_SCHEMA, StoredText, flat
from demo_sdtps.config.schema import Schema
from demo_sdtps.modeling.weight_files import LOAD_ERRORS, load_torch
from demo_sdtps.training.output import CONFIG, LAST, PREVIOUS, own_files
from demo_sdtps.training.state import STATE

RESUMABLE_KEYS = (
    "OUTPUT_DIR", "RESUME",  # the run's folder
    "DATASETS.ROOT_DIR",  # the data's folder; training/digest.py compares what files are in it
    "DATASETS.CACHE", "DATASETS.VERIFY", "DATALOADER.NUM_WORKERS", "DATALOADER.TIMEOUT",  # how data are read
    "SOLVER.LOG_PERIOD", "SOLVER.WANDB", "SOLVER.CHECKPOINT_PERIOD", "SOLVER.CHECKPOINT_MINUTES",  # what is logged and saved
    "MODEL.DEVICE_ID", "MODEL.DIST_TRAIN",  # which of equal GPUs, and how many
    "SOLVER.MAX_EPOCHS",  # the learning rates follow it: the numbers are not those of a run that had it from the beginning
)
"""Keys that may differ when a run is resumed. But for the last, no number depends on them."""

logger = logging.getLogger(__name__)


class Resumed(NamedTuple):
    """A run to resume: the content of its checkpoint, and the file."""

    state: Mapping
    path: Path

    @property
    def progress(self) -> str:
        """The progress of the checkpoint."""
        epoch, step = self.state["epoch"], self.state["step"]
        return f"epoch {epoch}" + (f" and {step} steps of epoch {epoch + 1}" if step else "")


def find_run(cfg: CfgNode, overwrite: bool, schema: Schema = DEMO_SCHEMA) -> Resumed | None:
    """The run in OUTPUT_DIR to resume, None to start one there. Raises `UserError` where RESUME contradicts what is there, or a
    run would be lost."""
    output = Path(cfg.OUTPUT_DIR)
    if cfg.RESUME == "no":
        check_replaceable(output, overwrite)
        return None
    if overwrite:
        raise UserError(f"--overwrite replaces the run that RESUME {cfg.RESUME} continues; leave one of them out.")
    if not any((output / name).exists() for name in (LAST, PREVIOUS)):
        if cfg.RESUME == "yes":
            raise UserError(f"RESUME is yes, but OUTPUT_DIR {output} holds no run to continue (no {LAST}); correct "
                            "OUTPUT_DIR, or set RESUME to auto or no to start one.")
        # Only the same run, killed before its first checkpoint, may be replaced: it gives the same numbers again.
        is_same = _is_same(cfg, output / CONFIG, schema)
        check_replaceable(output, overwrite=is_same)
        if is_same:
            logger.warning("The run in %s has no checkpoint yet: it starts from the beginning.", output)
        return None
    found = read_last(output)
    check_config(cfg, found, schema)
    return found


def check_replaceable(output: Path, overwrite: bool) -> None:
    """Raise `UserError` where the folder holds a file with the name of one of a run's, unless `overwrite` allows to replace
    it."""
    found = own_files(output)
    if found and not overwrite:
        raise UserError(f"OUTPUT_DIR {output} already holds a run ({found[0].name}); choose another OUTPUT_DIR, pass "
                        "--overwrite to replace it, or RESUME yes to continue it.")


def read_last(output: Path) -> Resumed:
    """The run at last.pth, or at the previous checkpoint where that is missing or damaged. Raises `UserError` for neither."""
    problems = []
    for path in (output / LAST, output / PREVIOUS):
        try:
            return Resumed(_read(path), path)
        except UserError as error:
            problems.append(str(error))
            logger.warning("%s", error)
    raise UserError(f"The run in OUTPUT_DIR {output} cannot be continued: {'; '.join(problems)}; start it again with "
                    "--overwrite and without RESUME.")


def check_config(cfg: CfgNode, found: Resumed, schema: Schema = DEMO_SCHEMA) -> None:
    """Raise `UserError` where a configuration differs from that of the run in another key than RESUMABLE_KEYS, and warn of
    another length."""
    stored = load_cfg(StoredText(found.path, found.state["config"]), (), schema)
    changed = _changes(cfg, stored, schema)
    if changed:
        key, (before, now) = next(iter(changed.items()))
        more = f" ({len(changed) - 1} more keys differ)" if len(changed) > 1 else ""
        raise UserError(f"{key} is {now}, but the run in {found.path} was started with {before}{more}; to continue it, "
                        "give the values that it has (config.yml beside it), or choose another OUTPUT_DIR.")
    if cfg.SOLVER.MAX_EPOCHS != stored.SOLVER.MAX_EPOCHS:
        logger.warning("SOLVER.MAX_EPOCHS is %d and was %d: the learning rates follow the new length, so the numbers are not "
                       "those of an unbroken run.", cfg.SOLVER.MAX_EPOCHS, stored.SOLVER.MAX_EPOCHS)


def _read(path: Path) -> Mapping:
    """The content of a last.pth. Raises `UserError`, without a full stop, where it is damaged or not one of ours."""
    if not path.exists():
        raise UserError(f"{path} is missing")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch itself does not check the checksums
        if damaged:
            raise UserError(f"{path} is damaged (the checksum of its part {damaged} is wrong)")
        state = load_torch(path)
    except PermissionError:
        raise
    except (OSError, *LOAD_ERRORS):
        raise UserError(f"{path} cannot be read as a checkpoint (it is another kind of file, damaged or cut short)") from None
    held = state if isinstance(state, Mapping) else {}
    missing = [name for name in STATE if name not in held]
    if missing:
        raise UserError(f"{path} holds no state to continue from (no {missing[0]!r} in it)")
    return held


def _is_same(cfg: CfgNode, path: Path, schema: Schema) -> bool:
    try:
        return not _changes(cfg, load_cfg(path, (), schema), schema)
    except UserError:  # not a run's configuration
        return False


def _changes(cfg: CfgNode, stored: CfgNode, schema: Schema) -> dict[str, tuple[str, str]]:
    """Keys that differ between a stored configuration and `cfg`, apart from RESUMABLE_KEYS: both values, as text."""
    before, now = flat(stored, schema), flat(cfg, schema)
    return {key: (repr(before[key]), repr(value)) for key, value in sorted(now.items())
            if key not in RESUMABLE_KEYS and before[key] != value}
