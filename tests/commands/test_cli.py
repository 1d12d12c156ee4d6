"""What all commands share: names, help, keys, flags, the configuration that words give, and outputs that are not replaced."""

import json
import os
import runpy
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from commands import CONFIG, ONE_LINE, ROOT, checkpoint_file, cli_args_for

from benchmarks import run as benchmark
from demo_sdtps.commands import (
    COMMANDS,
    check_data,
    convert_checkpoint,
    dispatch,
    evaluate,
    export,
    flags,
    search,
)
from demo_sdtps.commands import test as test_net
from demo_sdtps.commands import train as train_net
from demo_sdtps.config import load_cfg
from demo_sdtps.config.load import flatten
from demo_sdtps.datasets import SPLITS
from seps import __main__ as seps

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


# The configuration of a command


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The current folder, with own data in folders and in a table, and a configuration."""
    for split in SPLITS:
        (tmp_path / "own" / split).mkdir(parents=True)
    (tmp_path / "table.csv").touch()
    (tmp_path / "mine.yml").write_text("SOLVER:\n  SEED: 5\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parse(monkeypatch, parser, *words):
    monkeypatch.setattr(sys, "argv", ["x", *map(str, words)])
    return flags.parse(parser)[1]


@pytest.mark.parametrize(
    ("words", "name", "config"),
    [
        ("Own/DeMo_Slim --data own", "Folder", "Own/DeMo_Slim"),
        ("--data=table.csv Own/DeMo_Slim.yml", "CSV", "Own/DeMo_Slim"),
        ("configs/RGBNT201/DeMo --data own", "Folder", "RGBNT201/DeMo"),
        ("Own/RGB DATASETS.NAMES Images --data own", "Images", "Own/RGB"),
        ("DeMo_Slim --data own", "Folder", "Own/DeMo_Slim"),
        ("--data table.csv DeMo_Slim", "CSV", "Own/DeMo_Slim"),
        ("mine OUTPUT_DIR=runs/x.yml", "RGBNT201", "mine.yml"),
        ("--config_file mine.yml DATASETS.ROOT_DIR own", "RGBNT201", "mine.yml"),
    ],
)
def test_a_configuration_is_named_and_keys_override_it(place, monkeypatch, words, name, config):
    more = ("--epochs", "2", "SOLVER.SEED", "7")
    cfg = parse(monkeypatch, flags.training_parser("", ""), *words.split(), *more)
    assert name == cfg.DATASETS.NAMES and (cfg.SOLVER.MAX_EPOCHS, cfg.SOLVER.SEED) == (2, 7)
    assert cfg.MODEL == load_cfg(config).MODEL


def test_a_training_starts_from_a_checkpoint_and_follows_it(place, monkeypatch):
    """And not the teacher of the checkpoint's own training."""
    weights = str(checkpoint_file(place / "w.pth", load_cfg(CONFIG, ("MODEL.TEACHER", "gone.pth"))))
    parsers = [flags.training_parser("", "") for _ in range(3)]
    cfg = parse(monkeypatch, parsers[0], "mine", "--from", weights)
    same = {"TEST.WEIGHT": weights, "MODEL.TEACHER": weights}
    assert flatten(cfg) == flatten(load_cfg("mine")) | same
    assert parse(monkeypatch, parsers[1], "--weight", weights).MODEL.TEACHER == ""
    words = ("--weight", weights, "--teacher", "other.pth")
    assert parse(monkeypatch, parsers[2], *words).MODEL.TEACHER == "other.pth"


def test_a_checkpoint_is_tested_on_own_data_with_its_own_configuration(place, monkeypatch):
    weights = checkpoint_file(place / "w.pth", load_cfg(CONFIG))
    words = ("OUTPUT_DIR", "x", "--weight", weights, "--data=own")
    cfg = parse(monkeypatch, flags.config_parser(""), *words)
    assert (cfg.DATASETS.NAMES, cfg.DATASETS.ROOT_DIR) == ("Folder", "own") and cfg.MODEL.USE_SDTPS


def test_the_configuration_of_a_run_means_the_run(place, monkeypatch, capsys):
    (place / "run").mkdir()
    config = place / "run" / "config.yml"
    config.write_text(load_cfg(CONFIG, ("TEST.WEIGHT", "start.pth")).dump())
    weight = lambda parser, *words: parse(monkeypatch, parser, *words).TEST.WEIGHT  # noqa: E731
    assert weight(flags.config_parser(""), config) == "start.pth"
    (place / "run" / "run.json").touch()
    for name in ("last.pth", "best.pth"):
        (path := place / "run" / name).touch()
        for words in ([config], ["--config_file", config]):
            assert weight(flags.config_parser(""), *words) == str(path)
            assert capsys.readouterr().out == f"{config} is that of a run: its weights are {path}\n"
    assert weight(flags.config_parser(""), config, "--weight", "other.pth") == "other.pth"
    assert weight(flags.training_parser("", ""), config) == "start.pth"
    assert parse(monkeypatch, flags.config_parser("", weight=""), config).TEST.WEIGHT == "start.pth"
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("RGBNT20/DeMo", "the nearest is 'RGBNT201/DeMo'"),
        ("DeMo_Slim", "There is no configuration 'DeMo_Slim'"),
        ("", "give --weight a checkpoint"),
        ("SOLVER.SED 1", "There is no configuration: name one"),
        ("Own/RGB SOLVER.SED 1", "the nearest is 'SOLVER.SEED'"),
    ],
)
def test_what_is_unknown_gets_the_nearest(place, refusal, words, message):
    assert message in refusal(evaluate.flops, *words.split())


# Outputs

CONFIGURED = ("--config_file", CONFIG)
SEARCHED = ("--query", "q", "--gallery", "g", "--csv", "x.csv")
EVALUATION = (*CONFIGURED, "--weight", "none.pth")
OUTPUTS = {
    "evaluation": (test_net, "x.json", (*EVALUATION, "--json", "x.json")),
    "evaluation of SEPS": (seps.test, "x.json", ("--weight", "none.pth", "--json", "x.json")),
    "counts": (check_data, "x.json", (*CONFIGURED, "--json", "x.json")),
    "features": (export.features, "x.npz", (*EVALUATION, "--output", "x.npz")),
    "numbers": (evaluate.analyse, "x.json", (*EVALUATION, "--json", "x.json")),
    "figure by default": (evaluate.draw_embedding, "embedding.png", EVALUATION),
    "checkpoint": (convert_checkpoint, "x.pth", ("none.pth", "x.pth", "--to", "ours")),
    "curves": (evaluate.draw_curves, "x.png", ("--run", "none", "--output", "x.png")),
    "page": (evaluate.report, "x.html", (*CONFIGURED, "--run", "none", "--html", "x.html")),
    "hits": (search, "x.csv", (*CONFIGURED, *SEARCHED)),
    "benchmark": (benchmark, "x.json", ("--json", "x.json")),
}
"""Every way to give an output: command, the file that is there, and words; weights, data and runs do not exist."""


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_exists_is_refused_before_any_work(refusal, tmp_path, name):
    command, file, words = OUTPUTS[name]
    (tmp_path / file).write_text("mine")
    message = refusal(getattr(command, "main", command), *words)
    assert file in message and "--overwrite" in message
