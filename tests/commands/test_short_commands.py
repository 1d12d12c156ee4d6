"""Short commands: configurations by name, --data, --epochs, unknown flags, and completion in a shell."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import CONFIG, ONE_LINE, ROOT, checkpoint_file

from demo_sdtps.commands import check_data, evaluate, flags, search
from demo_sdtps.commands import train as train_net
from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.config.common import BACKBONE_KEYS, IMAGE_KEYS
from demo_sdtps.config.load import flatten
from demo_sdtps.datasets import SPLITS
from seps import __main__ as seps
from synthetic import commands as synthetic

CONFIGS = ROOT / "configs"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The current folder, with data of each kind: own folders and a table, one published data set, several."""
    for split in SPLITS:
        for modality in MODALITIES:
            (tmp_path / "own" / split / modality).mkdir(parents=True)
            for identity, camera in ((1, 1), (1, 2), (2, 1), (2, 2)):
                name = f"{identity:06}_cam{camera}_0.jpg"
                (tmp_path / "own" / split / modality / name).touch()
    rows = (
        f"{split},{path.name[5]},{path.name[10]},{path.relative_to(tmp_path)},,\n"
        for split in SPLITS
        for path in sorted((tmp_path / "own" / split / "RGB").iterdir())
    )
    (tmp_path / "table.csv").write_text("split,identity,camera,rgb,ni,ti\n" + "".join(rows))
    for folder in ("one/RGBNT201", "synthetic/RGBNT201", "two/RGBNT201", "two/MSVR310", "none"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "mine.yml").write_text("SOLVER:\n  SEED: 5\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "config", "name"),
    [
        ("DeMo_Slim --data own", CONFIGS / "Own/DeMo_Slim.yml", "Folder"),
        ("--data=table.csv DeMo_Slim.yml", CONFIGS / "Own/DeMo_Slim.yml", "CSV"),
        ("DeMo_Slim --data one", CONFIGS / "RGBNT201/DeMo_Slim.yml", "RGBNT201"),
        ("DeMo_Slim --data synthetic", CONFIGS / "Synthetic/DeMo_Slim.yml", "Synthetic"),
        ("MSVR310/DeMo --data one", CONFIGS / "MSVR310/DeMo.yml", "MSVR310"),
        ("configs/RGBNT201/DeMo --data own", CONFIGS / "RGBNT201/DeMo.yml", "Folder"),
        ("RGB DATASETS.NAMES Images --data own", CONFIGS / "Own/RGB.yml", "Images"),
        ("mine OUTPUT_DIR=runs/x.yml", Path("mine.yml"), "RGBNT201"),
        ("mine.yml", Path("mine.yml"), "RGBNT201"),
        ("--config_file mine.yml DATASETS.ROOT_DIR own", "mine.yml", "RGBNT201"),
    ],
)
def test_a_configuration_is_found_by_its_name(place, monkeypatch, capsys, words, config, name):
    """It is told, but for one that is written as it is."""
    monkeypatch.setattr(sys, "argv", ["x", *words.split(), "--epochs", "2", "SOLVER.SEED", "7"])
    arguments, cfg = flags.parse(flags.training_parser("", ""))
    assert arguments.config_file == str(config)
    assert name == cfg.DATASETS.NAMES and (cfg.SOLVER.MAX_EPOCHS, cfg.SOLVER.SEED) == (2, 7)
    told = "" if str(config) in words.split() else f"configuration: {config}\n"
    assert capsys.readouterr().err == told


START = ["DATASETS.ROOT_DIR", "synthetic", "DATASETS.VALIDATION", "0.25"]
START += ["INPUT.PIXEL_STD", "[1,1,1]"]


@pytest.mark.parametrize(
    ("words", "config", "changed"),
    [
        ("DeMo_Slim", CONFIGS / "Synthetic/DeMo_Slim.yml", {}),
        ("DeMo_Slim DATASETS.ROOT_DIR x", CONFIGS / "Synthetic/DeMo_Slim.yml", {START[0]: "x"}),
        ("RGBNT201/DeMo_Slim", CONFIGS / "RGBNT201/DeMo_Slim.yml", None),
        ("DeMo_Slim --data one", CONFIGS / "RGBNT201/DeMo_Slim.yml", {START[0]: "one"}),
        ("mine", Path("mine.yml"), None),
    ],
)
def test_a_slimmed_model_starts_from_a_dense_one(place, monkeypatch, words, config, changed):
    """By a name without a folder on its data, read as it reads them, with its backbone; they may be in another place."""
    stored = load_cfg(CONFIG, START)
    weights = str(checkpoint_file(place / "w.pth", stored))
    parser = flags.training_parser("", "")
    monkeypatch.setattr(sys, "argv", ["x", *words.split(), "--from", weights])
    arguments, cfg = flags.parse(parser)
    assert arguments.config_file == str(config)
    values, default = flatten(cfg), flatten(load_cfg(config))
    same = {"TEST.WEIGHT": weights, "MODEL.TEACHER": weights}
    if changed is not None:
        keys = (*START[::2], *IMAGE_KEYS, *BACKBONE_KEYS)
        same |= {key: flatten(stored)[key] for key in keys} | changed
    assert values == default | same


def test_the_teacher_of_a_checkpoint_is_not_that_of_a_training_which_starts_from_it(
    place, monkeypatch
):
    """With the checkpoint's own configuration."""
    weights = str(checkpoint_file(place / "w.pth", load_cfg(CONFIG, ("MODEL.TEACHER", "gone.pth"))))
    for words, teacher in (((), ""), (("--teacher", "other.pth"), "other.pth")):
        parser = flags.training_parser("", "")
        monkeypatch.setattr(sys, "argv", ["x", "--weight", weights, *words])
        assert teacher == flags.parse(parser)[1].MODEL.TEACHER


