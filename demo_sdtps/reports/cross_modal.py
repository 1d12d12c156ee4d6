"""The matrices of sets of modalities: printed, as JSON and as heat maps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.config.cli import print_lines
from demo_sdtps.evaluation.cross_modal import CrossModal
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
    """A heat map for each measure of a record of --json."""
    from demo_sdtps.reports.figures import draw_matrix, np, plt, save

    matrices = record["cross_modal"]
    figure, axes = plt.subplots(1, len(matrices), figsize=(5.5 * len(matrices), 5.5))
    for axis, (measure, rows) in zip(axes, matrices.items(), strict=True):
        shares = np.array([list(row.values()) for row in rows.values()], float)
        draw_matrix(axis, shares, list(rows), "–")
        axis.set_title(f"{measure}, %")
        axis.set(xlabel="modalities of the gallery", ylabel="modalities of the query")
    pattern = PATTERN_NAMES[record["return_pattern"]]
    about = f"unequal sets: {record['distance']}, return pattern {pattern}"
    figure.suptitle(f"{record['caption']}; {about}", fontsize=9)
    save(figure, path)
