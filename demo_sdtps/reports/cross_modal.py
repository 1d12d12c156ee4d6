"""The matrices of sets of modalities: printed, as JSON and as heat maps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.config.cli import print_lines
from demo_sdtps.evaluation.protocol import CrossModal
from demo_sdtps.evaluation.tables import PATTERN_NAMES, cross_modal_tables
from demo_sdtps.runtime.files import write_json


def report_cross_modal(
    cfg: CfgNode, result: CrossModal, caption: str, json: Path | None, image: Path | None
) -> None:
    """Print the matrices as tables, and write them to the files that are given."""
    how = {"return_pattern": cfg.TEST.RETURN_PATTERN, "distance": cfg.TEST.CROSS_MODAL_DISTANCE}
    record = {"caption": caption, **how, "cross_modal": result}
    if json:
        write_json(json, record)
    if image:
        draw_cross_modal(record, image)
    print_lines(caption, *cross_modal_tables(cfg, result), *filter(None, (image,)))


def draw_cross_modal(record: Mapping[str, Any], path: Path) -> None:
    """A heat map of percentages for each measure of a record of --json: queries in rows, the gallery in columns."""
    from demo_sdtps.reports.figures import CENTRED, ink, np, plt, save
    from demo_sdtps.reports.palette import EMPTY, SHARES

    matrices = record["cross_modal"]
    figure, axes = plt.subplots(1, len(matrices), figsize=(5.5 * len(matrices), 5.5))
    for axis, (measure, rows) in zip(axes, matrices.items(), strict=True):
        shares = np.array([list(row.values()) for row in rows.values()], float)
        axis.imshow(shares, vmin=0, vmax=1, cmap=SHARES, aspect="auto")
        axis.set_facecolor(EMPTY)  # of NaN
        axis.grid(False)
        for (row, column), value in np.ndenumerate(shares):
            text = "–" if np.isnan(value) else f"{100 * value:.0f}"
            colour = ink() if np.isnan(value) else "white" if value > 0.6 else "black"
            axis.text(column, row, text, fontsize=8, color=colour, **CENTRED)
        axis.set_xticks(range(len(rows)), rows)
        axis.set_yticks(range(len(rows)), rows)
        axis.set_title(f"{measure}, %")
        axis.set(xlabel="modalities of the gallery", ylabel="modalities of the query")
    pattern = PATTERN_NAMES[record["return_pattern"]]
    about = f"unequal sets: {record['distance']}, return pattern {pattern}"
    figure.suptitle(f"{record['caption']}; {about}", fontsize=9)
    save(figure, path)