def test_a_command_of_one_process_refuses_torchrun(monkeypatch, refusal):
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.setenv(name, "2")
    assert "torchrun" in refusal(evaluate.flops, "RGB")


def test_a_checkpoint_is_tested_on_own_data_with_its_own_configuration(place, monkeypatch):
    weights = checkpoint_file(place / "w.pth", load_cfg(CONFIG))
    words = ["x", "OUTPUT_DIR", "x", "--weight", str(weights), "--data=own"]
    monkeypatch.setattr(sys, "argv", words)
    arguments, cfg = flags.parse(flags.config_parser(""))
    assert (cfg.DATASETS.NAMES, cfg.DATASETS.ROOT_DIR) == ("Folder", "own")
    assert cfg.MODEL.USE_SDTPS and "own" in arguments.opts  # for the other --weight and --run


@pytest.mark.parametrize(
    ("module", "words", "message"),
    [
        (check_data, "DeMo_Slim", "RGBNT201/DeMo_Slim, .* give --data the folder of the data, or"),
        (check_data, "DeMo_Slim --data none", "none has the data of none of them, or"),
        (check_data, "DeMo --data own", "own has the data of none of them, or write one"),
        (check_data, "DeMo --data two", "the data of MSVR310/DeMo and RGBNT201/DeMo, or"),
        (check_data, "DeMo_Slm --data own", "configuration 'DeMo_Slm'; the nearest is 'DeMo_Slim'"),
        (check_data, "RGBNT20/DeMo", "the nearest is 'RGBNT201/DeMo'"),
        (check_data, "OUTPUTDIR x", "the nearest is 'OUTPUT_DIR'"),
        (seps.check, "shapes --data none", "none/shapes/train_caps.txt is missing"),
        (train_net, "", "no configuration: name one, .* give --weight a .* or give"),
        (train_net, "SOLVER.SED 1", "There is no configuration: name one"),
        (train_net, "RGB SOLVER.SED 1", "the nearest is 'SOLVER.SEED'"),
        (train_net, "--configfile x", "no flag --configfile; the nearest is '--config_file'"),
        (train_net, "RGB -epochs=2", "no flag -epochs; the nearest is '--epochs'"),
        (search, "--galery x", "no flag --galery; the nearest is '--gallery'"),
        (synthetic.triplets, "--rot=x", "no flag --rot; the nearest is '--root'; --help lists all"),
        (evaluate.draw_curves, "--zzz", "no flag --zzz; --help lists all"),
    ],
)
def test_what_is_unknown_gets_the_nearest(place, command, module, words, message):
    code, stdout, stderr = command(getattr(module, "main", module), *words.split())
    lines = [line for line in stderr.splitlines() if not line.startswith("configuration: ")]
    assert code == 2 and not stdout and len(lines) == 1 and lines[0].startswith(ONE_LINE)
    assert re.search(message, lines[0]), lines


COMPLETIONS = {
    "tr": "train",
    "draw to": "tokens",
    "export on": "onnx",
    "export --out": "--output",
    "train RGBNT201/Ba": "RGBNT201/Baseline",
    "train --data own RGBNT100/Ba": "RGBNT100/Baseline",
    "train RGB --ep": "--epochs",
    "train RGB SOLVER.MAX_EP": "SOLVER.MAX_EPOCHS",
    "draw tokens MSVR310/Ba": "MSVR310/Baseline",
    "train RGB RESUME a": "auto",
    "check RGB --data table": "table.csv",
}
ASK = """
eval "$SHELLCODE"
while IFS= read -r COMP_LINE; do
    COMP_POINT=${#COMP_LINE} COMPREPLY=()
    _python_argcomplete demo-sdtps
    echo "${COMPREPLY[@]}"
done"""
"""As bash does when Tab is pressed. For zsh, whose functions need a terminal, what these call."""
ASK_ZSH = """
while IFS= read -r COMP_LINE; do
    export COMP_LINE COMP_POINT=${#COMP_LINE} _ARGCOMPLETE=1 _ARGCOMPLETE_SHELL=zsh _ARGCOMPLETE_SUPPRESS_SPACE=1
    demo-sdtps 8>&1 9>/dev/null 1>/dev/null </dev/null | cut -d: -f1
    echo
done"""


@pytest.mark.slow
@pytest.mark.parametrize("ask", [ASK, ASK_ZSH], ids=["bash", "zsh"])
def test_a_shell_completes_without_torch(place, ask):
    argcomplete = pytest.importorskip("argcomplete", reason="needs pip install -e '.[completion]'")
    (place / "torch.py").write_text("raise AssertionError('a completion imports torch')\n")
    program = place / "demo-sdtps"
    program.write_text(f"#!{sys.executable}\nfrom demo_sdtps.commands import main\nmain()\n")
    program.chmod(0o755)
    paths = {
        "PATH": f"{place}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{place}{os.pathsep}{os.environ['PYTHONPATH']}",
    }
    done = subprocess.run(
        ["bash", "-c", ask],
        input="".join(f"demo-sdtps {line}\n" for line in COMPLETIONS),
        env=os.environ | paths | {"SHELLCODE": argcomplete.shellcode(["demo-sdtps"])},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [*COMPLETIONS.values()], done.stderr
