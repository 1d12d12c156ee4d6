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
    flags = {"train_net.py": "--overwrite", "test_net.py": "--weight", "tools/export_features.py": "--split",
             "tools/profile_flops.py": "--num_class", "tools/draw_ranks.py": "--failures",
             "tools/draw_tokens.py": "--samples", "tools/draw_attention.py": "--method {rollout,gradcam}",
             "tools/draw_embedding.py": "--method {pca,tsne,umap}", "tools/check_data.py": "exit code: 0",
             "tools/selection_quality.py": "--json", "tools/slim_curve.py": "--scores",
             "train_seps.py": "--overwrite", "test_seps.py": "--weight"}
    assert flags.get(script, "--help") in shown.out
    # One flag, with one description in every command that writes a file; a run and masks are replaced in other ways.
    if "--json" in shown.out or "--output" in shown.out:
        assert "--overwrite replace an output that exists, which is refused otherwise" in " ".join(shown.out.split())


@pytest.mark.parametrize(("words", "names", "not_names"), [
    (["--keys", "SDTPS"], ["MODEL.USE_SDTPS = False", "MODEL.SDTPS_BETA = 0.25"], ["SOLVER.SEED"]),
    (["--keys", "sdtps"], ["MODEL.USE_SDTPS = False"], ["SOLVER.SEED"]),
    (["--keys"], ["MODEL.USE_SDTPS = False", "SOLVER.SEED = 1111", "OUTPUT_DIR = ''"], []),
])
def test_keys_are_printed(command, words, names, not_names):
    code, stdout, stderr = command(train_net.main, *words)
    assert code == 0 and not stderr
    assert all(name in stdout for name in names) and not any(name in stdout for name in not_names)


def test_keys_that_do_not_exist_are_reported(command):
    code, stdout, stderr = command(train_net.main, "--keys", "BANANA")
    assert code == 2 and not stdout and stderr.startswith(ONE_LINE) and "BANANA" in stderr


def test_negative_values_pass_the_command_line(command, tmp_path):
    for value in ("-1", "-0.5", "-1e-4"):
        _, _, stderr = command(train_net.main, *cli_args_for(tmp_path, "SOLVER.BASE_LR", value))
        assert stderr.startswith(ONE_LINE + "SOLVER.BASE_LR") and "greater than 0" in stderr
