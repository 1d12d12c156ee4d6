"""Files of a study's table, and what its tables have of measurements."""

import csv
from math import sqrt

import pytest
import torch

from demo_sdtps.evaluation.tables import Table, write_tables
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


@pytest.mark.parametrize("name", again.AGAIN)
def test_older_variants_run_again_with_another_seed_alone(name):
    study, older = again.study_again(name), again.older_variants(name)
    (seed,) = study["seeds"]
    assert [*study["variants"]] == [*again.AGAIN[name]]
    assert all(str(seed) not in older[variant]["runs"] for variant in again.AGAIN[name])
    assert str(seed - 1) in {number for one in again.AGAIN[name] for number in older[one]["runs"]}
    assert not any(one["seeds"] for one in study["variants"].values())
    assert not any(study[key] for key in ("times", "missing", "curve", "similarity"))


def test_a_further_difference_is_bold_where_older_ones_do_not_explain_it():
    """Within the reach of a further value of as many older ones."""
    names = again.AGAIN["modules"]
    older = {
        name: [100 * run["patterns"]["3"]["mAP"] for run in one["runs"].values()]
        for name, one in again.older_variants("modules").items()
    }
    for sign in (-1, 1):
        for excess in (0.9, 1.1):
            maps, expected = {names[0]: 50.0}, {}
            for name in names[1:]:
                pairs = zip(older[name], older[names[0]], strict=True)
                low, high = reference.student([value - first for value, first in pairs])
                reach = excess * (high - low) / 2 * sqrt(len(older[name]) + 1)
                difference = (low + high) / 2 + sign * reach
                maps[name] = 50.0 + difference
                expected[name] = f"**{difference:+.1f}**" if excess > 1 else f"{difference:+.1f}"
            variants = [
                {"name": name, "runs": {"9": {"patterns": {"3": {"mAP": value / 100}}}}}
                for name, value in maps.items()
            ]
            lines = again.table({"modules": {"tree": 40 * "a", "variants": variants}}).splitlines()
            cells = [line.strip("| ").split(" | ") for line in lines[2:]]
            assert {name: reached for _, name, *_, reached, _ in cells} == expected


def test_a_further_run_that_failed_is_told():
    failed = {"runs": {"9": {"failed": "The loss became nan"}}}
    variants = [{"name": name, **failed} for name in again.AGAIN["epochs"]]
    table = again.table({"epochs": {"tree": 40 * "a", "variants": variants}})
    assert table.count("| failed |") == 1
