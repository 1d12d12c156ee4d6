"""Runs that go on for long, and runs that are broken off: memory, time, and what they leave running."""
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from commands import ROOT, cli_args_for, records_of

EPOCHS, WARM_UP, WINDOW = 200, 50, 30
"""Of the long run; its first epochs, in which memory and caches fill; and how many are compared at both ends of the rest."""
GROWTH = 1.05

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="processes are watched in /proc")


@pytest.fixture
def start():
    """Start a training on the tiny data in a process group of its own, as a shell does; what is left ends with the test."""
    started = []

    def start(root, output, *opts):
        words = cli_args_for(root, "OUTPUT_DIR", output, "DATASETS.CACHE", "no", "DATALOADER.NUM_WORKERS", "2", *opts)
        started.append(subprocess.Popen([sys.executable, str(ROOT / "train_net.py"), *map(str, words)], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()


def children(pid):
    """The processes below `pid`, at any depth."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it has ended
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def resident(pid):
    """Bytes that a process holds, without pages of files, which the system takes and gives at will; 0 where it has ended."""
    try:
        return 1024 * int(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])
    except (OSError, TypeError):
        return 0


def wait_for(condition, process, seconds=90):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert process.poll() is None and time.monotonic() < deadline, process.stdout.read() if process.poll() else "too late"
        time.sleep(0.02)
    return found


def epochs_of(output):
    """The epochs that have been recorded so far."""
    try:
        return records_of(output)[-1]["epoch"]
    except (OSError, ValueError, IndexError):
        return 0


def assert_all_ended(pids):
    """Of a parent that is killed a loading process learns every 5 s."""
    deadline = time.monotonic() + 30
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.soak
def test_memory_stays_over_200_epochs_and_the_loading_processes_end_with_the_run(start, tiny_root, tmp_path, capsys):
    """Of the run and of its loading processes, one for training and one for evaluation. Every epoch is recorded, every tenth
    evaluated and saved."""
    process = start(tiny_root, tmp_path, "SOLVER.MAX_EPOCHS", EPOCHS, "SOLVER.EVAL_PERIOD", "10", "DATALOADER.NUM_WORKERS", "1",
                    "DATALOADER.SAMPLER", "softmax", "SOLVER.IMS_PER_BATCH", "24")
    samples, begun, last, loaders = {}, {}, 0, set()
    while process.poll() is None:
        epoch = epochs_of(tmp_path)
        if epoch > last:
            begun[epoch], last = time.perf_counter(), epoch
            loaders |= (now := children(process.pid))
            samples[epoch] = [resident(process.pid), *map(resident, sorted(now))]
        time.sleep(0.05)
    output = process.communicate()[0]
    assert process.returncode == 0 and epochs_of(tmp_path) == EPOCHS, output[-2000:]
    assert loaders
    assert_all_ended(loaders)

    def window(end):
        return [samples[epoch] for epoch in samples if end - WINDOW <= epoch < end and len(samples[epoch]) == 3]

    assert all(window(end) for end in (WARM_UP + WINDOW, EPOCHS))

    early, late = ([statistics.mean(sizes) for sizes in zip(*window(end), strict=True)] for end in (WARM_UP + WINDOW, EPOCHS))
    pace = [statistics.median((begun[b] - begun[a]) / (b - a) for a, b in zip(list(begun), list(begun)[1:], strict=False)
                              if end - WINDOW <= a < end) for end in (WARM_UP + WINDOW, EPOCHS)]
    with capsys.disabled():
        print("\nresident MB of the run and its loaders:", *(f"{a / 2**20:.1f} → {b / 2**20:.1f} ({b / a - 1:+.2%})"
              for a, b in zip(early, late, strict=True)), f"seconds per epoch: {pace[0]:.3f} → {pace[1]:.3f}", sep="\n  ")
    for before, after in zip(early, late, strict=True):
        assert after < GROWTH * before


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["the group, as Ctrl-C does", pytest.param("the run alone", marks=pytest.mark.soak)])
def test_loading_processes_end_on_ctrl_c(whom, start, tiny_root, tmp_path):
    process = start(tiny_root, tmp_path, "SOLVER.MAX_EPOCHS", "10000")
    wait_for(lambda: epochs_of(tmp_path) >= 2, process)
    loaders = children(process.pid)
    assert len(loaders) >= 2
    if whom == "the run alone":
        process.send_signal(signal.SIGINT)
    else:
        os.killpg(process.pid, signal.SIGINT)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 130, output
    # Python's own thread that hands files to the loading processes may still speak as it ends.
    assert "interrupted" in output and "train_net.py" not in "".join(output.split("Traceback")[1:])
    assert not any(map(is_running, loaders))


@pytest.mark.slow
def test_loading_processes_end_with_a_run_that_is_killed(start, tiny_root, tmp_path):
    process = start(tiny_root, tmp_path, "SOLVER.MAX_EPOCHS", "10000")
    wait_for(lambda: epochs_of(tmp_path) >= 1, process)
    loaders = children(process.pid)
    process.kill()
    process.communicate(timeout=120)
    assert len(loaders) >= 2
    assert_all_ended(loaders)


@pytest.mark.slow
def test_loading_processes_end_with_an_error(start, own_root, tmp_path):
    """An image that becomes unreadable while the run goes on."""
    process = start(own_root, tmp_path / "run", "SOLVER.MAX_EPOCHS", "10000")
    wait_for(lambda: epochs_of(tmp_path / "run") >= 1, process)
    loaders = children(process.pid)
    assert len(loaders) >= 2
    for path in (own_root / "RGBNT201" / "train_171" / "NI").iterdir():
        path.write_bytes(b"")
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 2 and "Traceback" not in output, output
    assert output.strip().splitlines()[-1].startswith("error: The image ")
    assert not any(map(is_running, loaders))
