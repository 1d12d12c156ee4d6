"""Whether a command starts a run or goes on with one (RESUME), and from which checkpoint."""
import logging
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from yacs.config import CfgNode

from demo_sdtps.config import UserError, get_cfg
from demo_sdtps.config.load import DEMO_SCHEMA
from demo_sdtps.config.schema import Schema
from demo_sdtps.config.yaml_file import parse_yaml, read_yaml
from demo_sdtps.engine.run.output import CONFIG, LAST, PREVIOUS, check_output
from demo_sdtps.engine.run.state import STATE
from demo_sdtps.modeling.weights import LOAD_ERRORS

RESUMABLE_KEYS = (
    "OUTPUT_DIR", "RESUME",  # where the run is
    "DATASETS.ROOT_DIR",  # where the data are; that they are the same ones is looked at besides
    "DATASETS.CACHE", "DATASETS.VERIFY", "DATALOADER.NUM_WORKERS",  # how they are read
    "SOLVER.LOG_PERIOD", "SOLVER.CHECKPOINT_PERIOD", "SOLVER.CHECKPOINT_MINUTES",  # what is told and kept on the way
    "MODEL.DEVICE_ID", "MODEL.DIST_TRAIN",  # which of equal GPUs, and that there are several
)
"""Keys that no number of a run depends on: they may change when it goes on."""
LENGTH = "SOLVER.MAX_EPOCHS"
"""May change too, with a warning: a run is often to be longer than was thought, though it is then no longer the run that it
would have been, as learning rates follow the length."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resumed:
    """A run to go on with: what its checkpoint held, from which file, and what has to be said of that."""

    state: Mapping
    path: Path
    warnings: tuple[str, ...] = ()

    def is_finished(self, cfg: CfgNode) -> bool:
        """Whether nothing is left to do."""
        return self.state["epoch"] >= cfg.SOLVER.MAX_EPOCHS

    @property
    def all_done(self) -> str:
        """What is said of a finished run."""
        return f"The run in {self.path.parent} is finished ({self.place}); nothing is left to do."

    @property
    def place(self) -> str:
        """How far it is."""
        epoch, step = self.state["epoch"], self.state["step"]
        return f"epoch {epoch}" + (f" and {step} steps of epoch {epoch + 1}" if step else "")


def find_run(cfg: CfgNode, overwrite: bool, schema: Schema = DEMO_SCHEMA) -> Resumed | None:
    """The run in OUTPUT_DIR to go on with, None to start one there. Raises `UserError` where RESUME cannot be followed, or a
    run that is there would be lost."""
    output = Path(cfg.OUTPUT_DIR)
    if cfg.RESUME == "no":
        check_output(output, overwrite)
        return None
    if overwrite:
        raise UserError(f"--overwrite replaces the run that RESUME {cfg.RESUME} continues; leave one of them out.")
    if not any((output / name).exists() for name in (LAST, PREVIOUS)):
        if cfg.RESUME == "yes":
            raise UserError(f"RESUME is yes, but OUTPUT_DIR {output} holds no run to continue (no {LAST}); correct "
                            "OUTPUT_DIR, or set RESUME to auto or no to start one.")
        # The same run, killed before its first checkpoint: it gives the same again. Anything else is not to be lost.
        is_the_same = _is_the_same(cfg, output / CONFIG, schema)
        check_output(output, overwrite=is_the_same)
        if is_the_same:
            logger.warning("The run in %s has no checkpoint yet: it starts from the beginning.", output)
        return None
    found = read_last(output)
    told = check_config(cfg, found, schema)
    return Resumed(found.state, found.path, (*found.warnings, *told))


def read_last(output: Path) -> Resumed:
    """last.pth, or the one before where it is missing or damaged. Raises `UserError` where neither can be used."""
    problems = []
    for path in (output / LAST, output / PREVIOUS):
        try:
            state = _read(path)
        except UserError as error:
            problems.append(str(error))
            continue
        told = (f"{problems[0]}; the run goes on from the checkpoint before it, {path}",) if problems else ()
        return Resumed(state, path, told)
    raise UserError(f"The run in OUTPUT_DIR {output} cannot be continued: {'; '.join(problems)}; start it again with "
                    "--overwrite and without RESUME.")


def check_config(cfg: CfgNode, found: Resumed, schema: Schema = DEMO_SCHEMA) -> list[str]:
    """Warnings about a configuration that continues a run. Raises `UserError` where it is another run's.

    A key that the run does not have, because it is newer, counts as its default.
    """
    advice = "choose another OUTPUT_DIR, or start the run again with --overwrite and without RESUME"
    before = _defaults(schema) | _flat(parse_yaml(found.state["config"], f"The configuration in {found.path}", advice, advice))
    now = _flat(yaml.safe_load(cfg.dump()))
    different = [key for key in sorted({**before, **now}) if key not in RESUMABLE_KEYS and before.get(key) != now.get(key)]
    others = [key for key in different if key != LENGTH]
    if others:
        key = others[0]
        more = f" ({len(others) - 1} more keys differ)" if len(others) > 1 else ""
        raise UserError(f"{key} is {_value(now, key)}, but the run in {found.path} was begun with {_value(before, key)}{more}; "
                        "to continue it, give the values that it has (config.yml beside it), or choose another OUTPUT_DIR.")
    return [f"{key} is {now[key]} and was {before[key]}: the run goes on with the learning rates of the new length, so its "
            "numbers are not those of a run that had it from the beginning" for key in different]


def _read(path: Path) -> Mapping:
    """What a last.pth holds. Raises `UserError`, without a full stop, where it is not whole or not one of ours."""
    if not path.exists():
        raise UserError(f"{path} is missing")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch itself does not look at the checksums
        if damaged:
            raise UserError(f"{path} is damaged (the checksum of its part {damaged} is wrong)")
        with warnings.catch_warnings():  # of a TorchScript archive, before its error
            warnings.simplefilter("ignore")
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (*LOAD_ERRORS, zipfile.BadZipFile, OSError):
        raise UserError(f"{path} cannot be read as a checkpoint (it is another kind of file, damaged or cut short)") from None
    held = state if isinstance(state, Mapping) else {}
    missing = [name for name, kind in STATE.items() if not isinstance(held.get(name), kind)]
    if missing:
        raise UserError(f"{path} holds no state to continue from (no {missing[0]!r} in it, or another than training writes)")
    return state


def _is_the_same(cfg: CfgNode, path: Path, schema: Schema) -> bool:
    """Whether the configuration written by a run is `cfg`, but for RESUMABLE_KEYS and keys at their default."""
    try:
        before = _defaults(schema) | _flat(read_yaml(path, "configuration", "choose another OUTPUT_DIR"))
    except UserError:  # it is no run's
        return False
    now = _flat(yaml.safe_load(cfg.dump()))
    return all(before.get(key) == now.get(key) for key in {**before, **now} if key not in RESUMABLE_KEYS)


def _defaults(schema: Schema) -> dict[str, object]:
    return _flat(yaml.safe_load(get_cfg(schema).dump()))


def _flat(content: Mapping) -> dict[str, object]:
    return dict(_leaves(content, ""))


def _leaves(content: Mapping, prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _value(values: Mapping, key: str) -> str:
    return repr(values[key]) if key in values else "absent"
