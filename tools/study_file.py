"""A study as its YAML file says it, checked; tools/study.py explains the file."""
import hashlib
from dataclasses import dataclass
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config import RETURN_PATTERNS, UserError, load_cfg, with_values
from demo_sdtps.config.yaml_file import read_yaml

ROOT = Path(__file__).resolve().parent.parent
TRAINING = ROOT / "train_net.py"
DEFAULTS = {"title": "", "config": "", "seeds": [1, 2, 3], "set": {}, "patterns": list(RETURN_PATTERNS), "missing": False,
            "selection": False, "variants": {}}
VARIANT_DEFAULTS = {"config": "", "set": {}, "evaluate": {}, "script": ""}
QUICK_VARIANTS, QUICK_SEEDS = 2, 2
QUICK = {"SOLVER.MAX_EPOCHS": 1, "SOLVER.WARMUP_ITERS": 0}


@dataclass(frozen=True)
class Variant:
    """One row: a configuration, the words that ask for it, and what its runs are measured with."""

    name: str
    cfg: CfgNode
    words: tuple[str, ...]
    script: Path
    evaluate: tuple[str, ...]
    folder: Path

    def run_folder(self, seed: int) -> Path:
        return self.folder / f"seed_{seed}"


def read_study(path: Path) -> dict:
    """A study file with its defaults. Raises `UserError` for a file that is no study."""
    study = read_yaml(path, "study", "give a YAML file such as studies/modules.yml")
    if not isinstance(study.get("variants"), dict) or not study["variants"]:
        raise UserError(f"The study {path} has no variants; see tools/study.py --help for an example.")
    if type(study.get("seeds")) is int:
        study["seeds"] = list(range(1, study["seeds"] + 1))
    study = DEFAULTS | {"title": path.stem} | study
    _check_keys(path, "it", study, DEFAULTS | {"seeds": study["seeds"]})  # a number or a list, looked at below
    study["variants"] = {str(name): {} if variant is None else variant for name, variant in study["variants"].items()}
    for name, variant in study["variants"].items():
        if not isinstance(variant, dict):
            raise UserError(f"The study {path}: the variant {name!r} is {variant!r}; write {{set: {{KEY: VALUE}}}} there.")
        _check_keys(path, f"the variant {name!r}", variant, VARIANT_DEFAULTS)
    for key, fits, meaning in (("seeds", lambda seed: 0 <= seed < 2**32, "a number above 0, or a list of distinct seeds"),
                               ("patterns", lambda pattern: pattern in RETURN_PATTERNS, "a list of 1, 2 and 3")):
        values = study[key]
        if (not isinstance(values, list) or not values or not all(type(value) is int and fits(value) for value in values)
                or len(set(values)) < len(values)):
            raise UserError(f"The study {path}: {key} is {values!r}, but it must be {meaning}.")
    return study


def _check_keys(path: Path, where: str, found: dict, known: dict) -> None:
    """Names and types of the keys."""
    for key, value in found.items():
        if key not in known:
            raise UserError(f"The study {path}: {where} has the unknown key {key!r}; the keys are {', '.join(known)}.")
        if type(value) is not type(known[key]):
            kind = {str: "a text", list: "a list", bool: "True or False", dict: "{KEY: VALUE}"}[type(known[key])]
            raise UserError(f"The study {path}: {key} of {where} is {value!r}, but it must be {kind}.")


def make_variants(study: dict, opts: list[str], runs: Path) -> list[Variant]:
    """The variants with their configurations, which are checked here, before anything runs. Raises `UserError`."""
    made = []
    for name, variant in study["variants"].items():
        variant = VARIANT_DEFAULTS | variant
        config = variant["config"] or study["config"]
        if not config:
            raise UserError(f"The variant {name!r} has no configuration; name one there or as `config` of the study.")
        script = ROOT / variant["script"] if variant["script"] else TRAINING
        if not script.is_file():
            raise UserError(f"The variant {name!r} is to be run by {script}, which does not exist; correct `script` there.")
        words, evaluate = [*words_of(study["set"] | variant["set"]), *opts], words_of(variant["evaluate"])
        cfg = load_cfg(config, words)
        load_cfg(config, [*words, *evaluate])
        # What decides a run's numbers, apart from its seed: variants and studies with the same share their runs.
        key = with_values(cfg, {"OUTPUT_DIR": "", "SOLVER.SEED": 0}).dump().encode()
        key += b"" if script == TRAINING else script.read_bytes()
        folder = runs / f"{Path(config).stem}-{hashlib.sha256(key).hexdigest()[:10]}"
        made.append(Variant(name, cfg, ("--config_file", config, *words), script, tuple(evaluate), folder))
    return made


def words_of(values: dict) -> list[str]:
    """KEY: VALUE pairs as the words of a command line."""
    return [str(part) for pair in values.items() for part in pair]
