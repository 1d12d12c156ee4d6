"""Files of a study's table, and what its tables have of measurements."""

import csv

import pytest
import torch

from demo_sdtps.evaluation.tables import Table, write_tables
from demo_sdtps.study.results import measurement
from studies.similarity import mean_cosine


def test_a_table_as_files(tmp_path):
    """CSV keeps every sign; LaTeX has none with a meaning of its own but those of its commands."""
    table = Table(
        ["a_b & c", "Δ"], [["50 % {x}", "**+1.0** [±2, 3]"], ['of "three", #1', r"~\^ – ×"]]
    )
    files = tmp_path / "x.csv", tmp_path / "x.tex"
    write_tables(table, *files)
    text = files[0].read_text(encoding="utf-8")
    assert [*csv.reader(text.splitlines())] == [table.headers, *table.rows]
    assert files[1].read_text(encoding="utf-8").splitlines() == [
        r"\begin{tabular}{lr}",
        r"a\_b \& c & $\Delta$ \\",
        r"\hline",
        r"50 \% \{x\} & \textbf{+1.0} [$\pm$2, 3] \\",
        r'of "three", \#1 & \textasciitilde{}\textbackslash{}\textasciicircum{} -- $\times$ \\',
        r"\end{tabular}",
    ]


@pytest.mark.parametrize("shape", [(2, 5, 4), (7, 3)])
def test_the_mean_cosine_of_two_rows(shape):
    rows = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    cosines = torch.cosine_similarity(rows.unsqueeze(-2), rows.unsqueeze(-3), dim=-1)
    expected = cosines[..., ~torch.eye(shape[-2], dtype=torch.bool)].mean(dim=-1)
    assert (mean_cosine(rows) - expected).abs().max() < 1e-6


def test_the_recall_is_that_of_the_last_stage():
    """Mean over the modalities of complete triplets; of SDTPS where nothing is slimmed, none without masks."""

    def case(*recalls):
        return {"nothing": {m: {"recall": value} for m, value in zip("RNT", recalls, strict=True)}}

    stages = {"stage 1": case(0.1, 0.2, 0.3), "stage 2": case(0.5, 0.6, 1.0) | {"r": {}}}
    content = {"cases": case(0.0, 0.1, 0.2)}
    assert measurement("selection", content | {"stages": stages})["recall"] == pytest.approx(0.7)
    assert measurement("selection", content | {"stages": {}})["recall"] == pytest.approx(0.1)
    assert measurement("selection", {"cases": {"nothing": {"R": {"kept": 0.5}}}}) == {}
