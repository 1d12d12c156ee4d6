"""Hostile checkpoints and words of the other commands: one sentence, exit code 2, nothing written."""
import os

import pytest
import torch
from hostile import Case, run_case, table, weights_for
from weight_files import save_archive, save_safetensors

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


def flipped(place):
    """A bit of the pickle is another one."""
    path = weights_for(place.root, place.folder / "w.pth")
    content = bytearray(path.read_bytes())
    content[content.index(b"data.pkl") + 100] ^= 0xff
    path.write_bytes(content)


def with_norm(tensor):
    return weights(lambda content: content["model"].update({NORM: tensor}))


CHECKPOINTS = [
    ("that is not there", nothing, ["w.pth do not exist"]),
    ("that is a folder", lambda place: (place.folder / "w.pth").mkdir(), ["are a folder", "last.pth"]),
    ("that is a dead link", lambda place: (place.folder / "w.pth").symlink_to("nowhere"), ["do not exist"]),
    ("that is a pipe", lambda place: os.mkfifo(place.folder / "w.pth"), ["do not exist"]),
    ("of nothing", data(b""), ["cannot be read"]),
    ("of zeros", data(bytes(10_000)), ["cannot be read"]),
    ("of a web page", data(b"<!DOCTYPE html><html>"), ["cannot be read"]),
    ("that ends early", cut(0.5), ["cannot be read", "cut short"]),
    ("that lacks its last byte", cut(0.99999), ["cannot be read"]),
    ("with other bytes in it", flipped, ["w.pth"]),
    ("of safetensors", lambda place: save_safetensors({"a": torch.zeros(2)}, place.folder / "w.pth"), ["cannot be read"]),
    ("that is a program", lambda place: save_archive({"a": torch.zeros(2)}, place.folder / "w.pth"), ["cannot be read"]),
    ("of a number", saved(3), ["no weights of this model"]),
    ("of a list", saved([torch.zeros(2)]), ["no weights of this model"]),
    ("of a tensor", saved(torch.zeros(2)), ["no weights of this model"]),
    ("of another model", saved({"a": torch.zeros(3)}), ["no weights of this model"]),
    ("of a number for a tensor", saved({"model": {"a": 3}}), ["no weights of this model"]),
    ("of a list for a state dict", saved({"model": [1]}), ["no weights of this model"]),
    ("of numbered tensors", saved({1: torch.zeros(2)}), ["no weights of this model"]),
    ("of texts for tensors", weights(lambda content: {"model": dict.fromkeys(content["model"], "text")}), ["no weights"]),
    ("that lacks a tensor", weights(lambda content: content["model"].pop(NORM) is None), [f"{NORM} is missing"]),
    ("with a tensor too many", weights(lambda content: content["model"].update(more=torch.zeros(2))), ["more is not part"]),
    ("with a tensor of another shape", with_norm(torch.zeros(3)), [f"{NORM} has the shape (3,), not (64,)"]),
    ("with a tensor without a shape", with_norm(torch.tensor(1.0)), [f"{NORM} has the shape ()"]),
    ("with numbers that are none", with_norm(torch.full((64,), torch.nan)), ["not finite"]),
    ("with numbers too large", with_norm(torch.full((64,), torch.inf)), ["not finite"]),
    ("of another data set", weights(lambda content: content.update(dataset="MSVR310")), ["were trained on MSVR310"]),
    ("of fewer cameras", lambda place: weights_for(place.root, place.folder / "w.pth", cameras=2), ["2 cameras", "has 4"]),
    ("whose name is too long", nothing, ["File name too long"]),
]
LONG = ("--weight", "a" * 300)


@table([Case(f"a checkpoint {name}", "test", make, LONG if "too long" in name else FILE, tuple(says))
        for name, make, says in CHECKPOINTS])
def test_a_damaged_checkpoint_is_reported_in_one_sentence(case, place, command):
    run_case(case, place, command)


@pytest.mark.parametrize("cameras", [-5, 10**12, "many", None, True])
def test_what_a_checkpoint_says_of_cameras_is_not_trusted(cameras, place, command):
    """The embedding of the cameras is for as many as it is."""
    weights_for(place.root, place.folder / "w.pth", lambda content: content.update(camera_num=cameras))
    run_case(Case("", "test", nothing, FILE, ()), place, command)


NPZ = "must be a file ending in .npz"
OUTPUTS = {"x.txt": NPZ, "x": NPZ, "": NPZ, "folder.npz": NPZ, "file/x.npz": NPZ, f"{'a' * 300}.npz": "File name too long"}
WORDS = [
    *(Case(f"an export to {name[:20]!r}", "export", lambda place: (
        weights_for(place.root, place.folder / "w.pth"), (place.folder / "folder.npz").mkdir(),
        (place.folder / "file").touch()),
        (*FILE, "--output", "{folder}/" + name), ("{folder}", said)) for name, said in OUTPUTS.items()),
    Case("an export of no split", "export", nothing, ("--split", "validation", "--output", "x.npz"), ("--split",)),
    Case("an export of no pattern", "export", nothing, ("--return_pattern", "7", "--output", "x.npz"), ("--return",)),
    Case("an export without an output", "export", nothing, (), ("--output",)),
    Case("no weights", "test", nothing, (), ("No weights to evaluate", "TEST.WEIGHT", "--weight")),
    Case("numbers to a folder", "test", nothing, (*FILE, "--json", "{folder}"), ("a file ending in .json",)),
    Case("a conversion of nothing", "convert", nothing, ("{folder}/a.pth", "{folder}/b.pth", "--to", "ours"), ("do not",)),
    Case("a conversion to a folder", "convert", nothing, ("{folder}/a.pth", "{folder}", "--to", "ours"), ("ending in .pth",)),
    Case("a conversion to nobody", "convert", nothing, ("a.pth", "b.pth", "--to", "theirs"), ("--to", "theirs")),
    Case("fewer than no pedestrians", "synthetic", nothing, ("--root", "{folder}/x", "--identities", "-1"), ("--identities",)),
    Case("too many pedestrians", "synthetic", nothing, ("--root", "{folder}/x", "--identities", "9999999"), ("--identities",)),
    Case("pedestrians of no height", "synthetic", nothing, ("--root", "{folder}/x", "--height", "0"), ("--height",)),
    Case("pedestrians into a file", "synthetic", lambda place: (place.folder / "x").touch(), ("--root", "{folder}/x"), (
        "{folder}/x",)),
    Case("pedestrians over a real data set", "synthetic", lambda place: (place.root / "RGBNT201" / "synthetic.json").unlink(),
         ("--root", "{root}", "--overwrite"), ("did not make it",)),
    Case("rank lists of no query", "draw", nothing, (*FILE, "--queries", "0"), ("--queries",)),
]


@table(WORDS)
def test_words_that_mean_nothing_are_reported_in_one_sentence(case, place, command):
    run_case(case, place, command)
