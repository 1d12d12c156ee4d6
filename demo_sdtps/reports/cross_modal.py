"""The matrices of sets of modalities: printed, as JSON and as heat maps."""

from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config.cli import print_lines
from demo_sdtps.evaluation.cross_modal import CrossModal
from demo_sdtps.evaluation.tables import PATTERN_NAMES, cross_modal_tables
from demo_sdtps.runtime.files import write_json


def report_cross_modal(
    cfg: CfgNode, result: CrossModal, caption: str, json: Path | None, image: Path | None
) -> None:
    """Print the matrices as tables, and write them to the files that are given."""
    if json:
        how = {"return_pattern": cfg.TEST.RETURN_PATTERN, "distance": cfg.TEST.CROSS_MODAL_DISTANCE}
        write_json(json, {"caption": caption, **how, "cross_modal": result})
    if image:
        how = f"{cfg.TEST.CROSS_MODAL_DISTANCE}, return pattern {PATTERN_NAMES[cfg.TEST.RETURN_PATTERN]}"
        draw_cross_modal(
            result, f"{caption}; unequal sets by TEST.CROSS_MODAL_DISTANCE {how}", image
        )
    print_lines(caption, *cross_modal_tables(cfg, result), *filter(None, (image,)))


def draw_cross_modal(result: CrossModal, caption: str, path: Path) -> None:
    """A heat map for each measure."""
    from demo_sdtps.reports.figures import draw_matrix, np, plt, save

    figure, axes = plt.subplots(1, len(result), figsize=(5.5 * len(result), 5.5))
    for axis, (measure, rows) in zip(axes, result.items(), strict=True):
        shares = np.array([list(row.values()) for row in rows.values()], float)
        draw_matrix(axis, shares, list(rows), "–")
        axis.set_title(f"{measure}, %")
        axis.set(xlabel="modalities of the gallery", ylabel="modalities of the query")
    figure.suptitle(caption, fontsize=9)
    save(figure, path)
