"""Files from strangers hold numbers here, never programs: traps that make a folder when something runs them.

Each trap is first shown to work where it is loaded as Python would load it.
"""
import json
import os
import pickle
import zipfile

import pytest
import seps_tiny
import torch
from commands import cli_args_for
from hostile import Bomb, Case, run_case, table, weights_for
from test_seps_towers import save_bert
from torch import nn
from weight_files import message

from demo_sdtps import train_net
from demo_sdtps.modeling.pretrained import read_source

NAME = "executed"


def saved_bomb(path, **options):
    torch.save({"model": {"a": torch.zeros(2)}, "bomb": Bomb(path.parent / NAME)}, path, **options)


def plain_pickle(path):
    path.write_bytes(pickle.dumps({"model": Bomb(path.parent / NAME)}))


def bomb_before_the_tensors(path):
    """In a whole checkpoint's own file: a pickle of two parts, the first of which runs."""
    torch.save({"model": {"a": torch.zeros(2)}}, path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            archive.writestr(name, pickle.dumps(Bomb(path.parent / NAME)) if name.endswith("/data.pkl") else data)


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


TRAPS = {"as torch saves it": saved_bomb, "as old torch saved it": lambda path: saved_bomb(
    path, _use_new_zipfile_serialization=False), "as Python pickles": plain_pickle,
         "in a checkpoint's zip": bomb_before_the_tensors}


@pytest.mark.parametrize("trap", TRAPS)
def test_the_traps_work(trap, tmp_path):
    TRAPS[trap](tmp_path / "w.pth")
    if trap == "as Python pickles":
        pickle.loads((tmp_path / "w.pth").read_bytes())
    else:
        torch.load(tmp_path / "w.pth", weights_only=False)
    assert (tmp_path / NAME).exists()


DOORS = {"test": ("TEST.WEIGHT", "{folder}/w.pth"), "export": ("--weight", "{folder}/w.pth", "--output", "{folder}/x.npz"),
         "draw": ("--weight", "{folder}/w.pth", "--output", "{folder}/x.png"),
         "train": ("MODEL.PATCH_SIZE", "0", "MODEL.PRETRAIN_PATH_T", "{folder}/w.pth"),
         "convert": ("{folder}/w.pth", "{folder}/out.pth", "--to", "ours")}
CASES = [Case(f"{command} of a bomb {trap}", command, lambda place, make=make: make(place.folder / "w.pth"), words,
              ("{folder}/w.pth", "plain tensors"))
         for command, words in DOORS.items() for trap, make in TRAPS.items()]


@table(CASES)
def test_a_bomb_is_refused(case, place, command):
    run_case(case, place, command)
    assert not (place.folder / NAME).exists()


@table([Case(command, command, lambda place: TRAPS["as torch saves it"](place.folder / "w.pth"), words, ("{folder}/w.pth",))
        for command, words in (("test_seps", ("TEST.WEIGHT", "{folder}/w.pth")), ("train_seps", (
            "MODEL.PATCH_SIZE", "0", "MODEL.TRANSFORMER_TYPE", "vit_tiny_patch16_224", "MODEL.PRETRAIN_PATH_T",
            "{folder}/w.pth")))])
def test_a_bomb_is_refused_by_seps(case, place, shapes_root, command):
    run_case(case, place._replace(root=shapes_root), command)
    assert not (place.folder / NAME).exists()


def test_a_program_is_no_checkpoint_and_no_weights_of_a_plain_backbone(place, command):
    path = place.folder / "w.pth"
    program(path)
    torch.jit.load(path)
    assert (place.folder / NAME).exists()  # the trap works
    (place.folder / NAME).unlink()
    words = ("MODEL.TRANSFORMER_TYPE", "vit_base_patch16_224", *DOORS["train"])
    for name, given in (("test", DOORS["test"]), ("train", words)):
        run_case(Case("", name, lambda place: None, given, ("{folder}/w.pth",)), place, command)
    assert "plain tensors" in message(lambda: read_source("test_vit", str(path)))
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


# Claims larger than the file

def endless(content):
    """Sixteen bytes that say they are a classifier of 10^12 identities."""
    content["model"]["heads.original.classifier.weight"] = torch.zeros(4).as_strided((10**12, 64), (0, 0))


def sparse(content):
    content["model"]["backbone.vit.norm.weight"] = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.long), [], (64,))


def on_meta(content):
    content["model"]["backbone.vit.norm.weight"] = torch.empty(64, device="meta")


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("change", [endless, sparse, on_meta])
def test_a_tensor_whose_numbers_are_not_there_is_none(change, place, command):
    weights_for(place.root, place.folder / "w.pth", change)
    assert os.path.getsize(place.folder / "w.pth") < 10**7
    run_case(Case("", "test", lambda place: None, DOORS["test"], ("{folder}/w.pth",)), place, command)


def test_training_takes_no_program_for_weights_by_name(place, command):
    """`hub` is the one word that reaches out; a web address is a file that is not there."""
    words = cli_args_for(place.root, "MODEL.PATCH_SIZE", "0", "MODEL.PRETRAIN_PATH_T", "https://example.org/w.pth")
    code, _, stderr = command(train_net.main, *words, "OUTPUT_DIR", place.folder / "output")
    assert code == 2 and "does not exist" in stderr
