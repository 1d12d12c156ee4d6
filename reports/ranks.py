"""Rank lists: queries and their best gallery triplets."""
from collections.abc import Sequence
from pathlib import Path

import torch
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.evaluation import analysis
from demo_sdtps.evaluation.protocol import TestData
from demo_sdtps.evaluation.tables import PATTERN_NAMES, distance_name, options
from demo_sdtps.reports.analysis import rank_lists, ranked
from demo_sdtps.reports.figures import hide_ticks, images, label, np, plt, room, save, spread
from demo_sdtps.reports.palette import MATCH, TEXT, WRONG

BEST = 10


def failures(cfg: CfgNode, features: torch.Tensor, data: TestData) -> list[int]:
    """The queries whose nearest gallery sample is a miss, the latest first hit first; features (samples, D).

    A hit ranks behind misses at its distance, as in the evaluation. Raises `UserError` where there is none.
    """
    first = analysis.score_queries(*ranked(cfg, features, data)).first_match
    failed = sorted((first > 1).nonzero()[0].tolist(), key=lambda number: -first[number])
    if not failed:
        raise UserError("--failures finds none: each of the queries with a match has a hit at rank 1; leave the flag out.")
    return failed


def draw_ranks(cfg: CfgNode, features: torch.Tensor, data: TestData, path: Path, numbers: Sequence[int] = ()) -> Path:
    """A row for each of the queries `numbers`, four of the split by default: the query, then the nearest gallery samples that
    the protocol allows; features (samples, D)."""
    shown = torch.tensor(numbers or spread(len(data.query), 4))
    chosen = data.query[shown]
    distances, query, gallery = ranked(cfg, features, data)
    nearest = rank_lists(data, analysis.nearest_samples(distances, query, gallery, shown, BEST))
    first = analysis.score_queries(lambda part: distances(shown[part]), analysis.Labels(*(own[shown] for own in query)),
                                   gallery).first_match.tolist()
    columns = 1 + min(BEST, len(data.gallery))
    width, height = room(cfg, 1.8)
    size = (0.2 + width) * columns, (0.2 + len(MODALITIES) * height) * len(chosen)
    figure, axes = plt.subplots(len(chosen), columns, figsize=size, squeeze=False, layout="constrained")
    for row, query in enumerate(chosen.tolist()):
        late = first_hit(first[row]) if len(nearest[row]) < first[row] or not first[row] else ""
        draw_sample(cfg, axes[row, 0], data, query, f"query\n{late}".strip())
        for axis, (place, found) in zip(axes[row, 1:], enumerate(nearest[row], start=1), strict=False):
            draw_near(cfg, axis, data, place, found)
        for axis in axes[row, 1 + len(nearest[row]):]:  # the gallery is shorter than the list
            hide_ticks(axis)
    number, _, features_used = PATTERN_NAMES[cfg.TEST.RETURN_PATTERN].partition(" ")
    figure.suptitle(f"queries and their best ten, ✓ match, ✗ another identity; {', '.join(MODALITIES)} from top to bottom\n"
                    f"return pattern {number} ({features_used}); d: {distance_name(cfg)}{options(cfg)}")
    return save(figure, path)


def first_hit(rank: int) -> str:
    """The rank of the first match in words; 0: there is none."""
    return f"first hit at rank {rank}" if rank else "no match in the gallery"


def draw_near(cfg: CfgNode, axis: plt.Axes, data: TestData, place: int, found: tuple[int, float, bool]) -> None:
    """`draw_sample` of rank `place`: `found` is (sample, distance, whether it is a match)."""
    index, distance, is_match = found
    colour, mark = (MATCH, "✓") if is_match else (WRONG, "✗")
    draw_sample(cfg, axis, data, index, f"{place} {mark} d = {distance:.3g}", colour)


def draw_sample(cfg: CfgNode, axis: plt.Axes, data: TestData, index: int, title: str, colour: str = TEXT) -> None:
    """The images of a sample, from top to bottom, in a frame."""
    sample = data.samples[index]
    hide_ticks(axis)
    axis.imshow(np.concatenate(images(cfg, sample)))
    axis.set_title(f"{title}\n{label(cfg, sample)}", fontsize=7)
    axis.spines[:].set(visible=True, color=colour, linewidth=3)
