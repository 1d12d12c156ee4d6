"""Features as an array, as Parquet and in a table: the same in each, and nothing where an export fails."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch
from commands import KEEP_ALL, contents
from feature_stores import data_files, read_all
from numeric import assert_close, numpy_generator
from pyarrow import parquet as pq
from tiny import MODEL

import demo_sdtps
from demo_sdtps.commands import search
from demo_sdtps.commands.export import features as export_features
from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets import Sample
from demo_sdtps.modeling.checkpoints.loading import save_checkpoint
from demo_sdtps.retrieval import export as exporting
from demo_sdtps.retrieval.features import decode_present
from demo_sdtps.retrieval.ranking import open_features
from demo_sdtps.retrieval.table import open_table

pytestmark = pytest.mark.usefixtures("shallow")
SETTINGS = KEEP_ALL
PARQUET = ("--format", "parquet")
LABELS = {"ids": "identity", "cams": "camera", "scenes": "scene"}
FACTS = {"split": "gallery", "return_pattern": 3, "checkpoint_sha256": "0"}
ROWS = 24
"""Of a group, a multiple of the batch: the gallery of `tiny_root` has 32 samples, so that an export has two."""


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(exporting, "ROW_GROUP", ROWS)


def column(table):
    """The features (n, D) of a Parquet table."""
    lists = table["feature"].combine_chunks()
    return lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1).copy()


def test_tables_and_parquet_hold_what_the_array_holds(export, tmp_path):
    """To the last bit, as the batches are the same; from queries that lack TI."""
    more = ("--split", "query", "--return_pattern", "2", "--normalise", "TEST.MISS", "t")
    for name in ("x.npz", "x", "x.parquet"):
        assert "32 features in float32" in export(name, *more)
    expected, file = dict(np.load("x.npz")), pq.ParquetFile("x.parquet")
    assert set(expected["present"]) == {3}
    stored, table = open_features(tmp_path / "x", normalise=False), file.read()
    for features in (read_all(stored), column(table)):
        assert np.array_equal(features, expected["features"])
    for names in ([*map(str, stored.names)], table["name"].to_pylist()):
        assert names == expected["paths"][:, 0].tolist()
    assert np.array_equal(decode_present(expected["present"]), stored.present)
    for name, label in LABELS.items():
        assert np.array_equal(getattr(stored, name), expected[name])
        assert table[label].type == pa.int64() and table[label].to_pylist() == [*expected[name]]
    constants = {"present": "RGB,NI", "split": "query", "return_pattern": 2}
    assert {name: set(table[name].to_pylist()) for name in constants} == {
        name: {value} for name, value in constants.items()
    }
    lance = open_table(tmp_path / "x", "")
    columns = lance.read().columns
    assert columns.equals(table.drop_columns("feature").cast(columns.schema))
    paths = [columns[name.lower()].to_pylist() for name in MODALITIES]
    assert list(map(list, zip(*paths, strict=True))) == expected["paths"].tolist()
    assert stored.settings == open_features(tmp_path / "x.npz").settings
    metadata = file.schema_arrow.metadata.items()
    facts = {name.decode(): text.decode() for name, text in metadata}
    for name in ("checkpoint", "checkpoint_sha256", "data_set", "split"):
        assert facts[name] == lance.facts[name] == expected[name]
    assert facts["normalised"] == "true" and lance.facts["normalised"] is True
    configuration = json.loads(expected["configuration"].item())
    assert json.loads(facts["configuration"]) == lance.facts["configuration"] == configuration


def test_groups_are_bounded_and_half_precision_is_a_rounding(export, tmp_path):
    arrays = {}
    for dtype in ("float16", "float32"):
        export(dtype, "--dtype", dtype)
        export(f"{dtype}.parquet", "--dtype", dtype)
        stored = open_features(tmp_path / dtype, normalise=False)
        file = pq.ParquetFile(f"{dtype}.parquet")
        groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        assert groups == [24, 8] and len(data_files(dtype)) == 2
        table = file.read()
        assert table.schema.field("feature").type.value_type == getattr(pa, dtype)()
        arrays[dtype] = column(table)
        assert np.array_equal(read_all(stored), arrays[dtype])
    assert np.array_equal(arrays["float16"], arrays["float32"].astype(np.float16))


def test_features_beyond_half_precision_are_refused(export_words, weights, tmp_path, refusal):
    reid = demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")
    reid.model.backbone.vit.norm.weight.data.mul_(1e6)
    save_checkpoint(tmp_path / "large.pth", reid.cfg, reid.model, 1)
    words = (*export_words, "--weight", tmp_path / "large.pth", "--dtype", "float16")
    sentence = refusal(export_features, *words, "--output", "x.parquet")
    assert "more than float16 holds; pass --normalise" in sentence


def test_an_interrupted_export_writes_what_is_missing_alone(export, tmp_path):
    """Rows are missing, as from a process that ended."""
    export("x")
    table, before = open_table(tmp_path / "x", ""), read_all(open_features(tmp_path / "x"))
    table.handle.delete("row < 5 OR row = 30")
    with pytest.raises(UserError, match="is not complete"):
        open_features(tmp_path / "x")
    assert export("x").startswith("Wrote 6 features in float32 to x, 26 were there")
    assert_close(read_all(open_features(tmp_path / "x")), before, *MODEL, *MODEL)
    assert export("x").startswith("Wrote 0 features")


def test_a_damaged_export_is_refused(export, refusal, tmp_path):
    export("x")
    (path,) = data_files("x")[:1]
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    words = ("--query", "x", "--gallery", "x", "--csv", "x.csv")
    assert "The table x is damaged; run the export again" in refusal(search.rank, *words)
    assert "0 were there" in export("x", "--overwrite")
    read_all(open_features(tmp_path / "x"))


def test_a_table_of_another_origin_is_refused(
    export, export_words, refusal, tmp_path, own_root, weights
):
    export("x")
    other = shutil.copy(weights, tmp_path / "other.pth")
    assert "32 were there" in export("x", "--weight", other)
    changed = torch.load(other)
    next(iter(changed["model"].values())).add_(1)
    torch.save(changed, other)
    cases = {
        "another return_pattern (3, not 2)": ("--return_pattern", "2"),
        "another dtype": ("--dtype", "float16"),
        "another checkpoint;": ("--weight", other),
        "another samples;": ("DATASETS.ROOT_DIR", own_root),
        "another TEST.MISS": ("TEST.MISS", "r"),
        "another TEST.AMP": ("TEST.AMP", "bf16"),
    }
    for what, words in cases.items():
        sentence = refusal(export_features, *export_words, "--output", "x", *words)
        assert f"are of {what}" in sentence and "--overwrite" in sentence
    export("x", "--return_pattern", "2", "--overwrite")
    assert open_features(tmp_path / "x").settings["return_pattern"] == 2


def make_samples(names):
    return [Sample((name, None, name), 1, 2, 3) for name in names]


def test_what_is_present_is_named_and_each_row_has_its_own(tmp_path):
    paths = [("r", "n", "t"), (None, "n", None), ("r", None, "t"), ("beside.jpg",)]
    samples = [Sample(files, number, number % 2) for number, files in enumerate(paths)]
    features = numpy_generator().standard_normal((4, 5)).astype(np.float32)
    groups = [
        (rows, samples[rows.start : rows.stop], features[rows]) for rows in (range(3), range(3, 4))
    ]
    path = tmp_path / "x.parquet"
    exporting.write_parquet(path, groups, FACTS, {"RGB", "TI"})
    table = pq.read_table(path)
    assert table["name"].to_pylist() == ["r", "n", "r", "beside.jpg"]
    assert table["present"].to_pylist() == ["RGB,TI", "", "RGB,TI", "RGB,TI"]
    assert table["identity"].to_pylist() == table["row"].to_pylist() == [0, 1, 2, 3]
    assert np.array_equal(column(table), features)


def test_a_failure_leaves_no_file_and_the_old_one_as_it_was(tmp_path):
    """The second row group cannot be computed."""
    path = tmp_path / "x.parquet"
    path.write_text("old")

    def groups():
        yield range(2), make_samples("ab"), np.eye(2, dtype=np.float32)
        assert [file.name for file in sorted(tmp_path.iterdir())] == [
            ".x.parquet.0.part",
            path.name,
        ]
        raise UserError("an image is damaged")

    with pytest.raises(UserError, match="an image is damaged"):
        exporting.write_parquet(path, groups(), FACTS, {"RGB"})
    assert contents(tmp_path) == {path.name: b"old"}


def test_what_cannot_be_written_is_refused_before_any_work(
    refusal, export_words, tmp_path, monkeypatch
):
    (tmp_path / "old.parquet").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    cases = {
        ("folder", "--overwrite"): "has other files such as notes.txt",
        ("x.npz", *PARQUET): "must be a file ending in .parquet",
        ("x.parquet", "--format", "npz"): "must be a file ending in .npz",
        ("x.npz", "--dtype", "float16"): "give an output that is no .npz file",
        ("old.parquet",): "already exists; choose another",
    }
    for (output, *more), sentence in cases.items():
        assert sentence in refusal(export_features, *export_words, "--output", output, *more)
    (tmp_path / "folder" / "notes.txt").unlink()
    monkeypatch.setattr("demo_sdtps.runtime.errors.find_spec", lambda _: None)
    message = refusal(export_features, *export_words, "--output", "x.parquet", *PARQUET)
    assert message == (
        "--format parquet needs pyarrow; install them by pip install -e '.[parquet]'."
    )
    message = refusal(search.rank, "--query", "folder", "--gallery", "folder")
    assert message == "The table folder needs lancedb; install them by pip install -e '.[search]'."


def test_a_name_that_is_no_text_is_refused(refusal, export_words, files, tmp_path):
    (tmp_path / "photos").mkdir()
    for name in ("ä.jpg", "b\udcff.jpg"):
        shutil.copy(files["rgb"][0], tmp_path / "photos" / name)
    more = ("--images", tmp_path / "photos", "--modality", "RGB", "--output", "x.parquet", *PARQUET)
    message = refusal(export_features, *export_words, *more)
    assert "b\\udcff.jpg' is not UTF-8, as Parquet and tables need" in message


def test_an_exported_table_is_searched_in_python(export, weights, tmp_path):
    """Whose key is a number, while that of an index is the name."""
    export("x.npz", "--normalise", "--dtype", "float32")
    export("x")
    reid, features = demo_sdtps.load(weights, "MODEL.DEVICE", "cpu"), open_features("x.npz")
    query = features.take(np.arange(4)).numpy()
    hits, expected = (
        reid.search(query, tmp_path / "x", 3),
        reid.search(query, features.take(features.features.rows).numpy(), 3),
    )
    assert np.array_equal(hits.rows, expected.rows)
    assert hits.names.tolist() == [[features.names[row] for row in line] for line in hits.rows]
