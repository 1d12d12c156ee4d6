"""Whether a command starts or resumes a run (RESUME), from which checkpoint, and the states of its random generators."""

import logging
import os
import random
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import cast

import numpy as np
import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.load import DEMO_SCHEMA, StoredText, flatten
from demo_sdtps.config.schema import Schema
from demo_sdtps.evaluation.tables import read_run
from demo_sdtps.modeling.checkpoints.names import load_file
from demo_sdtps.training.output import CONFIG, FINISHED, LAST, PREVIOUS, Resumed, run_files

RESUMABLE_KEYS = {
    *("OUTPUT_DIR", "RESUME"),  # the run's folder
    "DATASETS.ROOT_DIR",  # the data's folder; `check_unchanged` compares what files are in it
    *("DATASETS.CACHE", "DATASETS.VERIFY"),
    *("DATALOADER.NUM_WORKERS", "DATALOADER.TIMEOUT"),  # how data are read
    *(
        "SOLVER.LOG_PERIOD",
        "SOLVER.CHECKPOINT_PERIOD",
        "SOLVER.CHECKPOINT_MINUTES",
    ),  # what is logged and saved
    *("MODEL.DEVICE_ID", "MODEL.DIST_TRAIN"),  # which of equal GPUs, and how many
    "SOLVER.MAX_EPOCHS",  # the learning rates follow it: the numbers are not those of a run that had it from the beginning
}
"""Keys that may differ when a run is resumed. But for the last, no number depends on them."""

READ_KEYS = {"TEST.WEIGHT", "MODEL.TEACHER"}
"""Keys that may differ where a checkpoint is resumed: it needs no start, and has the digest of the teacher."""
DIGEST, TEACHER = "files", "teacher"
"""Entry of last.pth: the `digest_lines` of the data, and the SHA-256 of MODEL.TEACHER, if there is one."""

logger = logging.getLogger(__name__)


def find_run(cfg: CfgNode, overwrite: bool, schema: Schema = DEMO_SCHEMA) -> Resumed | None:
    """The run in OUTPUT_DIR to resume, None to start one there."""
    output, refusal = Path(cfg.OUTPUT_DIR), ""
    files = run_files(output)
    inputs = {"TEST.WEIGHT": cfg.TEST.WEIGHT, "MODEL.TEACHER": cfg.MODEL.get("TEACHER")}
    replaced = [
        f"{key} {weights}"
        for key, weights in inputs.items()
        if weights and output.resolve() in (Path(weights).resolve(), Path(weights).resolve().parent)
    ]
    has_checkpoint = any((output / name) in files for name in (LAST, PREVIOUS))
    if replaced:
        refusal = f"has {replaced[0]} among the files that it replaces; give another OUTPUT_DIR"
    elif cfg.RESUME != "no" and overwrite:
        refusal = f"is replaced by --overwrite and continued by RESUME {cfg.RESUME}; leave one of them out"
    elif cfg.RESUME != "no" and has_checkpoint:
        resumed = read_last(output)
        return resumed._replace(epochs=check_config(cfg, resumed, schema))
    elif cfg.RESUME == "yes" and not files:
        refusal = f"holds no run to continue (no {LAST}); correct it, or set RESUME to auto or no to start one"
    elif files and cfg.RESUME == "auto" and _is_begun(cfg, output, schema):
        # Only the same run, killed before its first checkpoint, may be replaced: it gives the same numbers again.
        logger.warning("%s has no checkpoint yet: the run starts from the beginning.", output)
    elif files and not overwrite:
        instead = "to replace it, or RESUME yes to continue it"
        if not has_checkpoint:
            instead = f"without RESUME, to replace it; without {LAST} it cannot be continued"
        refusal = (
            f"already holds a run ({files[0].name}); choose another, or pass --overwrite {instead}"
        )
    if refusal:
        raise UserError(f"OUTPUT_DIR {output} {refusal}.")
    return None


