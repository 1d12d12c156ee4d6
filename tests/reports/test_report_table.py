"""demo-sdtps report of several runs: one table on the console and in files; figures of other kinds."""

import csv
import json
import re
import shutil
from statistics import mean, stdev

import pytest
from finished import make_run

from demo_sdtps.commands import evaluate
from demo_sdtps.commands import test as test_net
from demo_sdtps.evaluation.tables import MEASURES, latex_table

SLIM = ("MODEL.SLIM_SCORE", "saliency", "MODEL.SLIM_BLOCKS", "[1]", "MODEL.SLIM_KEEP", "[0.5]")


def test_several_runs_are_one_table(tiny_root, tmp_path, command):
    """Those that differ in their seed alone are a row, with mean and deviation; but not a copy of one."""
    dense = [make_run(tmp_path / f"{n}", tiny_root, "SOLVER.SEED", str(n)) for n in (4, 5)]
    slim = make_run(tmp_path / "slim", tiny_root, *SLIM)
    copy = shutil.copytree(dense[0], tmp_path / "copy")
    runs = (*dense, slim, copy)
    files = tmp_path / "x.csv", tmp_path / "x.tex"
    words = [word for run in runs for word in ("--run", run)]
    code, stdout, stderr = command(evaluate.report, *words, "--csv", files[0], "--latex", files[1])
    assert code == 0, stderr
    assert sorted(path.name for path in dense[0].iterdir()) == [
        "config.yml",
        "last.pth",
        "metrics.json",
    ]
    printed = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in stdout.splitlines()
        if line.startswith("| ")
    ]
    assert [*csv.reader(files[0].read_text(encoding="utf-8").splitlines())] == printed
    assert files[1].read_text(encoding="utf-8") == latex_table(printed[0], printed[1:]) + "\n"
    scores, costs = [], []
    for run in (*dense, slim):
        output = tmp_path / "scores.json"
        test = ("--weight", run / "last.pth", "--json", output, "--overwrite")
        assert command(test_net.main, *test)[0] == 0
        (cases,) = json.loads(output.read_text())["cases"].values()
        scores.append([100 * cases["3"][measure] for measure in MEASURES])
    for run in (dense[0], slim):
        _, flops, _ = command(evaluate.flops, "--weight", run / "last.pth")
        total = re.findall(r"^total .* ([\d.]+)$", flops, re.M)[0]
        share = re.findall(r"GMACs: (.+)$", flops, re.M) or ["100.0%"]
        costs.append([f"{float(total):.2f}", *share])
    both = [f"{mean(pair):.1f} ± {stdev(pair):.1f}" for pair in zip(*scores[:2], strict=True)]
    plain = [[f"{value:.1f}" for value in row] for row in scores]
    where = f"Synthetic in {tiny_root.name}, 32 queries"
    assert printed == [
        ["run", "seeds", *MEASURES, "GMACs", "of the dense model", "test split"],
        [f"{dense[0]} and 1 more", "4, 5", *both, *costs[0], where],
        [str(slim), "1111", *plain[2], *costs[1], where],
        [str(copy), "4", *plain[0], *costs[0], where],
    ]
    assert costs[0] != costs[1]


@pytest.mark.slow
@pytest.mark.soak
def test_figures_as_pdf(tiny_root, tmp_path, command):
    run = make_run(tmp_path / "run", tiny_root)
    code, stdout, stderr = command(evaluate.report, "--run", run, "--figures", ".pdf")
    assert code == 0, stderr
    assert not [*run.glob("*.png")] and "GMACs" not in stdout
    for name in ("curves", "ranks", "tokens"):
        assert (run / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    _, other, _ = command(evaluate.report, "--run", run, "TEST.FEAT_NORM", "no")
    assert (
        "mAP untrained" in stdout and "mAP untrained" not in other
    )  # which was with other options
    code, _, stderr = command(evaluate.report, "--run", run, "--figures", ".pdf")
    assert code == 2 and "curves.pdf" in stderr and "--overwrite" in stderr


def test_signs_in_a_table_for_latex():
    """None has a meaning of its own but those of its commands."""
    rows = [["50 % {x}", "**+1.0** [±2, 3]"], ['of "three", #1', r"~\^ – ×"]]
    assert latex_table(["a_b & c", "Δ"], rows).splitlines()[1:-1] == [
        r"a\_b \& c & $\Delta$ \\",
        r"\hline",
        r"50 \% \{x\} & \textbf{+1.0} [$\pm$2, 3] \\",
        r'of "three", \#1 & \textasciitilde{}\textbackslash{}\textasciicircum{} -- $\times$ \\',
    ]
