"""Wrong checkpoints and arguments of the commands: one sentence, exit code 2, nothing written."""
import os
import tempfile
from pathlib import Path

import pytest
import torch
from hostile import Case, run_case, table, weights_for
from weight_files import save_safetensors

from demo_sdtps.modeling.checkpoint import read_checkpoint, stored_config
from demo_sdtps.modeling.pretrained import read_weights

FILE = ("--weight", "{folder}/w.pth")
NORM = "backbone.vit.norm.weight"


def nothing(place):
    """Nothing is made: the words are enough."""


def weights(change):
    return lambda place: weights_for(place.root, place.folder / "w.pth", change)


def saved(content):
    return lambda place: torch.save(content, place.folder / "w.pth")


def data(content):
    return lambda place: (place.folder / "w.pth").write_bytes(content)


def cut(part):
    def make(place):
        path = weights_for(place.root, place.folder / "w.pth")
        os.truncate(path, int(path.stat().st_size * part))

    return make


def with_norm(tensor):
    return weights(lambda content: content["model"].update({NORM: tensor}))


CHECKPOINTS = [
    ("that is not there", nothing, ["w.pth do not exist"]),
    ("that is a folder", lambda place: (place.folder / "w.pth").mkdir(), ["are a folder", "last.pth"]),
    ("of a web page", data(b"<!DOCTYPE html><html>"), ["cannot be read"]),
    ("that ends early", cut(0.5), ["cannot be read", "cut short"]),
    ("of safetensors", lambda place: save_safetensors({"a": torch.zeros(2)}, place.folder / "w.pth"), ["cannot be read"]),
    ("of another model", saved({"a": torch.zeros(3)}), ["no weights of this model"]),
    ("that lacks a tensor", weights(lambda content: content["model"].pop(NORM) is None), [f"{NORM} is missing"]),
    ("with a tensor too many", weights(lambda content: content["model"].update(more=torch.zeros(2))), ["more is not part"]),
    ("with a tensor of another shape", with_norm(torch.zeros(3)), [f"{NORM} has the shape (3,), not (64,)"]),
    ("with numbers that are none", with_norm(torch.full((64,), torch.nan)), ["not finite"]),
    ("with features whose squares overflow", with_norm(torch.full((64,), 1e19)), ["not finite"]),
    ("of another data set", weights(lambda content: content.update(dataset="MSVR310")), ["were trained on MSVR310"]),
    ("of fewer cameras", lambda place: weights_for(place.root, place.folder / "w.pth", cameras=2), ["2 cameras", "has 4"]),
]


@table([Case(f"a checkpoint {name}", "test", make, FILE, tuple(says)) for name, make, says in CHECKPOINTS])
def test_a_wrong_checkpoint_is_reported_in_one_sentence(case, place, command):
    run_case(case, place, command)


@pytest.fixture
def locked():
    """A checkpoint that this process may not read: of another user, where this one may read everything."""
    own = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:  # the tests' own folder is closed to others
        os.chmod(folder, 0o755)
        path = Path(folder) / "last.pth"
        torch.save({"model": {"a": torch.zeros(2)}}, path)
        os.chmod(path, 0o600 if own == 0 else 0)
        if own == 0:
            os.seteuid(65534)
        yield path
        os.seteuid(own)


@pytest.mark.parametrize("read", [read_checkpoint, stored_config, read_weights], ids=lambda read: read.__name__)
def test_weights_without_permission_are_not_damaged(read, locked, command):
    code, _, stderr = command(lambda: read(locked))
    assert code == 2 and stderr.startswith(f"error: {locked}: the system says 'Permission denied'")


WORDS = [
    Case("no weights", "test", nothing, (), ("No weights to evaluate", "TEST.WEIGHT", "--weight")),
    Case("numbers to a folder", "test", nothing, (*FILE, "--json", "{folder}"), ("a file ending in .json",)),
    Case("a conversion of nothing", "convert", nothing, ("{folder}/a.pth", "{folder}/b.pth", "--to", "ours"), ("do not",)),
    Case("fewer than no pedestrians", "synthetic", nothing, ("--root", "{folder}/x", "--identities", "-1"), ("--identities",)),
    Case("pedestrians into a file", "synthetic", lambda place: (place.folder / "x").touch(), ("--root", "{folder}/x"), (
        "{folder}/x",)),
    Case("pedestrians over a real data set", "synthetic", lambda place: (place.root / "RGBNT201" / "synthetic.json").unlink(),
         ("--root", "{root}", "--overwrite"), ("did not make it",)),
    Case("rank lists of no query", "draw", nothing, (*FILE, "--queries", "0"), ("--queries",)),
]


@table(WORDS)
def test_words_that_mean_nothing_are_reported_in_one_sentence(case, place, command):
    run_case(case, place, command)
