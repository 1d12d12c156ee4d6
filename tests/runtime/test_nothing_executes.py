"""Files from elsewhere run no code: traps that make a folder when run, as each does where it is loaded without restriction."""

import json
import os

import pytest
import seps_tiny
import torch
import yaml
from commands import cli_args_for
from seps_tiny import save_bert
from torch import nn

from demo_sdtps.commands import convert_checkpoint
from demo_sdtps.commands import test as test_net
from demo_sdtps.commands import train as train_net

NAME = "executed"


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def write_pickle(path):
    torch.save({"model": {"a": torch.zeros(2)}, "bomb": Bomb(path.parent / NAME)}, path)


class Writing(nn.Module):
    """A program of TorchScript that writes a file as soon as it is loaded."""

    def __init__(self, path):
        super().__init__()
        self.path = path
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, str]:
        return self.weight, self.path

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, str]) -> None:
        self.training = True
        self.weight = state[0]
        self.path = state[1]
        torch.save(state[0], state[1])


def program(path):
    torch.jit.script(Writing(str(path.parent / NAME))).save(str(path))


def yaml_program(path):
    path.write_text(f"!!python/object/apply:os.mkdir ['{path.parent / NAME}']\n")


TRAPS = {
    "pickle": (write_pickle, lambda path: torch.load(path, weights_only=False)),
    "TorchScript": (program, torch.jit.load),
    "YAML": (yaml_program, lambda path: yaml.unsafe_load(path.read_text())),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_the_traps_work(tmp_path, trap):
    make, load = TRAPS[trap]
    make(tmp_path / "x")
    load(tmp_path / "x")
    assert (tmp_path / NAME).exists()


DOORS = {
    "weights to test": (test_net, ["TEST.WEIGHT", "x"]),
    "a stored configuration": (test_net, ["--weight", "x"]),
    "pretrained weights": (train_net, ["MODEL.PATCH_SIZE", "0", "MODEL.PRETRAIN_PATH_T", "x"]),
    "weights to convert": (convert_checkpoint, ["x", "out.pth", "--to", "ours"]),
    "a configuration": (train_net, ["--config_file", "x"]),
}


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("door", DOORS)
def test_files_run_nothing(tiny_root, tmp_path, refusal, door, trap):
    tool, words = DOORS[door]
    TRAPS[trap][0](tmp_path / "x")
    if words[0] in ("TEST.WEIGHT", "MODEL.PATCH_SIZE"):
        words = [*cli_args_for(tiny_root, "OUTPUT_DIR", "run"), *words]
    refusal(tool.main, *words)
    assert not (tmp_path / NAME).exists()


# transformers


def write_pickled_weights(folder):
    (folder / "model.safetensors").unlink()
    write_pickle(folder / "pytorch_model.bin")


def own_code(file, content):
    """A module beside the weights that transformers would import, if it trusted it."""

    def change(folder):
        program = f"import os\nos.mkdir({str(folder / NAME)!r})\nEvil = None\n"
        (folder / "evil.py").write_text(program)
        (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | content))

    return change


MODEL = {"auto_map": {"AutoConfig": "evil.Evil"}, "model_type": "evil"}
TOKENIZER = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"}
CHANGES = {
    "weights": write_pickled_weights,
    "configuration": own_code("config.json", MODEL),
    "tokenizer": own_code("tokenizer_config.json", TOKENIZER),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_text_tower_runs_nothing(change, tmp_path, shapes_root, command, monkeypatch):
    save_bert(tmp_path / "bert")
    change(tmp_path / "bert")
    # whatever is asked in a terminal is agreed to
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    tower = ("MODEL.TEXT_TOWER", tmp_path / "bert", "INPUT.MAX_LONG_WORDS", "64")
    words = seps_tiny.cli_args_for(shapes_root, *tower, "OUTPUT_DIR", tmp_path / "output")
    code, _, stderr = command(seps_tiny.seps.train, *words)
    assert code in (0, 2) and "Traceback" not in stderr
    assert not list(tmp_path.rglob(NAME))
