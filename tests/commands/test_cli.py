"""Help and keys: what the commands say without a run."""

import json
import os
import runpy
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from commands import ONE_LINE, ROOT, cli_args_for

from demo_sdtps.commands import COMMANDS, convert_checkpoint, dispatch, evaluate
from demo_sdtps.commands import train as train_net

EVERY = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (".", "tools", "benchmarks")
    for path in (ROOT / folder).glob("*.py")
    if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize(("words", "is_chosen"), [(["--keys", "sdtps"], True), (["--keys"], False)])
def test_keys_are_printed(command, words, is_chosen):
    code, stdout, stderr = command(train_net.main, *words)
    assert code == 0 and not stderr and "MODEL.USE_SDTPS = False" in stdout
    assert ("SOLVER.SEED = 1111" in stdout) is not is_chosen


def test_negative_values_pass_the_command_line(refusal, tmp_path):
    message = refusal(train_net.main, *cli_args_for(tmp_path, "SOLVER.BASE_LR", "-1e-4"))
    assert message.startswith("SOLVER.BASE_LR") and "greater than 0" in message


def test_help_comes_before_torch_and_before_other_processes(tmp_path):
    """The environment is that of one of two processes of torchrun, of which the other never comes."""
    program = tmp_path / "program.py"
    others = [script for script in EVERY if script != "tools/tables.py"]  # which draws
    program.write_text(f"""
import contextlib, io, json, runpy, sys
results = {{}}
scripts = {others!r}
starts = [*scripts, *(f"demo_sdtps/commands/__main__.py {{name}}" for name in {[*COMMANDS]!r})]
for start in [*(f"{{start}} --help" for start in starts), "train_net.py --keys sdtps"]:
    sys.argv = start.split()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_path(sys.argv[0], run_name="__main__")
    results[start] = [said.getvalue().startswith(("usage: ", "MODEL.")), "torch" in sys.modules]
print(json.dumps(results))
""")
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"WORLD_SIZE": "2", "RANK": "1"},
    )
    assert done.returncode == 0, done.stderr
    actual = json.loads(done.stdout)
    assert len(actual) == len(others) + len(COMMANDS) + 1 and all(
        result == [True, False] for result in actual.values()
    ), actual


def test_flags_have_either_stroke(command, refusal):
    words = ["--config_file", "Synthetic/Baseline.yml", "--num_class", "7", "--camera_num=2"]
    first, second = (
        command(evaluate.flops, *(word.replace("_", stroke) for word in words)) for stroke in "_-"
    )
    assert first == second and first[0] == 0 and "7 classes, 2 cameras" in first[1]
    # values keep theirs
    assert "no-such.pth" in refusal(convert_checkpoint.main, "no-such.pth", "x.pth", "--to", "ours")


def test_help_lists_every_command(command):
    code, usage, _ = command(dispatch, "--help")
    assert code == 0 and command(dispatch)[1] == usage
    rows = [line for line in usage.splitlines() if line.startswith("  ")]
    assert [row[2:22].strip() for row in rows] == list(COMMANDS)
    group = command(dispatch, "draw", "--help")[1]
    assert group.count("\n  draw ") == 4 and "search" not in group


@pytest.mark.parametrize(
    ("path", "name"),
    [("train_net.py", "train"), ("test_net.py", "test"), ("tools/profile_flops.py", "flops")],
)
def test_a_script_is_its_command(command, path, name):
    main = partial(runpy.run_path, str(ROOT / path), run_name="__main__")
    both = command(main, "--help"), command(dispatch, name, "--help")
    usage, description = zip(*(text.split("\n\n")[:2] for _, text, _ in both), strict=True)
    assert usage[0].startswith(f"usage: {Path(path).name} ") and description[0] == description[1]


def test_a_command_is_called_by_its_name(command):
    words = ("--config_file", "Synthetic/Baseline.yml", "--num_class", "7")
    assert command(dispatch, "flops", *words) == command(evaluate.flops, *words)
    usage = command(dispatch, "draw", "tokens", "--help")[1]
    assert usage.startswith("usage: demo-sdtps draw tokens [-h]")
    mistakes = ((["serch", "--weight", "x"], "search"), (["draw", "tokns"], "draw tokens"))
    for words, nearest in mistakes:
        code, stdout, stderr = command(dispatch, *words)
        assert code == 2 and not stdout and stderr.count("\n") == 1
        assert stderr.startswith(ONE_LINE) and f"the nearest is {nearest!r}" in stderr
    assert command(dispatch, "--version")[1].strip() == import_module("demo_sdtps").__version__
