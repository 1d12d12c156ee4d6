"""Draw rank lists: python tools/draw_ranks.py --weight W --output ranks.png"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

from collections.abc import Sequence

import torch
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.cli import add_output, add_return_pattern, config_parser, parse, positive_int, print_lines, run
from demo_sdtps.evaluation import analysis
from demo_sdtps.evaluation.command import load_model_and_data, weight_flag
from demo_sdtps.evaluation.extraction import extract_features
from demo_sdtps.evaluation.protocol import TestData, make_test_data
from demo_sdtps.evaluation.tables import PATTERN_NAMES, distance_name, options
from demo_sdtps.reports.analysis import rank_lists, ranked
from demo_sdtps.reports.figures import HIT, MISS, QUERY, hide_ticks, images, label, np, plt, room, save, spread

BEST = 10


def main() -> None:
    parser = config_parser(f"Draw queries and their best {BEST} gallery triplets in all three modalities, with their "
                           "distances; hits have a green frame, misses a red one.", checkpoint=weight_flag())
    add_return_pattern(parser, "features that are ranked")
    add_output(parser, "--output", ".png", default="ranks.png", help="default: ranks.png")
    parser.add_argument("--queries", type=positive_int, default=4, metavar="N",
                        help="queries, spread over the split (default: 4)")
    parser.add_argument("--failures", action="store_true",
                        help="only queries without a hit at rank 1, those with the latest first hit first")
    arguments, cfg = parse(parser)
    model, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    (patterns,) = extract_features(cfg, model, data.loader)
    features = patterns[cfg.TEST.RETURN_PATTERN]
    # Spread over the split, which is ordered by identity, for different people and cameras.
    shown = (failures(cfg, features, data)[:arguments.queries] if arguments.failures
             else spread(len(data.query), arguments.queries))
    print_lines(draw_ranks(cfg, features, data, arguments.output, shown))


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
    size = (0.2 + width) * columns, (0.2 + len(MODALITIES) * height) * len(chosen)
    figure, axes = plt.subplots(len(chosen), columns, figsize=size, squeeze=False)
    for row, query in enumerate(chosen.tolist()):
        _cell(cfg, axes[row, 0], data, query, QUERY, "query")
        for column, (index, distance, is_match) in enumerate(nearest[row], start=1):
            _cell(cfg, axes[row, column], data, index, HIT if is_match else MISS, f"{column}: d = {distance:.3g}")
        for axis in axes[row, 1 + len(nearest[row]):]:  # the gallery is shorter than the list
            hide_ticks(axis)
    figure.tight_layout(pad=0.4)
    number, _, features_used = PATTERN_NAMES[cfg.TEST.RETURN_PATTERN].partition(" ")
    figure.suptitle("queries (blue) and their best ten: hits green, misses red; RGB, NI, TI from top to bottom\n"
                    f"return pattern {number} ({features_used}); d: {distance_name(cfg)}{options(cfg)}", y=1, va="bottom")
    return save(figure, path)


def _cell(cfg: CfgNode, axis: plt.Axes, data: TestData, index: int, colour: str, title: str) -> None:
    sample = data.samples[index]
    hide_ticks(axis)
    axis.imshow(np.concatenate(images(cfg, sample)))
    axis.set_title(f"{title}\n{label(cfg, sample)}", fontsize=7)
    axis.spines[:].set(visible=True, color=colour, linewidth=3)


if __name__ == "__main__":
    run(main)
