"""A study file, and its variants: configurations, seeds and learning rates."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.config import RETURN_PATTERNS, UserError, load_cfg, with_values
from demo_sdtps.config.common import COMMAND
from demo_sdtps.config.load import read_yaml

ROOT = Path(__file__).resolve().parents[1]
RATE = "SOLVER.BASE_LR"
MEASUREMENTS = ("missing", "cross_modal", "curve", "similarity", "calibration")
"""What is measured of every run beside its last epoch."""
DEFAULTS = {
    "title": "",
    "config": "",
    "seeds": [1, 2, 3],
    "set": {},
    "return_patterns": list(RETURN_PATTERNS),
    **dict.fromkeys(MEASUREMENTS, False),
    "times": False,
    "grid": [],
    "tuned": False,
    "variants": {},
}
SOURCES = {"start": "TEST.WEIGHT", "teacher": "MODEL.TEACHER"}
"""Keys of a variant that name another: the key of the configuration that gets the last epoch of its run of the same seed."""
VARIANT_DEFAULTS = {
    "config": "",
    "set": {},
    "evaluate": {},
    "seeds": [],
    "rate_of": "",
    "against": "",
}
VARIANT_DEFAULTS |= dict.fromkeys(SOURCES, "")


@dataclass(frozen=True)
class Variant:
    """One row of the tables: a configuration, its command-line arguments, and the seeds of its runs."""

    name: str
    cfg: CfgNode  # of the evaluation
    arguments: tuple[str, ...]  # of the training, which the evaluation has too
    # what the evaluation has besides, such as slimming without training; (): that at the training's end counts
    evaluation: tuple[str, ...]
    folder: Path
    seeds: tuple[int, ...]
    # hash of what determines the numbers of a run beside its seed, the sources and the data
    configuration: str
    rate: float | None  # learning rate, where the study chooses it or takes a chosen one
    family: str  # in a study that chooses rates: what is tuned, of which this is one rate
    # by key of the configuration, the variant from whose run of the same seed this one's starts, or learns
    sources: Mapping[str, "Variant"] = field(default_factory=dict)
    against: str = ""  # the variant that it is compared with; '': the first

    def run_folder(self, seed: int) -> Path:
        return self.folder / f"seed_{seed}"

    @property
    def facts(self) -> dict[str, Any]:
        """What a result says of the variant."""
        weights = (word for key, one in self.sources.items() for word in (key, f"<{one.name}>"))
        facts = {
            "name": self.name,
            "family": self.family,
            "rate": self.rate,
            "configuration": self.configuration,
            "command": shlex.join([COMMAND, "train", *self.arguments, *weights]),
            "evaluation": shlex.join(self.evaluation),
            "against": self.against,
        }
        return {key: value for key, value in facts.items() if value}


Sources = Mapping[str, Variant]


def read_study(path: Path) -> dict[str, Any]:
    """A study file completed by the defaults."""
    content = read_yaml(path, "study", "give a YAML file such as studies/modules.yml")
    study = _check_section(path, "it", {"title": path.stem} | content, DEFAULTS)
    if not study["variants"] or not study["seeds"]:
        raise UserError(
            f"The study {path} has no variants, or no seeds; see python -m studies.run --help for an example."
        )
    study["variants"] = {
        str(name): _check_section(path, f"the variant {name!r}", variant or {}, VARIANT_DEFAULTS)
        for name, variant in study["variants"].items()
    }
    patterns = study["return_patterns"]
    if not patterns or not all(pattern in RETURN_PATTERNS for pattern in patterns):
        raise UserError(
            f"The study {path}: return_patterns is {patterns!r}, but it must be some of 1 (original), 2 (enhanced) "
            "and 3 (both)."
        )
    return study


def _check_section(path: Path, where: str, content: Any, default: dict[str, Any]) -> dict[str, Any]:
    """A section of a study completed by `default`, whose keys and types it has."""
    for key, value in content.items() if isinstance(content, dict) else [("", content)]:
        if key not in default:
            raise UserError(
                f"The study {path}: {where} has {key or value!r}, which is no key; the keys are {', '.join(default)}."
            )
        if type(value) is not type(default[key]):
            raise UserError(
                f"The study {path}: {key} of {where} is {value!r}, but it must be like {default[key]!r}."
            )
    return default | content


def make_variants(
    study: dict[str, Any],
    opts: Sequence[str],
    runs: Path,
    tree: str | None = None,
    rates: Mapping[str, float] = {},
) -> list[Variant]:
    """The variants with their configurations, all checked before the first run. `rates` are the chosen ones, by variant; a
    study with a grid has every variant once with each rate, and its first seed."""

    def make(
        name: str, settings: Mapping[str, Any], rate: float | None, sources: Sources
    ) -> Variant:
        if not (config := settings["config"] or study["config"]):
            raise UserError(
                f"The variant {name!r} has no configuration; name one there or as `config` of the study."
            )
        values = study["set"] | settings["set"] | ({} if rate is None else {RATE: rate})
        pairs, evaluation = [*_words(values), *opts], _words(settings["evaluate"])
        # what does not differ between the runs of a variant
        training = with_values(load_cfg(config, pairs), {"OUTPUT_DIR": "", "SOLVER.SEED": 0}).dump()
        training += "".join(f"{key} {one.configuration}" for key, one in sources.items())
        measured = [key for key in MEASUREMENTS if study[key]]
        is_grid = bool(study["grid"])
        return Variant(
            name=f"{name}, {rate:g}" if is_grid else name,
            cfg=load_cfg(config, [*pairs, *evaluation]),
            arguments=("--config_file", config, *pairs),
            evaluation=evaluation,
            # Variants and studies that agree in what they train, and in the sources, share runs, whatever they measure of them.
            folder=runs / f"{Path(config).stem}-{_hash(f'{training}{tree}')}",
            seeds=tuple(study["seeds"][:1] if is_grid else settings["seeds"] or study["seeds"]),
            configuration=_hash(f"{training}{measured}{' '.join(evaluation)}"),
            rate=rate,
            family=name if is_grid else "",
            sources=sources,
            against=settings["against"],
        )

    variants: list[Variant] = []
    for name, settings in study["variants"].items():
        chosen = _rate(name, settings, rates) if study["tuned"] else None
        if settings["against"] not in ("", *study["variants"]):
            raise UserError(
                f"The variant {name!r} is compared with {settings['against']!r}, which is no variant; correct the name."
            )
        plain = {one.name: one for one in variants if not one.sources}
        sources = {key: settings[role] for role, key in SOURCES.items() if settings[role]}
        for source in sources.values():
            if source not in plain:
                raise UserError(
                    f"The variant {name!r} starts or learns from {source!r}, which is no variant before it that does so from "
                    "none; correct the name or the order."
                )
        weights = {key: plain[source] for key, source in sources.items()}
        for rate in study["grid"] or [chosen]:
            variants.append(make(name, settings, rate, weights))
    for one, other in combinations(variants, 2):
        if one.configuration == other.configuration:
            raise UserError(
                f"The variants {one.name!r} and {other.name!r} have the same configuration; leave one out."
            )
    return variants


def _rate(name: str, settings: Mapping[str, Any], rates: Mapping[str, float]) -> float:
    source = settings["rate_of"] or name
    if source not in rates:
        raise UserError(
            f"The variant {name!r} needs the learning rate that a study with a grid chose for {source!r}, but none in "
            "docs/results did; run that study first, or name another variant as its rate_of."
        )
    return rates[source]


def _words(values: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(word) for pair in values.items() for word in pair)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]
