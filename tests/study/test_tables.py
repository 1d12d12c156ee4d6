"""Files of a study's table, and what its tables have of measurements."""

import csv
import random
from math import sqrt

import pytest
import torch

from demo_sdtps.evaluation.tables import Table, write_tables
from demo_sdtps.study.results import measurement
from studies import again
from studies.similarity import mean_cosine
from tests.reference import statistics as reference


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


def test_a_further_run_is_bold_where_older_ones_do_not_explain_it():
    """Within the reach of a further value of as many older ones."""
    draw = random.Random(5)
    names = again.AGAIN["vehicles"]
    older = again.older_variants("vehicles")
    maps = {
        name: [100 * run["patterns"]["3"]["mAP"] for run in older[name]["runs"].values()]
        for name in names
    }
    for sign in (-1, 1):
        for excess in (0.9, 1.1):
            variants, expected = [], {}
            for name, values in maps.items():
                low, high = reference.student(values)
                reach = excess * (high - low) / 2 * sqrt(len(values) + 1)
                value = (low + high) / 2 + sign * reach
                runs = {str(draw.randrange(9)): {"patterns": {"3": {"mAP": value / 100}}}}
                variants.append({"name": name, "runs": runs})
                expected[name] = f"**{value:.1f}**" if excess > 1 else f"{value:.1f}"
            lines = again.table({"vehicles": {"tree": 40 * "a", "variants": variants}}).splitlines()
            cells = [line.strip("| ").split(" | ") for line in lines[2:]]
            assert {name: reached for _, name, *_, reached, _ in cells} == expected