def read_last(output: Path) -> Resumed:
    """The run at last.pth, or at the previous checkpoint where that is missing or damaged."""
    problems = []
    for path in (output / LAST, output / PREVIOUS):
        try:
            if "optimizers" in (state := cast(Mapping, load_file(path))):
                return Resumed(state, path)
        except (PermissionError, MemoryError):
            raise
        except Exception:  # a damaged file is read wrongly in many ways
            pass
        problem = f"{path} is missing, damaged, or without a run's state, as weights alone are"
        problems.append(problem)
        logger.warning("%s", problem)
    raise UserError(
        f"The run in OUTPUT_DIR {output} cannot be continued: {'; '.join(problems)}; start it again with "
        "--overwrite and without RESUME."
    )


def check_config(cfg: CfgNode, resumed: Resumed, schema: Schema) -> int:
    """SOLVER.MAX_EPOCHS of the run; refused where another key than RESUMABLE_KEYS differs from the run's."""
    stored = load_cfg(StoredText(resumed.path, resumed.state["config"]), (), schema)
    changes = {key: pair for key, pair in _changes(cfg, stored).items() if key not in READ_KEYS}
    if changes:
        key, (before, now) = next(iter(changes.items()))
        more = f" ({len(changes) - 1} more keys differ)" if len(changes) > 1 else ""
        raise UserError(
            f"{key} is {now}, but the run in {resumed.path} was started with {before}{more}; to continue it, "
            "give the values that it has (config.yml beside it), or choose another OUTPUT_DIR."
        )
    return stored.SOLVER.MAX_EPOCHS


def _is_begun(cfg: CfgNode, output: Path, schema: Schema) -> bool:
    """Whether the folder holds the start of the same run, which has not finished."""
    with suppress(UserError):  # not a run's configuration
        changes = _changes(cfg, load_cfg(output / CONFIG, (), schema))
        return not changes and read_run(output).get("status") != FINISHED
    return False


def _changes(cfg: CfgNode, stored: CfgNode) -> dict[str, tuple[str, str]]:
    """Keys that differ between a stored configuration and `cfg`, apart from RESUMABLE_KEYS: both values, as text."""
    before, now = flatten(stored), flatten(cfg)
    return {
        key: (repr(before[key]), repr(value))
        for key, value in sorted(now.items())
        if key not in RESUMABLE_KEYS and before[key] != value
    }


def describe_files(root: str, paths: Iterable[str]) -> list[str]:
    """A line for each file, its path below `root` and its size; contents of images are not read."""
    return [f"{os.path.relpath(path, root)} {os.path.getsize(path)}" for path in paths]


def digest_lines(parts: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """A digest of the lines of each part of the data, such as "query NI"."""

    def digest(lines: Iterable[str]) -> str:
        encoded = (line.encode(errors="surrogatepass") + b"\0" for line in lines)
        return blake2b(b"".join(encoded), digest_size=16).hexdigest()

    return {name: digest(lines) for name, lines in parts.items()}


def check_unchanged(resumed: Resumed, now: Mapping[str, str]) -> None:
    """Raise `UserError` where the data, or the teacher, have changed since."""
    another = "start another run in another OUTPUT_DIR"
    if DIGEST not in resumed.state:
        raise UserError(
            f"The run in {resumed.path} is of version 0.1.0, which did not record its data; finish it with that version, or "
            f"{another}."
        )
    before = resumed.state[DIGEST]
    changed = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    if changed == [TEACHER]:
        raise UserError(
            f"MODEL.TEACHER is another file than the run in {resumed.path} started with; put that back, or {another}."
        )
    if changed:
        raise UserError(
            f"The data are not those that the run in {resumed.path} started with: files of '{changed[0]}' were "
            f"added, removed, renamed or changed in size, or its texts edited; put back what it had, or {another}."
        )


def random_states() -> dict[str, object]:
    """The states of the random generators of Python, NumPy and torch, on all devices."""
    version, words, gauss = random.getstate()
    name, keys, *rest = cast(tuple, np.random.get_state())
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, keys.tolist(), *rest],
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_states(states: Mapping) -> None:
    """Set the random generators to the states that `random_states` gave."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(states["numpy"]))
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available():
        for device, state in zip(range(torch.cuda.device_count()), states["cuda"], strict=False):
            torch.cuda.set_rng_state(state, device)
