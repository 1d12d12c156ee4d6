"""What a study found, as Markdown: means over seeds, paired differences, and their intervals.

A result is what tools/study.py writes as study.json; nothing else is needed here, so a table can be made again from it.
"""
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from demo_sdtps.config import MODALITIES
from demo_sdtps.engine.evaluation.extraction import CASES
from demo_sdtps.engine.evaluation.reports import PATTERN_NAMES

COMPLETE = next(iter(CASES))
CONFIDENCE, RESAMPLES = 0.95, 9999


@dataclass(frozen=True)
class Difference:
    """A paired difference over seeds: its mean, and two intervals of 95 %."""

    mean: float
    bootstrap: tuple[float, float]
    student: tuple[float, float]

    @property
    def is_beyond_noise(self) -> bool:
        """Whether neither interval holds 0. With few seeds the bootstrap's is too narrow: of three it is their range."""
        return all(low > 0 or high < 0 for low, high in (self.bootstrap, self.student))


def paired_difference(values: dict[str, float], first: dict[str, float]) -> Difference | None:
    """values - first by seed, over the seeds that both have; None where these are fewer than two.

    The bootstrap resamples seeds (percentiles of the mean, Efron 1979); Student's interval takes the differences for normal.
    """
    differences = np.array([values[seed] - first[seed] for seed in values if seed in first])
    if len(differences) < 2:
        return None
    mean = float(differences.mean())
    drawn = stats.bootstrap((differences,), np.mean, confidence_level=CONFIDENCE, n_resamples=RESAMPLES, method="percentile",
                            rng=np.random.default_rng(0)).confidence_interval
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1) * differences.std(ddof=1) / math.sqrt(len(differences))
    return Difference(mean, (float(drawn.low), float(drawn.high)), (mean - half, mean + half))


def final(variant: dict, pattern: int, metric: str) -> dict[str, float]:
    """A metric in percent after the last epoch of the runs that finished, by seed."""
    return {seed: 100 * records[-1]["patterns"][str(pattern)][metric]
            for seed, records in variant["records"].items() if records and seed not in variant["failed"]}


def of_case(variant: dict, case: str, pattern: int) -> dict[str, float]:
    """mAP in percent with modalities missing, by seed."""
    return {seed: 100 * cases[case][str(pattern)]["mAP"] for seed, cases in variant["missing"].items()}


def mean_of_six(variant: dict, pattern: int) -> dict[str, float]:
    """mAP in percent, mean of the cases in which something is missing, by seed."""
    return {seed: 100 * float(np.mean([found[str(pattern)]["mAP"] for case, found in cases.items() if case != COMPLETE]))
            for seed, cases in variant["missing"].items()}


def as_markdown(result: dict) -> str:
    """The whole of a study: a table per return pattern, what the variants cost, and what the runs were made with."""
    parts = [f"`{result['command']}`"]
    for pattern in result["patterns"]:
        parts.append(f"Return pattern {PATTERN_NAMES[pattern]}, percent, last epoch:\n\n" + _pattern_table(result, pattern))
    parts.append(LEGEND.format(first=result["variants"][0]["name"]))
    if any(variant["missing"] for variant in result["variants"]):
        parts += [f"mAP with modalities missing, return pattern {PATTERN_NAMES[pattern]}, percent:\n\n"
                  + _missing_table(result, pattern) for pattern in result["patterns"]]
    if any(variant["selection"] for variant in result["variants"]):
        # The same for all: they depend on the images and the patches alone.
        found = next(found for variant in result["variants"] for found in variant["selection"].values())
        parts.append("Where the kept patches lie, percent of them on the person:\n\n" + _selection_table(result))
        parts.append(SELECTION_LEGEND.format(base_rate=100 * found["cases"][COMPLETE][MODALITIES[0]]["base_rate"],
                                             random_order=100 * found["random_order"]))
    parts.append(_cost_table(result))
    if failures := [f"- {variant['name']}, seed {seed}: {error}"
                    for variant in result["variants"] for seed, error in variant["failed"].items()]:
        parts.append("Runs that failed, and are in no mean:\n\n" + "\n".join(failures))
    parts.append(_made_with(result))
    return "\n\n".join(parts) + "\n"


LEGEND = ("Mean ± standard deviation over the seeds; Δ is the paired difference to {first}, with its interval of 95 % from a "
          "bootstrap over seeds. Bold where 0 lies outside both this interval and Student's, else within noise; of twenty "
          "differences that are none, about one is bold by chance.")
SELECTION_LEGEND = ("Of all patches {base_rate:.1f} % are on the person. AP: average precision of the score, and of its parts "
                    "alone, as a detector of the person; a random order has {random_order:.1f} %. Last column: mean cosine of "
                    "the globals of two different images, which are the guides.")


