"""The number of threads and how they wait: by affinity, quota and load, never over the user's own setting."""
import json
import os
import subprocess
import sys

import pytest
import torch
from commands import SMALL, cli_args_for
from scipy import stats

from demo_sdtps import train_net
from demo_sdtps.runtime import threads
from demo_sdtps.tools import demo_figures

PRINTED = "import os; print(os.environ.get('OMP_WAIT_POLICY'))"


@pytest.mark.parametrize(("files", "cores"), [
    ({"cpu.max": "150000 100000"}, 1.5), ({"cpu.max": "max 100000"}, 1e6), ({"cpu.max": "1000 100000"}, 1.0), ({}, 1e6),
    ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
    ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 1e6),
], ids=str)
def test_the_quota_of_a_container(tmp_path, files, cores):
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    assert threads.cpu_quota(tmp_path) == cores


def test_processes_of_torchrun_share_the_cores(monkeypatch):
    alone = threads.cpu_cores()
    assert 1 <= alone <= os.cpu_count()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(2 * alone))
    assert threads.cpu_cores() == 1


def environment(**own):
    """This process's environment without a setting of threads, and with `own`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))} | own


def decided(statement, **own):
    return subprocess.run([sys.executable, "-c", f"{statement}\n{PRINTED}"], env=environment(**own), capture_output=True,
                          text=True, check=True).stdout.strip()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the load is read from /proc")
def test_threads_wait_passively_beside_busy_processes_unless_the_user_says_otherwise():
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        assert decided("import demo_sdtps.script") == "PASSIVE"
        assert decided("import demo_sdtps.script", OMP_WAIT_POLICY="ACTIVE") == "ACTIVE"
        assert decided("import demo_sdtps.script", GOMP_SPINCOUNT="9") == "None"
        # A host decides for itself.
        assert decided("import demo_sdtps; demo_sdtps.MultiModalSDTPS") == "None"
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_the_number_of_a_quota_is_not_the_users(monkeypatch):
    for name in (threads.THREADS, threads.OURS, threads.WAITING, "WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(threads, "cpu_quota", lambda: 1.0)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    threads.prepare_threads()
    assert os.environ[threads.THREADS] == "1" and not threads.threads_by_user()
    monkeypatch.setenv(threads.THREADS, "3")
    threads.prepare_threads()
    assert os.environ[threads.THREADS] == "3" and threads.threads_by_user()


@pytest.mark.parametrize("by_user", [False, True])
def test_a_resumed_run_computes_with_its_own_number_of_threads(tiny_root, tmp_path, command, monkeypatch, by_user):
    before = torch.get_num_threads()
    words = cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path / "run", small=(*SMALL, "SOLVER.EVAL_UNTRAINED", "False"))
    try:
        torch.set_num_threads(before + 1)
        assert command(train_net.main, *words, "SOLVER.MAX_EPOCHS", 1)[0] == 0
        torch.set_num_threads(before)
        if by_user:
            monkeypatch.setenv("OMP_NUM_THREADS", str(before))
        else:
            monkeypatch.delenv("OMP_NUM_THREADS")
        assert command(train_net.main, *words, "SOLVER.MAX_EPOCHS", 2, "RESUME", "yes")[0] == 0
    finally:
        torch.set_num_threads(before)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["machine"]["threads"] == before + 1
    assert record["resumptions"][0]["machine"]["threads"] == before + (not by_user)
    assert ("the run started with threads" in (tmp_path / "run" / "log.txt").read_text()) == by_user


def test_the_range_of_the_demo_is_students_prediction_interval():
    runs = [{"mAP": {"1": value, "2": 2 * value, "3": 50.0 - value}} for value in (60.0, 61.0, 63.0)]
    found = demo_figures.ranges(runs)
    mean, deviation = 184 / 3, ((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) ** 0.5 / 2**0.5
    reach = 4.302652729911275 * deviation * (4 / 3) ** 0.5  # Student's quantile for two degrees of freedom
    assert stats.t.cdf(4.302652729911275, 2) == pytest.approx(0.975)
    assert found["1"] == pytest.approx([mean - reach, mean + reach])
    assert found["2"] == pytest.approx([2 * mean - 2 * reach, 2 * mean + 2 * reach])
    assert found["3"] == pytest.approx([50 - mean - reach, 50 - mean + reach])


def test_the_demo_is_compared_with_the_readme(tmp_path, command):
    last = {pattern: {"mAP": value} for pattern, value in (("1", 0.5), ("2", 0.61), ("3", 0.7))}
    (tmp_path / "metrics.json").write_text(json.dumps([{"epoch": 1}, {"epoch": 2, "patterns": last}]))
    code, said, _ = command(demo_figures.main, "--run", tmp_path)
    shown = " / ".join(f"{value:.1f}" for value in json.loads(demo_figures.FIGURES.read_text())["runs"][0]["mAP"].values())
    assert code == 0 and said.count("\n") == 1 and f"50.0 / 61.0 / 70.0 here, {shown} in the README" in said
    rows = [row.split("|")[2].strip() for row in (demo_figures.ROOT / "README.md").read_text().splitlines()
            if row.startswith(("| 1 original", "| 2 enhanced", "| 3 both"))]
    assert rows == shown.split(" / ")
