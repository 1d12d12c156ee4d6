"""Draw rank lists: python tools/draw_ranks.py --weight W --output ranks.png"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import torch
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS, with_values
from demo_sdtps.config.cli import add_output, config_parser, parse, positive_int, run
from demo_sdtps.config.printing import print_lines
from demo_sdtps.engine.checkpoint import weight_flag
from demo_sdtps.engine.evaluation.extraction import extract_features
from demo_sdtps.engine.evaluation.metrics import left_out
from demo_sdtps.engine.evaluation.protocol import TestData, exclude_key, make_test_data, query_distances
from demo_sdtps.engine.evaluation.reports import PATTERN_NAMES, distance_name, options
from demo_sdtps.engine.load import load_model_and_data
from demo_sdtps.tools.figures import HIT, MISS, QUERY, hide_ticks, images, label, np, plt, room, save, spread

BEST = 10


def main() -> None:
    parser = config_parser(f"Draw queries and their best {BEST} gallery triplets in all three modalities, with their "
                           "distances; hits have a green frame, misses a red one.", checkpoint=weight_flag())
    parser.add_argument("--return_pattern", type=int, choices=RETURN_PATTERNS,
                        help="features that are ranked: 1 original, 2 enhanced, 3 both (default: TEST.RETURN_PATTERN)")
    add_output(parser, "--output", ".png", default="ranks.png", help="default: ranks.png")
    parser.add_argument("--queries", type=positive_int, default=4, metavar="N",
                        help="queries, spread over the split (default: 4)")
    arguments, cfg = parse(parser)
    if arguments.return_pattern:
        cfg = with_values(cfg, {"TEST.RETURN_PATTERN": arguments.return_pattern})
    model, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    (features,) = extract_features(cfg, model, data.loader)
    print_lines(draw_ranks(cfg, features[cfg.TEST.RETURN_PATTERN], data, arguments.output, arguments.queries))


def draw_ranks(cfg: CfgNode, features: torch.Tensor, data: TestData, path: Path, queries: int = 4) -> Path:
    """A row per query: the query, then the nearest gallery samples that the protocol allows; features (samples, D)."""
    # Spread over the split, which is ordered by identity, for different people and cameras.
    numbers = torch.tensor(spread(len(data.query), queries))
    chosen = data.query[numbers]
    ids = [data.labels("identity", side) for side in (chosen, data.gallery)]
    keys = [data.labels(exclude_key(cfg), side) for side in (chosen, data.gallery)]
    distance = query_distances(cfg, features, data, numbers).masked_fill(left_out(*ids, *keys), torch.inf)
    order = distance.argsort(dim=1, stable=True)[:, :BEST]

    columns = 1 + order.shape[1]
    width, height = room(cfg, 1.8)
    size = (0.2 + width) * columns, (0.2 + len(MODALITIES) * height) * len(chosen)
    figure, axes = plt.subplots(len(chosen), columns, figsize=size, squeeze=False)
    for row, query in enumerate(chosen.tolist()):
        _cell(cfg, axes[row, 0], data, query, QUERY, "query")
        for column, index in enumerate(order[row].tolist(), start=1):
            if distance[row, index].isinf():  # the gallery is shorter than the list
                hide_ticks(axes[row, column])
                continue
            colour = HIT if ids[1][index] == ids[0][row] else MISS
            _cell(cfg, axes[row, column], data, int(data.gallery[index]), colour, f"{column}: d = {distance[row, index]:.3g}")
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
