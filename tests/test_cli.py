"""Help and keys: what the commands say without a run."""
import runpy
import sys

import pytest
from commands import ONE_LINE, ROOT, SCRIPTS, cli_args_for

from demo_sdtps import train_net


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    monkeypatch.syspath_prepend(ROOT / "tools")  # as the interpreter does for a script
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    shown = capsys.readouterr()
    assert ended.value.code == 0 and not shown.err
    assert ("--run" if script == "tools/draw_curves.py" else "--config_file") in shown.out
    # One flag, with one description in every command that writes a file; a run and masks are replaced in other ways.
    if "--json" in shown.out or "--output" in shown.out:
        assert "--overwrite replace an output that exists, which is refused otherwise" in " ".join(shown.out.split())


@pytest.mark.parametrize(("words", "is_chosen"), [(["--keys", "sdtps"], True), (["--keys"], False)])
def test_keys_are_printed(command, words, is_chosen):
    code, stdout, stderr = command(train_net.main, *words)
    assert code == 0 and not stderr and "MODEL.USE_SDTPS = False" in stdout
    assert ("SOLVER.SEED = 1111" in stdout) is not is_chosen


def test_negative_values_pass_the_command_line(command, tmp_path):
    _, _, stderr = command(train_net.main, *cli_args_for(tmp_path, "SOLVER.BASE_LR", "-1e-4"))
    assert stderr.startswith(ONE_LINE + "SOLVER.BASE_LR") and "greater than 0" in stderr
