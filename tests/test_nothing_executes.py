"""Files from elsewhere run no code: traps that make a folder when something runs them.

Each trap is first shown to work where it is loaded without restriction.
"""
import json

import pytest
import seps_tiny
import torch
import yaml
from hostile import Bomb, Case, run_case, table
from test_seps_towers import save_bert
from torch import nn

NAME = "executed"


def saved_bomb(path, **options):
    torch.save({"model": {"a": torch.zeros(2)}, "bomb": Bomb(path.parent / NAME)}, path, **options)


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


def test_the_traps_work(tmp_path):
    for number, (make, load) in enumerate((
            (saved_bomb, lambda path: torch.load(path, weights_only=False)), (program, torch.jit.load),
            (yaml_program, lambda path: yaml.unsafe_load(path.read_text())))):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder / "x")
        load(folder / "x")
        assert (folder / NAME).exists()


DOORS = {"test": ("TEST.WEIGHT", "{folder}/w.pth"), "stored": ("--weight", "{folder}/w.pth"),
         "train": ("MODEL.PATCH_SIZE", "0", "MODEL.PRETRAIN_PATH_T", "{folder}/w.pth"),
         "convert": ("{folder}/w.pth", "{folder}/out.pth", "--to", "ours")}


@table([Case(f"{trap.__name__} to {door}", "test" if door == "stored" else door, lambda place, trap=trap: trap(
    place.folder / "w.pth"), words, ("{folder}/w.pth",)) for door, words in DOORS.items() for trap in (saved_bomb, program)])
def test_weights_run_nothing(case, place, command):
    run_case(case, place, command)
    assert not (place.folder / NAME).exists()


@table([Case("a configuration", "train", lambda place: yaml_program(place.folder / "run.yml"),
             ("--config_file", "{folder}/run.yml"), ("not valid YAML",))])
def test_yaml_runs_nothing(case, place, command):
    run_case(case, place, command)
    assert not (place.folder / NAME).exists()


# transformers

def bert_with(place, change):
    folder = place.folder / "bert"
    save_bert(folder)
    change(folder)
    return folder


def pickled_weights(folder):
    (folder / "model.safetensors").unlink()
    saved_bomb(folder / "pytorch_model.bin")


def own_code(*files):
    """A module beside the weights that transformers would import, if it trusted it."""
    def change(folder):
        (folder / "evil.py").write_text(f"import os\nos.mkdir({str(folder / NAME)!r})\nEvil = None\n")
        for file, auto in files:
            content = json.loads((folder / file).read_text())
            content["auto_map"] = {auto: "evil.Evil" if auto != "AutoTokenizer" else ["evil.Evil", None]}
            (folder / file).write_text(json.dumps(content | ({"model_type": "evil"} if file == "config.json" else {
                "tokenizer_class": "Evil"})))

    return change


@pytest.mark.parametrize("change", [pickled_weights, own_code(("config.json", "AutoConfig")),
                                    own_code(("tokenizer_config.json", "AutoTokenizer"))],
                         ids=["weights", "configuration", "tokenizer"])
def test_a_text_tower_runs_nothing(change, place, shapes_root, command, monkeypatch):
    folder = bert_with(place, change)
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # whatever is asked in a terminal is agreed to
    words = [*seps_tiny.cli_args_for(shapes_root), "MODEL.TEXT_TOWER", str(folder), "INPUT.MAX_LONG_WORDS", "64",
             "OUTPUT_DIR", str(place.folder / "output")]
    code, _, stderr = command(seps_tiny.train_seps.main, *words)
    assert code in (0, 2) and "Traceback" not in stderr
    if code == 2:
        assert stderr.strip().splitlines()[-1].startswith(f"error: MODEL.TEXT_TOWER {folder} cannot be read")
        assert not (place.folder / "output").exists()
    assert not list(place.folder.rglob(NAME))
