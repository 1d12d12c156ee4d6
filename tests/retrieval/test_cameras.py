"""Cameras of a search: labels of names and of tables go into the features, other cameras have the mean of the model's."""

import csv

import numpy as np
import pytest
from commands import KEEP_ALL, assert_same_hits, contents, copy, file_cameras, read_rows

import demo_sdtps
from demo_sdtps.commands import search
from demo_sdtps.config import MODALITIES, UserError, load_cfg
from demo_sdtps.datasets.own import read_triplets
from demo_sdtps.retrieval.reid import trained_cameras
from tests.reference import search as reference

SETTINGS = KEEP_ALL
PATTERN = r"^(?P<identity>\d+)_(?P<light>day)?_cam(?P<camera>\w+)"
OTHER = "roof"


@pytest.fixture
def place(files, tmp_path, monkeypatch):
    """The current folder: `photos` of five triplets, named by cameras, one unknown and one none; a `table.csv`; a `query`."""
    monkeypatch.chdir(tmp_path)
    cameras = [*map(str, np.add(file_cameras(files), 1)), OTHER][1:]
    names = [f"{n}_{'day' if n % 2 else ''}_cam{camera}" for n, camera in enumerate(cameras)]
    names[1] = "unnamed"
    for modality in MODALITIES:
        for name, path in zip(names, files[modality.lower()], strict=True):
            copy(path, tmp_path / "photos" / modality / f"{name}.jpg")
        if modality != "TI":
            copy(files[modality.lower()][1], tmp_path / "query" / modality / "x.jpg")
    with open("table.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["split", "identity", "camera", "time", *map(str.lower, MODALITIES)])
        for name, camera in zip(names, cameras, strict=True):
            camera = "" if name == "unnamed" else camera
            paths = [f"photos/{modality}/{name}.jpg" for modality in MODALITIES]
            writer.writerow(["gallery", name[0], camera, "2026-01-01", *paths])
        writer.writerow(["query", "0", "3", "", "query/RGB/x.jpg", "query/NI/x.jpg", ""])
    return tmp_path


@pytest.fixture
def run(command, weights, place):
    """Call the command with hits in x.csv: → (exit code, stdout, stderr)."""
    words = ("--weight", weights, "--index", "kept", "--csv", "x.csv", "--overwrite")
    return lambda *more: command(search.main, *words, *more)


def hits(weights, place, cameras, camera):
    """The rows of x.csv by the slow search, for cameras of the gallery in the order of its files, and that of the query."""
    reid = demo_sdtps.load(weights, "MODEL.DEVICE", "cpu", "TEST.CROSS_MODAL_DISTANCE", "all")
    paths = [sorted((place / "photos" / modality).iterdir()) for modality in MODALITIES]
    gallery = reid.features(*paths, camera=cameras)
    query = reid.features(*(f"query/{name}/x.jpg" for name in MODALITIES[:2]), camera=camera)
    names = [f"photos/RGB/{path.name}" for path in paths[0]]
    sides = (side.values.tolist() for side in (query, gallery))
    (line,) = reference.nearest(*sides, names, len(names))
    return [("query/RGB/x.jpg", str(n), name, far) for n, (far, name) in enumerate(line, start=1)]


FOLDERS = ("--gallery", "photos", "--query", "query", "TEST.CROSS_MODAL_DISTANCE", "all")
TABLE = ("--gallery", "table.csv", "--query", "table.csv", "TEST.CROSS_MODAL_DISTANCE", "all")


@pytest.mark.parametrize(
    "words", [(*FOLDERS, "--pattern", PATTERN, "--camera", "3"), TABLE], ids=("names", "table")
)
def test_known_cameras_go_into_the_features(run, weights, place, files, words):
    """Of the gallery by its labels, of the query by --camera or the table; a camera that the training did not have is told."""
    code, stdout, stderr = run(*words)
    assert code == 0, stderr
    told = "not trained on, so that the mean of its own (1, 2, 3, 4) is taken: no camera, roof"
    assert told in stdout
    first, _, *others = file_cameras(files)[1:]
    expected = hits(weights, place, [first, *others, None, None], 2)
    assert_same_hits(read_rows("x.csv")[1:], expected)
    unknown = hits(weights, place, None, None)
    assert max(abs(a[3] - b[3]) for a, b in zip(expected, unknown, strict=True)) > 0.01
    if "--camera" not in words:  # nothing is mixed up where other cameras are asked for
        assert "no change" in run(*words)[1]


def test_an_index_of_other_cameras_is_brought_up_to_date(run, weights, place):
    labelled = (*FOLDERS, "--pattern", PATTERN)
    for words, changes in (
        (FOLDERS, "5 new"),
        (labelled, "5 new"),
        (labelled, "no change"),
        ((*labelled, "--gallery_camera", "2"), "1 changed"),
        ((*FOLDERS, "--gallery_camera", "2"), "5 new"),
        (FOLDERS, "5 new"),
    ):
        code, stdout, stderr = run(*words)
        assert code == 0 and f"5 triplets ({changes})" in stdout, stdout + stderr
        if "--gallery_camera" in words and "--pattern" not in words:
            assert_same_hits(read_rows("x.csv")[1:], hits(weights, place, 1, None))
    assert_same_hits(read_rows("x.csv")[1:], hits(weights, place, None, None))


@pytest.mark.parametrize("words", [("--pattern", "cam"), ("--pattern", "(")])
def test_a_wrong_pattern_is_refused(run, place, words):
    before = contents(place)
    code, _, stderr = run(*FOLDERS, *words)
    assert code == 2 and words[1] in stderr and contents(place) == before


def test_labels_of_a_table_and_of_a_pattern(place):
    """Texts as they are; none where there is none."""
    table = read_triplets(place / "table.csv", "gallery", MODALITIES)
    assert [triplet.name for triplet in table] == sorted(triplet.name for triplet in table)
    by_name = {triplet.name: triplet for triplet in table}
    roof = next(triplet for triplet in table if OTHER in triplet.name)
    expected = {"identity": roof.name[len("photos/RGB/")], "camera": OTHER, "time": "2026-01-01"}
    assert roof.labels == expected and roof.modalities == MODALITIES
    assert "camera" not in by_name["photos/RGB/unnamed.jpg"].labels
    (query,) = read_triplets(place / "table.csv", "query", ("RGB",))
    assert query.labels == {"identity": "0", "camera": "3"} and query.modalities == ("RGB",)
    text = (place / "table.csv").read_text().replace("split,", "kind,")
    (place / "whole.csv").write_text(text)
    whole = read_triplets(place / "whole.csv", "gallery", MODALITIES, camera="4")
    assert len(whole) == 6 and {one.labels["kind"] for one in whole} == {"gallery", "query"}
    cameras = {triplet.name: triplet.labels["camera"] for triplet in whole}
    assert cameras["photos/RGB/unnamed.jpg"] == "4" and cameras["query/RGB/x.jpg"] == "3"


@pytest.mark.parametrize("text", ["camera\n1\n", "rgb\nlost.jpg\n"])
def test_mistakes_in_a_table_are_told(place, text):
    (place / "bad.csv").write_text(text)
    with pytest.raises(UserError, match=r"bad\.csv"):
        read_triplets(place / "bad.csv", "gallery", MODALITIES)


def test_what_the_cameras_of_a_training_are_called(weights, files, caplog):
    """As its checkpoint records, or as the files of the published data set have them; that there is none is told once."""
    reid = demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")
    assert np.array_equal(reid.features(**files, camera="2"), reid.features(**files, camera=1))
    mixed = reid.features(**files, camera=["4", None, OTHER, 0, "1\u00a0"])
    assert np.array_equal(mixed, reid.features(**files, camera=[3, None, None, 0, 0]))
    assert caplog.text.count("Triplets without a camera") == caplog.text.count("of its 4,") == 1
    for name, expected in (("RGBNT201", ["1", "2"]), ("MSVR310", ["0", "1"]), ("CSV", [])):
        cfg = load_cfg(None, ["DATASETS.NAMES", name])
        assert trained_cameras(cfg, {}, 2) == expected
