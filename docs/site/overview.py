"""The README's figure, light and dark, from a trained model: python docs/site/overview.py --weight runs/demo/best.pth"""

from pathlib import Path

from demo_sdtps.commands.cli import add_overwrite, print_lines, run
from demo_sdtps.commands.flags import config_parser, parse

IMAGES = Path(__file__).resolve().parents[1] / "images"
COLOURS = {"overview.png": ("white", "#1f2328"), "overview_dark.png": ("#0d1117", "#e6edf3")}
"""Background and text."""
HITS = 4


def main() -> None:
    parser = config_parser(
        "Draw the project: the images of a triplet, the patches that token pruning keeps, the backbone, the feature, and the "
        "ranked gallery, into docs/images.",
    )
    add_overwrite(parser)
    parser.add_argument("--query", type=int, default=0, metavar="N", help="its number (default: 0)")
    arguments, cfg = parse(parser)
    from matplotlib.patches import FancyArrowPatch, Rectangle

    from demo_sdtps.evaluation.metrics import nearest_samples
    from demo_sdtps.evaluation.operations import count_macs
    from demo_sdtps.evaluation.protocol import (
        extract_features,
        load_model_and_data,
        make_test_data,
        ranked_distances,
    )
    from demo_sdtps.reports.figures import COLOURS as MEANINGS
    from demo_sdtps.reports.figures import (
        check_selection,
        cover_patches,
        images,
        kept_patches,
        np,
        plt,
        save,
    )
    from demo_sdtps.runtime.files import check_output_file

    files = {
        name: check_output_file(IMAGES / name, ".png", arguments.overwrite) for name in COLOURS
    }
    check_selection(cfg)
    model, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, **splits)
    (features,) = extract_features(cfg, model, data.loader, [frozenset()])
    shown = data.query[[arguments.query]]
    number, sample = int(shown[0]), data.samples[int(shown[0])]
    ranking = ranked_distances(cfg, features[3], data), *data.labels
    (hits,) = nearest_samples(*ranking, np.array([arguments.query]), HITS)
    image_of = images(cfg, sample)
    grids = list(kept_patches(cfg, model, [sample]).values())[-1]
    shown_images = zip(cfg.MODEL.MODALITIES, image_of, strict=True)
    kept = [cover_patches(image, grids[name][0]) for name, image in shown_images]
    macs = count_macs(cfg, model)[""]
    model.slimming = None
    share = macs / count_macs(cfg, model)[""]

    for name, (background, colour) in COLOURS.items():
        figure = plt.figure(figsize=(13, 4.1), facecolor=background, layout="none")
        canvas = figure.add_axes((0, 0, 1, 1))
        canvas.set(xlim=(0, 13), ylim=(0, 4.1))
        canvas.axis("off")

        def show(place, image, edge=None, figure=figure):
            left, bottom, width, height = place
            axis = figure.add_axes((left / 13, bottom / 4.1, width / 13, height / 4.1))
            axis.imshow(image, aspect="auto", cmap="viridis")
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set(visible=edge is not None, color=edge, linewidth=4)

        def write(x, y, text, size=12, canvas=canvas, colour=colour, **more):
            canvas.text(x, y, text, color=colour, fontsize=size, ha="center", va="center", **more)

        rows = zip(cfg.MODEL.MODALITIES, image_of, kept, strict=True)
        for row, (modality, image, covered_image) in enumerate(rows):
            bottom = 2.5 - 1.15 * row
            show((0.75, bottom, 0.55, 1.1), image)
            write(0.4, bottom + 0.55, modality)
            show((2.25, bottom, 0.55, 1.1), covered_image)
        box = Rectangle((3.75, 0.9), 1.9, 2.0, fill=False, edgecolor=colour, linewidth=2)
        canvas.add_patch(box)
        write(4.7, 2.2, "Vision\nTransformer", 14, weight="bold")
        write(4.7, 1.35, f"{share:.0%} of the\noperations", 12)
        feature = features[3][number].numpy()
        strips = feature[: feature.size // 16 * 16].reshape(-1, 16)
        show((6.6, 0.45, 0.5, 2.9), strips.clip(*np.quantile(feature, (0.02, 0.98))))
        for place, (index, _, is_match) in enumerate(hits):
            stack = np.concatenate(images(cfg, data.samples[data.gallery[index]]))
            show(
                (8.05 + 1.2 * place, 0.3, 0.85, 3.2),
                stack,
                MEANINGS["match" if is_match else "wrong"],
            )
            write(8.47 + 1.2 * place, 3.68, f"{place + 1} {'✓' if is_match else '✗'}")
        style = {"arrowstyle": "-|>", "mutation_scale": 18, "color": colour}
        for x in (1.4, 2.9, 5.75, 7.2):
            canvas.add_patch(FancyArrowPatch((x, 1.9), (x + 0.75, 1.9), **style))
        write(1.02, 3.88, "one person,\nthree images", 11)
        write(2.52, 3.88, "patches that\nmatter", 11)
        write(4.7, 3.88, "DeMo, slimmed in the backbone", 11)
        write(6.85, 3.88, "one feature", 11)
        write(10.3, 3.95, "the nearest of the gallery, other cameras", 11)
        save(figure, files[name])
    print_lines(*files.values())


if __name__ == "__main__":
    run(main)
