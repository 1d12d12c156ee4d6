"""Draw the features as points: python tools/draw_embedding.py --weight W --method tsne --output embedding.png"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

from collections.abc import Sequence

from yacs.config import CfgNode

from demo_sdtps.config.cli import add_output, add_return_pattern, config_parser, parse, positive_int, print_lines, run
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.command import load_model_and_data, weight_flag
from demo_sdtps.evaluation.embedding import METHODS, check_method, embed
from demo_sdtps.evaluation.extraction import extract_features
from demo_sdtps.evaluation.protocol import normalise
from demo_sdtps.evaluation.tables import PATTERN_NAMES, options
from demo_sdtps.reports.figures import np, plt, save, spread

LABELS = ("identity", "camera")
TAB20 = plt.get_cmap("tab20").colors  # type: ignore[attr-defined]
COLOURS, MARKERS = (*TAB20[::2], *TAB20[1::2]), "osD^vP*X<>ph"  # dark colours first: neighbours in the map are much alike
MOST_IN_LEGEND, MOST_NAMED = 12, 60


def main() -> None:
    parser = config_parser("Draw the features of query and gallery as points of a plane, coloured by identity and by camera. "
                           "SOLVER.SEED seeds the methods.", checkpoint=weight_flag())
    parser.add_argument("--method", choices=METHODS, default="pca", help="default: pca; umap needs pip install '.[umap]'")
    add_return_pattern(parser, "features that are drawn")
    parser.add_argument("--points", type=positive_int, default=2000, metavar="N",
                        help="at most N samples, spread over query and gallery (default: 2000)")
    add_output(parser, "--output", ".png", default="embedding.png", help="default: embedding.png")
    arguments, cfg = parse(parser)
    model, splits = load_model_and_data(cfg)
    samples = list(dict.fromkeys([*splits["query"], *splits["gallery"]]))
    chosen = [samples[index] for index in spread(len(samples), arguments.points)]
    check_method(arguments.method, len(chosen))
    (features,) = extract_features(cfg, model, test_loader(cfg, chosen))
    points = embed(normalise(cfg, features[cfg.TEST.RETURN_PATTERN]).numpy(), arguments.method, cfg.SOLVER.SEED)
    print_lines(draw_embedding(cfg, points, chosen, arguments.method, arguments.output))


def draw_embedding(cfg: CfgNode, points: np.ndarray, samples: Sequence[Sample], method: str, path: Path) -> Path:
    """A panel of the points (n, 2) of the samples for each of LABELS, by which they are coloured."""
    figure, axes = plt.subplots(1, len(LABELS), figsize=(7.5 * len(LABELS), 6))
    for axis, label in zip(axes, LABELS, strict=True):
        values = np.array([getattr(sample, label) for sample in samples])
        distinct = np.unique(values)
        for place, value in enumerate(distinct):
            # More labels than colours: the marker changes too.
            marker = MARKERS[place // len(COLOURS) % len(MARKERS)]
            own = points[values == value]
            name = str(value + 1 if label == "camera" else value)  # as in file names
            axis.scatter(*own.T, s=14, color=COLOURS[place % len(COLOURS)], marker=marker, linewidths=0, alpha=0.8, label=name)
            if MOST_IN_LEGEND < len(distinct) <= MOST_NAMED:
                axis.annotate(name, np.median(own, axis=0), fontsize=7, ha="center", va="center")
        axis.set(title=f"by {label} ({len(distinct)})", xticks=[], yticks=[])
        if len(distinct) <= MOST_IN_LEGEND:
            axis.legend(fontsize=8, title=label)
    number, _, name = PATTERN_NAMES[cfg.TEST.RETURN_PATTERN].partition(" ")
    figure.suptitle(f"{METHODS[method]} of {len(samples)} samples of {cfg.DATASETS.NAMES}, return pattern {number} ({name})"
                    f"{options(cfg)}")
    figure.tight_layout()
    return save(figure, path)


if __name__ == "__main__":
    run(main)
