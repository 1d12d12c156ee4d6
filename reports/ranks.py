"""Rank lists: queries and their best gallery triplets."""
from collections.abc import Sequence
from pathlib import Path

import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.evaluation import analysis
from demo_sdtps.evaluation.protocol import TestData
from demo_sdtps.evaluation.tables import PATTERN_NAMES, distance_name, options
from demo_sdtps.reports.analysis import rank_lists, ranked
from demo_sdtps.reports.figures import HIT, MISS, QUERY, hide_ticks, images, label, np, plt, room, save, spread

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
    nearest = rank_lists(data, analysis.nearest_samples(*ranked(cfg, features, data), shown, BEST))
    columns = 1 + min(BEST, len(data.gallery))
    width, height = room(cfg, 1.8)
    size = (0.2 + width) * columns, (0.2 + len(cfg.MODEL.MODALITIES) * height) * len(chosen)
    figure, axes = plt.subplots(len(chosen), columns, figsize=size, squeeze=False)
    for row, query in enumerate(chosen.tolist()):
        _cell(cfg, axes[row, 0], data, query, QUERY, "query")
        for column, (index, distance, is_match) in enumerate(nearest[row], start=1):
            _cell(cfg, axes[row, column], data, index, HIT if is_match else MISS, f"{column}: d = {distance:.3g}")
        for axis in axes[row, 1 + len(nearest[row]):]:  # the gallery is shorter than the list
            hide_ticks(axis)
    figure.tight_layout(pad=0.4)
    number, _, features_used = PATTERN_NAMES[cfg.TEST.RETURN_PATTERN].partition(" ")
    figure.suptitle(f"queries (blue) and their best ten: hits green, misses red; {', '.join(cfg.MODEL.MODALITIES)} from top "
                    f"to bottom\nreturn pattern {number} ({features_used}); d: {distance_name(cfg)}{options(cfg)}",
                    y=1, va="bottom")
    return save(figure, path)


def _cell(cfg: CfgNode, axis: plt.Axes, data: TestData, index: int, colour: str, title: str) -> None:
    sample = data.samples[index]
    hide_ticks(axis)
    axis.imshow(np.concatenate(images(cfg, sample)))
    axis.set_title(f"{title}\n{label(cfg, sample)}", fontsize=7)
    axis.spines[:].set(visible=True, color=colour, linewidth=3)
