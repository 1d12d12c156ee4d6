"""Features on the disk, ranked and searched block by block, with the results of features in memory; demo-sdtps rank."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import cli_args_for, near, read_rows, read_scores
from feature_stores import make_blocks
from numeric import numpy_generator

from demo_sdtps.commands import search
from demo_sdtps.commands import test as test_net
from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets import Sample
from demo_sdtps.retrieval import export as exporting
from demo_sdtps.retrieval import nearest as exact
from demo_sdtps.retrieval import table
from demo_sdtps.retrieval.engine import table_schema
from demo_sdtps.retrieval.nearest import nearest
from demo_sdtps.retrieval.ranking import open_features
from demo_sdtps.retrieval.table import create_table

pytestmark = pytest.mark.usefixtures("shallow")
SETTINGS = ()
FACTS = {"split": "gallery", "return_pattern": 3, "checkpoint_sha256": "0", "normalised": False}
FACTS |= {"data_set": "RGBNT201", "configuration": {"sources": [1, 2, 4]}}


def write(folder, features, ids, cams):
    """An export of features (n, D)."""
    samples = [
        Sample((f"{number}.jpg", "ni", "ti"), int(identity), int(camera))
        for number, (identity, camera) in enumerate(zip(ids, cams, strict=True))
    ]
    facts = {**FACTS, "rows": len(features)}
    schema = table_schema(exporting.COLUMNS, features.shape[1], str(features.dtype))
    table = create_table(folder, facts, schema, "")
    for start in range(0, len(features), exporting.ROW_GROUP):
        rows = range(len(features))[start : start + exporting.ROW_GROUP]
        group = samples[rows.start : rows.stop]
        columns = exporting.sample_columns(rows, group, facts, MODALITIES)
        table.put(columns, features[rows.start : rows.stop])
    return folder


def test_a_streamed_search_is_that_in_memory(tmp_path, monkeypatch):
    """A third of the gallery are copies; ties are in the order of the paths."""
    for module in (exact, table):
        monkeypatch.setattr(module, "READ_ELEMENTS", 100)
    draws = numpy_generator(2)
    gallery = draws.standard_normal((40, 16)).astype(np.float16)
    gallery[28:] = gallery[draws.integers(0, 28, 12)]
    actual = open_features(write(tmp_path / "x", gallery, range(40), range(40)))
    whole = torch.nn.functional.normalize(torch.from_numpy(gallery).float()).numpy()
    names = [f"{number}.jpg" for number in range(40)]
    expected = nearest(whole[::9], make_blocks(whole, names, 40), 15)
    hits = nearest(whole[::9], actual.features, 15)
    assert all(map(np.array_equal, hits, expected))


@pytest.fixture
def run_rank(success):
    """Call demo-sdtps rank, which writes x.json, unless there is nothing to score, and x.csv: → what it prints, mAP and the
    lines of the CSV file."""

    def call(query, gallery, *words, scored=True):
        outputs = ("--csv", "x.csv", "--overwrite", *(("--json", "x.json") if scored else ()))
        stdout = success(search.rank, "--query", query, "--gallery", gallery, *outputs, *words)
        header, *lines = read_rows("x.csv")
        assert header == ["query", "rank", "gallery", "distance"]
        record = json.loads(Path("x.json").read_text())["patterns"] if scored else None
        return stdout, record, lines

    return call


def test_ranking_exported_features_gives_the_figures_of_the_test_command(
    export, run_rank, success, tiny_root, weights
):
    """Queries from a file and from a table, of the same pattern, by test_net.py and demo-sdtps rank."""
    for name, words in {"q": ("--split", "query"), "g": ()}.items():
        export(f"{name}.npz", *words)
        export(name, *words)
    words = cli_args_for(tiny_root, "--weight", weights, "--json", "t.json")
    success(test_net.main, *words)
    for query, gallery in (("q.npz", "g"), ("q", "g.npz")):
        stdout, record, lines = run_rank(query, gallery, "--top", 4)
        assert "32 queries" in stdout and "3 both" in stdout
        assert record == near({"3": read_scores("t.json")["3"]}) and len(lines) == 32 * 4
        assert all(query == hit for query, _, hit, _ in lines[::4])
    assert len(run_rank("q", "g", "--top", 1000)[2]) == 32 * 32


@pytest.mark.slow
def test_exports_of_other_modalities_have_the_figures_of_the_matrix(
    export, run_rank, success, tiny_root, weights
):
    """RGB in complete triplets, and RGB and NI in NI and TI; without a common modality the queries have no hits."""
    for name, case in {"R": "nt", "RN": "t", "NT": "r", "RNT": "None"}.items():
        export(f"{name}.npz", "TEST.MISS", case)
        export(name, "TEST.MISS", case)
    for how in ("shared", "all"):
        words = cli_args_for(tiny_root, "--weight", weights, "--json", "t.json", "--cross_modal")
        success(test_net.main, *words, "--overwrite", "TEST.CROSS_MODAL_DISTANCE", how)
        matrix = json.loads(Path("t.json").read_text())["cross_modal"]["mAP"]
        words = ("--top", 4, "--cross_modal_distance", how)
        for query, gallery in (("R", "RNT"), ("RN", "NT"), ("RNT", "RN")):
            stdout, record, lines = run_rank(f"{query}.npz", gallery, *words)
            assert "WARNING" not in stdout and len(lines) == 32 * 4
            expected = pytest.approx(matrix[query][gallery], abs=1 / 32 / 12)
            assert record["3"]["mAP"] == expected
        stdout, _, lines = run_rank("R", "NT.npz", *words)
        is_told = "any of the gallery: 32 of 32 (RGB); --cross_modal_distance all" in stdout
        assert is_told == (how == "shared") and len(lines) == (0 if is_told else 32 * 4)


def test_own_images_are_searched_in_an_export_of_a_data_set(export, run_rank, refusal, tmp_path):
    """Copies of some of its images; nothing is scored, as they have no labels."""
    export("g")
    copied = [*map(str, open_features(tmp_path / "g").names)][::9]
    (tmp_path / "photos").mkdir()
    for number, name in enumerate(copied):
        shutil.copy(name, tmp_path / "photos" / f"{number}{Path(name).suffix}")
    export("q.npz", "--images", tmp_path / "photos", "--modality", "RGB")
    for gallery, text in (("g", "features are of Images and"), ("q.npz", "or not known, so")):
        sentence = refusal(search.rank, "--query", "q.npz", "--gallery", gallery)
        assert text in sentence and "--csv" in sentence
    stdout, _, hits = run_rank("q.npz", "g", scored=False)
    assert "mAP" not in stdout
    assert [(Path(query).stem, int(rank)) for query, rank, _, _ in hits] == [
        (str(number), rank) for number in range(len(copied)) for rank in range(1, 11)
    ]
    lines = [(query, float(distance)) for query, _, _, distance in hits]
    assert sorted(lines) == lines
    _, _, hits = run_rank("q.npz", "q.npz", scored=False)
    nearest_names = [query == name for query, rank, name, _ in hits if rank == "1"]
    assert all(nearest_names) and len(nearest_names) == len(copied)


def test_features_that_cannot_be_compared_are_refused(export, refusal, tmp_path):
    write(tmp_path / "other", np.eye(3, dtype=np.float32), range(3), range(3))
    export("q.npz", "--split", "query")
    export("m.npz", "MODEL.SDTPS_BETA", 0.1)
    export("n.npz", "TEST.NECK_FEAT", "after")
    export("g", "--return_pattern", "1")
    for gallery, what in (
        ("g", "return_pattern, 3 and 1"),
        ("other", "checkpoint_sha256;"),
        ("m.npz", "MODEL.SDTPS_BETA, "),
        ("n.npz", "TEST.NECK_FEAT, 'before' and 'after'"),
    ):
        sentence = refusal(search.rank, "--query", "q.npz", "--gallery", gallery)
        assert f"are of different values of {what}" in sentence


def test_a_condition_leaves_some_of_the_gallery(export, run_rank, refusal):
    """The hits are those of the whole gallery that are left, and the figures are of these alone."""
    export("q.npz", "--split", "query")
    export("g")
    _, whole, lines = run_rank("q.npz", "g", "--top", 32)
    of_camera = {name for name, camera in zip(*read_cameras("g"), strict=True) if camera == 1}
    _, record, hits = run_rank("q.npz", "g", "--top", 32, "--where", "camera <> 1 AND row >= 0")
    expected = [(query, hit) for query, _, hit, _ in lines if hit not in of_camera]
    assert [(query, hit) for query, _, hit, _ in hits] == expected and len(hits) < len(lines)
    assert record != whole
    words = ("--query", "q.npz", "--gallery")
    for gallery, where, told in (
        ("g", "kamera <> 1", "camera (int64)"),
        ("g", "camera = 77", "leaves none of the rows of g"),
        ("q.npz", "camera = 1", "--where needs a table, but q.npz is a file"),
    ):
        assert told in refusal(search.rank, *words, gallery, "--where", where)


def read_cameras(place):
    features = open_features(place)
    return map(str, features.names), features.cams


def rank_and_search(folder):
    actual = open_features(folder)
    queries = actual.features.take(np.arange(50))
    nearest(queries, actual.features, 3)
