"""Draw rank lists: python tools/draw_ranks.py --weight W --output ranks.png"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

from collections.abc import Sequence

import torch
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS, UserError, with_values
from demo_sdtps.config.cli import add_output, config_parser, parse, positive_int, print_lines, run
from demo_sdtps.evaluation import analysis
from demo_sdtps.evaluation.command import load_model_and_data, weight_flag
from demo_sdtps.evaluation.extraction import extract_features
from demo_sdtps.evaluation.protocol import TestData, make_test_data
from demo_sdtps.evaluation.tables import PATTERN_NAMES, distance_name, options
from demo_sdtps.reports.analysis import rank_lists, ranked
from demo_sdtps.reports.figures import HIT, MISS, QUERY, hide_ticks, images, label, np, plt, room, save, spread
from demo_sdtps.runtime.errors import nearest as suggestion

BEST = 10


def main() -> None:
    parser = config_parser(f"Draw queries and their best {BEST} gallery triplets in all three modalities, with their "
                           "distances; hits have a green frame, misses a red one.", checkpoint=weight_flag())
    parser.add_argument("--return_pattern", type=int, choices=RETURN_PATTERNS,
                        help="features that are ranked: 1 original, 2 enhanced, 3 both (default: TEST.RETURN_PATTERN)")
    add_output(parser, "--output", ".png", default="ranks.png", help="default: ranks.png")
    parser.add_argument("--queries", type=positive_int, default=4, metavar="N",
                        help="queries, spread over those that the other flags leave (default: 4)")
    parser.add_argument("--identities", type=int, nargs="+", metavar="ID",
                        help="only queries of these identities; KEY VALUE pairs stand before this flag")
    parser.add_argument("--failures", action="store_true",
                        help="only queries without a hit at rank 1, those with the latest first hit first")
    arguments, cfg = parse(parser)
    if arguments.return_pattern:
        cfg = with_values(cfg, {"TEST.RETURN_PATTERN": arguments.return_pattern})
    model, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    numbers = of_identities(cfg, data, arguments.identities) if arguments.identities else list(range(len(data.query)))
    (patterns,) = extract_features(cfg, model, data.loader)
    features = patterns[cfg.TEST.RETURN_PATTERN]
    if arguments.failures:
        numbers = failures(cfg, features, data, numbers)[:arguments.queries]
    # Spread over the split, which is ordered by identity, for different people and cameras.
    shown = [numbers[index] for index in spread(len(numbers), arguments.queries)]
    print_lines(draw_ranks(cfg, features, data, arguments.output, shown))


def of_identities(cfg: CfgNode, data: TestData, identities: Sequence[int]) -> list[int]:
    """Numbers of the queries of these identities. Raises `UserError` for one without a query."""
    found = data.labels("identity", data.query)
    for identity in identities:
        if identity not in found:
            raise UserError(f"--identities has {identity}, but no query of {cfg.DATASETS.NAMES} at {cfg.DATASETS.ROOT_DIR} is "
                            f"of it (they are of {found.min()} to {found.max()}){suggestion(identity, set(found.tolist()))}.")
    return torch.isin(found, torch.tensor(identities)).nonzero().flatten().tolist()


def failures(cfg: CfgNode, features: torch.Tensor, data: TestData, numbers: Sequence[int]) -> list[int]:
    """Those of the queries `numbers` whose nearest gallery sample is a miss, the latest first hit first; features (samples, D).

    A hit ranks behind misses at its distance, as in the evaluation. Raises `UserError` where none is.
    """
    first = analysis.score_queries(*ranked(cfg, features, data)).first_match
    failed = sorted((number for number in numbers if first[number] > 1), key=lambda number: -first[number])
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
