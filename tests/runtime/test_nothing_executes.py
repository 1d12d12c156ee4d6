"""Files from elsewhere run no code: traps that make a folder when something runs them.

Each trap is first shown to work where it is loaded without restriction.
"""

import json
import os

import pytest
import seps_tiny
import torch
import yaml
from commands import ONE_LINE, cli_args_for, contents
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


def pickled(path):
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
    "pickle": (pickled, lambda path: torch.load(path, weights_only=False)),
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


@pytest.mark.parametrize(
    ("door", "trap"),
    [
        (door, trap)
        for door in DOORS
        for trap in TRAPS
        if (trap == "YAML") == (door == "a configuration")
    ],
)
def test_files_run_nothing(tiny_root, tmp_path, monkeypatch, command, door, trap):
    tool, words = DOORS[door]
    monkeypatch.chdir(tmp_path)
    TRAPS[trap][0](tmp_path / "x")
    before = contents(tmp_path)
    if words[0] in ("TEST.WEIGHT", "MODEL.PATCH_SIZE"):
        words = [*cli_args_for(tiny_root, "OUTPUT_DIR", "run"), *words]
    code, _, stderr = command(tool.main, *words)
    assert code == 2 and ONE_LINE in stderr and "Traceback" not in stderr
    assert contents(tmp_path) == before and not (tmp_path / NAME).exists()


# transformers


def pickled_weights(folder):
    (folder / "model.safetensors").unlink()
    pickled(folder / "pytorch_model.bin")


def own_code(file, content):
    """A module beside the weights that transformers would import, if it trusted it."""

    def change(folder):
        (folder / "evil.py").write_text(
            f"import os\nos.mkdir({str(folder / NAME)!r})\nEvil = None\n"
        )
        (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | content))

    return change


@pytest.mark.parametrize(
    "change",
    [
        pickled_weights,
        own_code("config.json", {"auto_map": {"AutoConfig": "evil.Evil"}, "model_type": "evil"}),
        own_code(
            "tokenizer_config.json",
            {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"},
        ),
    ],
    ids=["weights", "configuration", "tokenizer"],
)
def test_a_text_tower_runs_nothing(change, tmp_path, shapes_root, command, monkeypatch):
    save_bert(tmp_path / "bert")
    change(tmp_path / "bert")
    # whatever is asked in a terminal is agreed to
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    words = [
        *seps_tiny.cli_args_for(shapes_root),
        "MODEL.TEXT_TOWER",
        str(tmp_path / "bert"),
        "INPUT.MAX_LONG_WORDS",
        "64",
        "OUTPUT_DIR",
        str(tmp_path / "output"),
    ]
    code, _, stderr = command(seps_tiny.train_seps.main, *words)
    assert code in (0, 2) and "Traceback" not in stderr
    assert not list(tmp_path.rglob(NAME))
