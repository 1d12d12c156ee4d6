"""Hostile checkpoints and words of the other commands: one sentence, exit code 2, nothing written."""
import os
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hostile import Case, run_case, table, weights_for
from weight_files import save_archive, save_safetensors

from demo_sdtps.config import UserError
from demo_sdtps.engine.checkpoint import read_checkpoint, stored_config
from demo_sdtps.engine.evaluation.metrics import squared_distances
from demo_sdtps.engine.run.resume import read_last
from demo_sdtps.engine.runtime import check_features
from demo_sdtps.modeling.pretrained import read_weights

FILE = ("--weight", "{folder}/w.pth")
NORM, THEIR_NORM = "backbone.vit.norm.weight", "BACKBONE.base.norm.weight"


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


def with_tensors(more):
    return weights(lambda content: content["model"].update(more(content["model"])))


def deflated(place):
    """Zeros that take a hundredth of their size on disk."""
    path = weights_for(place.root, place.folder / "w.pth", lambda content: content.update(more=torch.zeros(2_000_000)))
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


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
    ("with features whose squares overflow", with_norm(torch.full((64,), 1e19)), ["too large to be normalised"]),
    ("with a tensor under two names", with_tensors(lambda model: {f"module.{NORM}": model[NORM] + 1}),
     [f"{NORM} and module.{NORM} are both in it"]),
    ("with a tensor under the name of an old version too", with_tensors(
        lambda model: {NORM.replace("backbone", "trunk"): model[NORM]}), ["are both in it", "trunk.vit.norm.weight"]),
    ("with a tensor under DeMo's name too", with_tensors(lambda model: {THEIR_NORM: model[NORM]}),
     [f"{NORM} and {THEIR_NORM} are both in it"]),
    *((f"of {kind} for numbers", with_norm(torch.ones(64).to(getattr(torch, kind))), [f"{NORM} as torch.{kind} in place of"])
      for kind in ("int64", "bool", "complex64")),
    ("that is compressed", deflated, ["are compressed", "expand to"]),
    ("of another data set", weights(lambda content: content.update(dataset="MSVR310")), ["were trained on MSVR310"]),
    ("of fewer cameras", lambda place: weights_for(place.root, place.folder / "w.pth", cameras=2), ["2 cameras", "has 4"]),
    ("whose name is too long", nothing, ["File name too long"]),
]
LONG = ("--weight", "a" * 300)


@table([Case(f"a checkpoint {name}", "test", make, LONG if "too long" in name else FILE, tuple(says))
        for name, make, says in CHECKPOINTS])
def test_a_damaged_checkpoint_is_reported_in_one_sentence(case, place, command):
    run_case(case, place, command)


LARGE = with_norm(torch.full((64,), 1e19))


@table([Case(" ".join((command, *words)), command, LARGE, (*FILE, *words), ("too large to be normalised",))
        for command, *words in (("test", "TEST.FEAT_NORM", "no"), ("test", "TEST.RE_RANKING", "yes"),
                                ("export", "--output", "{folder}/x.npz"), ("draw", "--output", "{folder}/x.png"),
                                ("tokens", "--output", "{folder}/x.png"))])
def test_features_whose_squares_overflow_are_refused_by_every_command(case, place, command):
    """They are finite, but their normalised values would be zeros."""
    run_case(case, place, command)


@pytest.mark.parametrize("length", [9e18, 1e19])
def test_the_longest_features(length):
    """Those that are accepted have finite distances and a length of 1 when they are normalised."""
    features = torch.tensor([[length, 0.0], [-length, 0.0]])
    whole = bool(squared_distances(features, features).isfinite().all())
    if whole:
        check_features("The features", [features])
        assert F.normalize(features, dim=1).norm(dim=1).tolist() == [1, 1]
    else:
        with pytest.raises(UserError, match="too large"):
            check_features("The features", [features])
    assert whole == (length < 1e19)


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


@pytest.mark.parametrize("read", [read_checkpoint, stored_config, read_weights, lambda path: read_last(path.parent)],
                         ids=["weights", "configuration", "pretrained weights", "a run to resume"])
def test_weights_without_permission_are_no_damaged_ones(read, locked, command):
    code, _, stderr = command(lambda: read(locked))
    assert code == 2 and stderr.startswith((f"error: The weights {locked} may not be read (Permission denied); correct the",
                                            f"error: {locked}: the system says 'Permission denied'; correct the path, its"))
    assert stderr.count("\n") == 1


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
