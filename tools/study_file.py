"""A study as described by its YAML file, checked; tools/study.py documents the format."""
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.config import RETURN_PATTERNS, UserError, load_cfg, with_values
from demo_sdtps.config.load import read_yaml

DEFAULTS = {"title": "", "config": "", "seeds": [1, 2, 3], "set": {}, "patterns": list(RETURN_PATTERNS), "missing": False,
            "selection": False, "variants": {}}
VARIANT_DEFAULTS = {"config": "", "set": {}, "evaluate": {}}
TYPES = {str: "a text", list: "a list", bool: "True or False", dict: "{KEY: VALUE}"}


@dataclass(frozen=True)
class Variant:
    """One row of the tables: a configuration, its command-line arguments, and those of its further evaluations."""

    name: str
    cfg: CfgNode
    arguments: tuple[str, ...]
    evaluate: tuple[str, ...]
    folder: Path

    def run_folder(self, seed: int) -> Path:
        return self.folder / f"seed_{seed}"


def read_study(path: Path) -> dict[str, Any]:
    """A study file completed by the defaults. Raises `UserError` for an invalid file."""
    study = read_yaml(path, "study", "give a YAML file such as studies/modules.yml")
    if not isinstance(study.get("variants"), dict) or not study["variants"]:
        raise UserError(f"The study {path} has no variants; see tools/study.py --help for an example.")
    if type(study.get("seeds")) is int:
        study["seeds"] = list(range(1, study["seeds"] + 1))
    study = DEFAULTS | {"title": path.stem} | study
    _check_keys(path, "it", study, DEFAULTS | {"seeds": study["seeds"]})  # the check below covers the seeds
    study["variants"] = {str(name): {} if variant is None else variant for name, variant in study["variants"].items()}
    for name, variant in study["variants"].items():
        if not isinstance(variant, dict):
            raise UserError(f"The study {path}: the variant {name!r} is {variant!r}; write {{set: {{KEY: VALUE}}}} there.")
        _check_keys(path, f"the variant {name!r}", variant, VARIANT_DEFAULTS)
    for key, allowed, meaning in (("seeds", range(2**32), "a number above 0, or a list of distinct seeds"),
                                  ("patterns", RETURN_PATTERNS, "a list of 1, 2 and 3")):
        values = study[key]
        if (not isinstance(values, list) or not values or not all(type(value) is int and value in allowed for value in values)
                or len(set(values)) < len(values)):
            raise UserError(f"The study {path}: {key} is {values!r}, but it must be {meaning}.")
    return study


def _check_keys(path: Path, where: str, found: dict, known: dict) -> None:
    for key, value in found.items():
        if key not in known:
            raise UserError(f"The study {path}: {where} has the unknown key {key!r}; the keys are {', '.join(known)}.")
        if type(value) is not type(known[key]):
            raise UserError(f"The study {path}: {key} of {where} is {value!r}, but it must be {TYPES[type(known[key])]}.")


def make_variants(study: dict[str, Any], opts: list[str], runs: Path) -> list[Variant]:
    """The variants with their configurations, all checked before the first run. Raises `UserError`."""
    variants = []
    for name, variant in study["variants"].items():
        variant = VARIANT_DEFAULTS | variant
        config = variant["config"] or study["config"]
        if not config:
            raise UserError(f"The variant {name!r} has no configuration; name one there or as `config` of the study.")
        pairs, evaluate = [*cli_args(study["set"] | variant["set"]), *opts], cli_args(variant["evaluate"])
        cfg = load_cfg(config, pairs)
        load_cfg(config, [*pairs, *evaluate])
        # Everything that determines a run's numbers, except its seed: variants and studies that agree in it share runs, and
        # runs that were made before MODEL.SELECTOR was a key are found again.
        values = with_values(cfg, {"OUTPUT_DIR": "", "SOLVER.SEED": 0}).dump().replace("  SELECTOR: ''\n", "")
        key = hashlib.sha256(values.encode()).hexdigest()
        folder = runs / f"{Path(config).stem}-{key[:10]}"
        variants.append(Variant(name, cfg, ("--config_file", config, *pairs), tuple(evaluate), folder))
    return variants


def cli_args(values: dict[str, Any]) -> list[str]:
    return [str(part) for pair in values.items() for part in pair]
