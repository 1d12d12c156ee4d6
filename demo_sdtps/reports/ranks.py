"""Rank lists: queries and their best gallery triplets."""

from collections.abc import Sequence
from pathlib import Path

import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.evaluation import analysis
from demo_sdtps.evaluation.protocol import TestData
from demo_sdtps.evaluation.tables import PATTERN_NAMES, distance_name, options
from demo_sdtps.reports.analysis import labelled_distances
from demo_sdtps.reports.figures import image_grid, images, ink, label, np, save, spread
from demo_sdtps.reports.palette import MATCH, WRONG

BEST = 10


def failures(cfg: CfgNode, features: torch.Tensor, data: TestData) -> list[int]:
    """The queries whose nearest gallery sample is a miss, the latest first hit first; features (samples, D).

    A hit ranks after misses at its distance, as in the evaluation.
    """
    first = analysis.score_queries(*labelled_distances(cfg, features, data)).first_match
    failed = sorted((first > 1).nonzero()[0].tolist(), key=lambda number: -first[number])
    if not failed:
        raise UserError(
            "--failures finds none: each of the queries with a match has a hit at rank 1; leave the flag out."
        )
    return failed


def draw_ranks(
    cfg: CfgNode, features: torch.Tensor, data: TestData, path: Path, numbers: Sequence[int] = ()
) -> Path:
    """A row for each of the queries `numbers`, four of the split by default: the query, then the nearest gallery samples that
    the protocol allows; features (samples, D)."""
    shown = torch.tensor(numbers or spread(len(data.query), 4))
    distances, query, gallery = labelled_distances(cfg, features, data)
    nearest = analysis.nearest_samples(distances, query, gallery, shown, BEST)
    first_matches = analysis.score_queries(distances, query, gallery).first_match[shown.numpy()]
    cells = []  # of each row: (sample, title, colour of the frame)
    for sample, hits, first in zip(data.query[shown].tolist(), nearest, first_matches, strict=True):
        late = f"\nfirst hit at rank {first}" if first > len(hits) else ""
        cells.append([(sample, f"query{late}", ink())])
        for place, (index, distance, is_match) in enumerate(hits, start=1):
            mark, colour = ("✓", MATCH) if is_match else ("✗", WRONG)
            cells[-1].append(
                (int(data.gallery[index]), f"{place} {mark} d = {distance:.3g}", colour)
            )
    stacks = [
        [np.concatenate(images(cfg, data.samples[index])) for index, *_ in row] for row in cells
    ]
    figure, axes = image_grid(cfg, stacks, 1.8)
    for axes_of_row, row in zip(axes, cells, strict=True):
        for axis, (index, text, colour) in zip(axes_of_row, row, strict=False):
            axis.set_title(f"{text}\n{label(cfg, data.samples[index])}", fontsize=7)
            axis.spines[:].set(visible=True, color=colour, linewidth=3)
    number, _, features_used = PATTERN_NAMES[cfg.TEST.RETURN_PATTERN].partition(" ")
    names = cfg.MODEL.MODALITIES
    order = f"; {', '.join(names)} from top to bottom" if len(names) > 1 else ""
    figure.suptitle(
        f"queries and their best ten, ✓ match, ✗ another identity{order}\n"
        f"return pattern {number} ({features_used}); d: {distance_name(cfg)}{options(cfg)}"
    )
    return save(figure, path)
