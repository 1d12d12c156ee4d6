"""Damaged and unusual data sets: reported in one sentence before anything is written, a warning, or as good as others."""
import json
import os
import shutil

import numpy as np
import pytest
from commands import QUERIES, scores_of
from hostile import Case, run_case, table, weights_for
from triplets import config

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets import read_splits


def folders(place, split="test"):
    return [place.root / "RGBNT201" / split / modality for modality in MODALITIES]


def rename(place, name):
    """Give a triplet another name."""
    old = place.image().name
    for folder in folders(place):
        os.rename(os.fsencode(folder / old), os.path.join(os.fsencode(folder), os.fsencode(name)))


def link_to_nothing(place):
    path = place.image()
    path.unlink()
    path.symlink_to("nowhere.jpg")


def keep(chosen, split="test"):
    """Remove the triplets whose names `chosen` does not want."""
    def change(place):
        for folder in folders(place, split):
            for path in folder.iterdir():
                if not chosen(path.name):
                    path.unlink()

    return change


def add_identity(place, name="000099_cam1_0_00.jpg", split="test"):
    for folder in folders(place, split):
        shutil.copy(sorted(folder.iterdir())[0], folder / name)


TOLD = [
    ("a triplet without NI", lambda place: place.image().unlink(), ["has no NI image", "is missing; add it"]),
    ("a link to nothing for an image", link_to_nothing, [".jpg is no file"]),
    ("one camera alone", keep(lambda name: "_cam1_" in name), ["No query of RGBNT201", "another camera"]),
    ("one identity to learn", keep(lambda name: name.startswith("000001"), "train_171"), ["a single identity"]),
    ("no match for any query", keep(lambda name: name[:6] in ("000007", "000008") and f"_cam{int(name[:6]) - 6}_" in name),
     ["No query of RGBNT201", "has a match in the gallery"]),
]


@table([Case(name, "train", make, (), tuple(says)) for name, make, says in TOLD])
def test_damaged_data_are_reported_in_one_sentence(case, place, command):
    run_case(case, place, command)


@pytest.mark.parametrize("name", ["000007_cam1_a b  c.jpg", "000007_cam1_Fußgänger_猫_🚶.jpg"], ids=repr)
def test_a_strange_name_is_a_name(name, place, command):
    """It is read, exported under the same name, and nothing is made of it but that."""
    rename(place, name)
    weights_for(place.root, place.folder / "w.pth")
    output = place.folder / "x.npz"
    words = ("--weight", str(place.folder / "w.pth"), "--output", str(output))
    run_case(Case("", "export", lambda place: None, words, ()), place, command)
    expected = [sample.paths for sample in read_splits(config(place.root), ["gallery"])["gallery"]]
    assert np.load(output)["paths"].tolist() == [list(paths) for paths in expected]
    assert {path.name for path in place.folder.iterdir()} == {"w.pth", "x.npz"}
    assert os.fsencode(name) in {os.path.basename(os.fsencode(paths[0])) for paths in expected}


def logged(place, command, make, *words):
    """Train for an epoch → the warnings of the log, and the last record."""
    run_case(Case("", "train", make, words, ()), place, command)
    warnings = [line.split("WARNING: ")[1] for line in (place.folder / "output" / "log.txt").read_text().splitlines()
                if "WARNING: " in line and "RANDOM" not in line]
    return warnings, json.loads((place.folder / "output" / "metrics.json").read_text())[-1]


def test_whole_data_give_no_warning(place, command):
    assert logged(place, command, lambda place: None)[0] == []


def test_files_that_are_not_read_are_a_warning_of_every_command(place, command, caplog):
    """Of a triplet in another format, in the log of a training and on the console of the others."""
    rename(place, "000007_cam1_0.heic")
    said, _ = logged(place, command, lambda place: None)
    assert said[0].startswith("3 files in the folders of the images are not read") and "_0.heic" in said[0]
    weights = weights_for(place.root, place.folder / "w.pth")
    case = Case("", "export", lambda place: None, ("--weight", str(weights), "--output", "{folder}/x.npz"), ())
    caplog.clear()
    run_case(case, place, command)
    assert caplog.messages == [f"WARNING: {said[0]}"]


def test_a_query_without_a_match_is_left_out_with_a_warning(place, command):
    """As the field scores: the figures are those of the data without it, apart from its place in the gallery."""
    said, record = logged(place, command, add_identity)
    assert said == ["1 of 33 queries have no match in the gallery (the same identity with another camera) and are not scored "
                    "(the usual protocol)."]
    assert all(0 < values["mAP"] <= 1 for values in record["patterns"].values())
    weights_for(place.root, place.folder / "w.pth")
    stdout, _ = run_case(Case("", "test", lambda place: None, ("--weight", str(place.folder / "w.pth")), ()), place, command)
    assert "33 queries, 32 with a match" in stdout


def test_an_identity_in_training_and_test_is_a_warning(place, command):
    said, _ = logged(place, command, lambda place: rename(place, "000003_cam1_0_77.jpg"))
    assert said[0].startswith("1 identities are in training and test, the first 3, so the figures are not those of unseen ones")


@pytest.mark.parametrize("more, warned", [((), True), (("INPUT.JOINT_AUGMENTATION", "True"), False),
                                          (("MODEL.SLIM_SHARED", "False"), False)])
def test_places_shared_by_modalities_that_are_cropped_apart_are_a_warning(place, command, more, warned):
    said, _ = logged(place, command, lambda place: None, "MODEL.SLIM_BLOCKS", "[1]", "MODEL.SLIM_KEEP", "[0.5]", *more)
    assert [line.endswith("set INPUT.JOINT_AUGMENTATION to True.") for line in said] == [True] * warned


def test_one_camera_to_learn_from_is_enough(place, command):
    only_one = keep(lambda name: "_cam1_" in name, "train_171")
    assert logged(place, command, only_one)[0] == []


def test_duplicates_count_as_often_as_they_are_there(place, command):
    """The same images under a second name, of the same camera: no match of each other, as the protocol leaves them out."""
    def double(place):
        for folder in folders(place):
            for path in sorted(folder.iterdir()):
                os.link(path, folder / path.name.replace(".jpg", "_again.jpg"))

    weights_for(place.root, place.folder / "w.pth")

    def hits(make):
        case = Case("", "test", make, ("--weight", "{folder}/w.pth", "--overwrite", "--json", "{folder}/x.json"), ())
        run_case(case, place, command)
        return [row["Rank-1"] for row in scores_of(place.folder / "x.json").values()]

    # Each hit and each miss comes twice: Rank-1 stays, but for a query that is as near to two images but for rounding.
    assert hits(lambda place: None) == [pytest.approx(hit, abs=1.001 / QUERIES) for hit in hits(double)]