def _pattern_table(result: dict, pattern: int) -> str:
    metrics = ("mAP", "Rank-1")
    rows = [["variant", "seeds", *(column for metric in metrics for column in (metric, f"Δ {metric}", "Student's 95 %"))]]
    for variant in result["variants"]:
        row = [variant["name"], _count(variant, result)]
        for metric in metrics:
            values, first = (final(one, pattern, metric) for one in (variant, result["variants"][0]))
            row += [_spread(values.values()), *_difference(values, first, variant is result["variants"][0])]
        rows.append(row)
    return _table(rows)


def _missing_table(result: dict, pattern: int) -> str:
    cases = next(iter(next(v["missing"] for v in result["variants"] if v["missing"]).values()))
    rows = [["variant", *(f"{case} missing" if case != COMPLETE else "complete" for case in cases), "mean of the six",
             "Δ of the mean", "Student's 95 %"]]
    first = result["variants"][0]
    for variant in result["variants"]:
        mean = mean_of_six(variant, pattern)
        rows.append([variant["name"], *(_spread(of_case(variant, case, pattern).values()) for case in cases),
                     _spread(mean.values()), *_difference(mean, mean_of_six(first, pattern), variant is first)])
    return _table(rows)


def _selection_table(result: dict) -> str:
    rows = [["variant", "modality", "kept", "kept, one other missing", "kept, both others missing", "AP score", "AP MLP",
             *(f"AP guide {modality}" for modality in MODALITIES), "cosine of two globals"]]
    for variant in (variant for variant in result["variants"] if variant["selection"]):
        measured = list(variant["selection"].values())
        for modality in MODALITIES:
            def column(name, missing=0, modality=modality, measured=measured):
                return _spread(100 * float(np.mean([case[modality][name] for case in found["cases"].values()
                                                    if modality in case and len(case) == len(MODALITIES) - missing]))
                               for found in measured if name in found["cases"][COMPLETE][modality])

            rows.append([variant["name"], modality, column("kept"), column("kept", 1), column("kept", 2),
                         *(column(name) for name in ("score", "MLP", *MODALITIES)),
                         _spread([found["mean_global_cosine"][modality] for found in measured], 3)])
    return _table(rows)


def _cost_table(result: dict) -> str:
    rows = [["variant", "parameters", "GMACs", "seconds per run"]]
    for variant in result["variants"]:
        seconds = [made["seconds"] for seed, made in variant["made_with"].items()
                   if "seconds" in made and seed not in variant["failed"]]
        # What a script of its own changes is not known here.
        costs = (f"{variant['parameters']:,}", f"{variant['gmacs']:.3f}") if "gmacs" in variant else ("–", "–")
        rows.append([variant["name"], *costs, _spread(seconds, 0)])
    return _table(rows)


def _made_with(result: dict) -> str:
    made = _records(result)
    machines = sorted({"{name} ({cpu}, threads: {threads})".format(**one["machine"]) for one in made})
    versions = {name: "/".join(sorted({one["versions"][name] for one in made if one["versions"].get(name)}))
                for name in (made[0]["versions"] if made else ())}
    parts = {"commit": " and ".join(commits_of(result)), "machine": " and ".join(machines),
             "versions": ", ".join(f"{name} {number}" for name, number in versions.items() if number)}
    return "Made with " + "; ".join(f"{what} {found}" for what, found in parts.items() if found) + "."


def commits_of(result: dict) -> list[str]:
    """The commits that the runs were made by."""
    return sorted({(one["commit"] or "unknown")[:10] + (" with changes" if one["changed"] else "") for one in _records(result)})


def _records(result: dict) -> list[dict]:
    return [made for variant in result["variants"] for made in variant["made_with"].values() if made]


def _count(variant: dict, result: dict) -> str:
    done = sum(seed not in variant["failed"] for seed, records in variant["records"].items() if records)
    return str(done) if done == len(result["seeds"]) else f"{done} of {len(result['seeds'])}"


def _spread(values: Sequence[float], digits: int = 1) -> str:
    values = np.array(list(values))
    if not len(values):
        return "–"
    return f"{values.mean():.{digits}f}" + (f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else "")


def _difference(values: dict[str, float], first: dict[str, float], is_first: bool) -> tuple[str, str]:
    found = None if is_first else paired_difference(values, first)
    if found is None:
        return "", ""
    mean = f"**{found.mean:+.1f}**" if found.is_beyond_noise else f"{found.mean:+.1f}"
    return f"{mean} {_interval(found.bootstrap)}", _interval(found.student)


def _interval(bounds: tuple[float, float]) -> str:
    return f"[{bounds[0]:+.1f}, {bounds[1]:+.1f}]"


def _table(rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
