"""File names on console and in the log: control characters escaped, in one place for all messages (config/printing.py)."""
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import ROOT, cli_args_for
from demo_sdtps.config.printing import LineFormatter, Lines, prepare_streams, print_lines, printable
from hostile import weights_for

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import run
from demo_sdtps.config.progress import progress
from demo_sdtps.datasets.base import Sample
from demo_sdtps.datasets.images import verify
from demo_sdtps.engine.monitor import LossMonitor
from demo_sdtps.engine.runtime import log_to
from demo_sdtps.plug_in import launch
from demo_sdtps.seps.evaluation import data_warnings
from demo_sdtps.seps.image_text import ImageTexts
from demo_sdtps.tools import convert_checkpoint, draw_curves, export_features

NAME, SHOWN = "a\x1b[31m\nb\u202e\udcff", r"a\x1b[31m\nb\u202e\udcff"


def test_lines_keep_the_breaks_between_them_alone():
    assert printable(f"the file {NAME} 猫") == f"the file {SHOWN} 猫"
    lines = Lines("files:", NAME, "x")
    assert lines == f"files:\n{SHOWN}\nx" == printable(lines)
    assert str(UserError(lines)) == lines


@pytest.fixture
def log(tmp_path, request, monkeypatch):
    """A log file, as a run has one → what it says without the times."""
    # pytest's own report cannot hold names that are not valid UTF-8.
    monkeypatch.setattr(request.config.pluginmanager.get_plugin("logging-plugin").report_handler, "formatter", LineFormatter())

    def said():
        return "".join(line.partition(" WARNING ")[2] or line for line in path.read_text().splitlines(keepends=True))

    path = tmp_path / "log.txt"
    root = logging.getLogger()
    before = list(root.handlers), root.level, logging.raiseExceptions
    with log_to(path):
        yield said
    for handler in set(root.handlers) - set(before[0]):
        root.removeHandler(handler)
        handler.close()
    root.level, logging.raiseExceptions = before[1:]


@pytest.mark.parametrize("tell", [lambda: logging.warning(f"the file {NAME}: 100 %"),
                                  lambda: logging.warning("the file %s: %d %%", NAME, 100),
                                  lambda: logging.warning("the file %s: %s %%", Path(NAME), 100)], ids=["f", "text", "path"])
def test_the_log_has_one_line_per_message(log, tell):
    tell()
    assert log() == f"the file {SHOWN}: 100 %\n"


def test_the_warning_of_seps(log):
    one, other = (ImageTexts((path,), ("a",), (0,), None) for path in (NAME, "other"))
    for warning in data_warnings({"train": one, "dev": one, "test": other}):
        logging.warning(warning)
    assert f"1 images are in training and dev, the first {SHOWN}, so" in log() and log().count("\n") == 1


class Files:
    """A data set and sampler of one batch."""

    start = 0

    def __init__(self):
        self.dataset = self.batch_sampler = self

    def begin(self, epoch, start):
        pass

    def __iter__(self):
        return iter([[(0, 0), (1, 0)]])

    def files(self, index):
        return [f"{NAME}{index}"]


def test_the_files_of_a_loss_that_is_not_finite(log):
    with pytest.raises(UserError) as raised:
        LossMonitor(Files()).add(1, 1, torch.tensor(torch.nan))
    assert f"with the files {SHOWN}0, {SHOWN}1; no finite" in printable(str(raised.value))
    assert log().endswith(f" ERROR the batch of epoch 1, step 1:\n{SHOWN}0\n{SHOWN}1\n")


def test_the_list_of_images_that_cannot_be_read(tmp_path, command):
    paths = [tmp_path / f"{number}\n\x1b.jpg" for number in range(2)]
    for path in paths:
        path.touch()
    code, _, stderr = command(lambda: verify([Sample((str(path),), 1, 0) for path in paths]))
    lines = [line for line in stderr.replace("\r", "\n").splitlines() if line.strip() and "verifying" not in line]
    assert code == 2 and lines == ["error: 2 of 2 images cannot be read; replace them or remove their triplets:",
                                   *(rf"  {tmp_path}/{number}\n\x1b.jpg cannot be read (it is empty)" for number in range(2))]


def test_names_in_a_checkpoint(tiny_root, tmp_path, command):
    path = weights_for(tiny_root, tmp_path / "w.pth", lambda content: content["model"].update({NAME[:-1]: torch.zeros(2)}))
    code, stdout, _ = command(convert_checkpoint.main, path, tmp_path / "demo.pth", "--to", "demo")
    assert code == 0 and stdout.splitlines()[-1].endswith(f"kept their names: {SHOWN[:-6]}")
    code, _, stderr = command(export_features.main, *cli_args_for(tiny_root, "--weight", path), "--output", tmp_path / "x.npz")
    assert code == 2 and f"{SHOWN[:-6]} is not part of the model" in stderr and stderr.count("\n") == 1


@pytest.mark.parametrize("call", [lambda folder: (convert_checkpoint.main, folder / "none.pth", "x.pth", "--to", "ours"),
                                  lambda folder: (draw_curves.main, "--run", folder),
                                  lambda folder: (lambda: print_lines(folder / "none.pth"),)], ids=["sentence", "run", "print"])
def test_names_in_arguments(tmp_path, command, call):
    code, *said = command(*call(tmp_path / NAME))
    text = "".join(said)
    assert code in (0, 2) and str(tmp_path / SHOWN) in text and text.count("\n") == 1 and text.endswith("\n")


def test_names_in_arguments_that_argparse_does_not_know(tmp_path, command):
    code, _, stderr = command(draw_curves.main, "--run", tmp_path, NAME)
    assert code == 2 and "unrecognized arguments" in stderr and "\x1b" not in stderr and r"a\x1b[31m" in stderr


def test_names_in_arguments_of_the_plug_in(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo_sdtps", NAME])
    with pytest.raises(SystemExit) as ended:
        launch.main()
    assert ended.value.code == 2 and capsys.readouterr().err.startswith(f"error: There is no script {SHOWN};")


def test_warnings_from_before_the_log():
    prepare_streams()
    assert isinstance(logging.lastResort.formatter, LineFormatter)


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_that_is_closed_changes_no_exit_code(name, monkeypatch):
    """Python has None for it: 2>&- in a shell."""
    monkeypatch.setattr(sys, name, None)

    def main():
        print_lines(*progress(["a"], "reading"))
        sys.stdout.write("keys")
        logging.warning("a warning")
        raise UserError("The file is missing.")

    with pytest.raises(SystemExit) as ended:
        run(main)
    assert ended.value.code == 2
    getattr(sys, name).close()


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["2>&-", "2>/dev/full"])
def test_a_command_without_stderr(tmp_path, stream):
    line = f"{sys.executable} {ROOT}/tools/draw_curves.py --run {tmp_path} {stream}"
    done = subprocess.run(["sh", "-c", line], capture_output=True)
    assert done.returncode == 2 and not done.stdout
