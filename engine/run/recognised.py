"""Which files in OUTPUT_DIR a run wrote: no other is replaced.

A folder holds a run where its config.yml, run.json or a checkpoint is one that training writes, in this release or an earlier
one; that alone tells a folder of runs from a user's folder with files of these names. In a run, config.yml, run.json,
metrics.json and log.txt must each have the form that training gives them, and every file must be a regular one. Checkpoints
are not read again there, because a damaged one must be replaceable. The folder of Weights & Biases is a run's where it holds
nothing else (`is_tracking`).
"""
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml

from demo_sdtps.config import UserError
from demo_sdtps.config.files import check_regular, read_json
from demo_sdtps.config.load import read_yaml
from demo_sdtps.engine.checkpoint import stored_config
from demo_sdtps.engine.run.output import BEST, CONFIG, LAST, LOG, METRICS, PREVIOUS, RECORD, own_files
from demo_sdtps.engine.run.tracking import FOLDER

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ")  # see log_to in engine/runtime.py


def check_replaceable(output: Path, overwrite: bool, weights: str = "") -> None:
    """Raise `UserError` where the folder holds a file with the name of one of a run's, unless it is a run and `overwrite`
    allows to replace it; always where one of them is the file `weights`, from which the new run begins."""
    found = own_files(output)
    if any(os.path.exists(weights) and path.exists() and path.samefile(weights) for path in found):
        raise UserError(f"MODEL.PRETRAIN_PATH_T {weights} is a file of the run in OUTPUT_DIR {output}, which a new run there "
                        "would replace; choose another OUTPUT_DIR, or copy the weights elsewhere.")
    if found and not overwrite:
        raise UserError(f"OUTPUT_DIR {output} already holds a run ({found[0].name}); choose another OUTPUT_DIR, pass "
                        "--overwrite to replace it, or RESUME yes to continue it.")
    _check_own(output, found)
    if found and not any((output / name).exists() and is_written_here(output / name) for name, is_written_here in MARKS):
        raise _not_a_runs(found[0])


def check_resumable(output: Path) -> None:
    """Raise `UserError` where a file that a resumed run continues or replaces is not one of a run."""
    _check_own(output, [file for file in own_files(output) if not file.is_dir()])  # a folder counts as a damaged checkpoint


def _check_own(output: Path, files: Iterable[Path]) -> None:
    for file in files:
        if file.name != FOLDER:
            check_regular(file)
        if file.name in FORMS and not FORMS[file.name](file):
            raise _not_a_runs(file)


def _not_a_runs(file: Path) -> UserError:
    return UserError(f"OUTPUT_DIR {file.parent} holds {file.name}, which no training wrote, so it is not replaced; move it "
                     "elsewhere or choose another OUTPUT_DIR.")


def _is_config(file: Path) -> bool:
    """Whether the file is a configuration as it is dumped: all sections, sorted, without comments."""
    try:
        content = read_yaml(file, "", "")
        return ({"OUTPUT_DIR", "MODEL", "DATASETS", "SOLVER"} <= content.keys()
                and yaml.safe_dump(content).strip() == file.read_text(encoding="utf-8").strip())
    except UserError:
        return False


def _is_record(file: Path) -> bool:
    content = read_json(file)
    return isinstance(content, dict) and {"command", "seed", "versions"} <= content.keys()


def _is_metrics(file: Path) -> bool:
    content = read_json(file)
    return isinstance(content, list) and all(isinstance(record, dict) and "epoch" in record for record in content)


def _is_log(file: Path) -> bool:
    with open(file, encoding="utf-8", errors="replace") as lines:
        first = lines.readline(100)
    return not first or bool(LOG_LINE.match(first))


def _is_checkpoint(file: Path) -> bool:
    try:
        stored_config(file)
    except UserError:
        return False
    return True


FORMS: dict[str, Callable[[Path], bool]] = {CONFIG: _is_config, RECORD: _is_record, METRICS: _is_metrics, LOG: _is_log}
MARKS = ((CONFIG, _is_config), (RECORD, _is_record), (LAST, _is_checkpoint), (PREVIOUS, _is_checkpoint), (BEST, _is_checkpoint))
