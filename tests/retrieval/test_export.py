"""Features as an array, in shards and as Parquet: the same in each, and nothing where an export fails."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch
from commands import KEEP_ALL, contents
from feature_stores import read_all
from numeric import numpy_generator
from pyarrow import parquet as pq
from safetensors import safe_open

from demo_sdtps.commands import export
from demo_sdtps.config import UserError
from demo_sdtps.datasets import Sample
from demo_sdtps.retrieval import export as exporting
from demo_sdtps.retrieval.feature_sets import open_features
from demo_sdtps.retrieval.features import decode_present
from demo_sdtps.retrieval.store import open_store

pytestmark = pytest.mark.usefixtures("shallow")
SETTINGS = KEEP_ALL
PARQUET = ("--format", "parquet")
LABELS = {"ids": "identity", "cams": "camera", "scenes": "scene"}
FACTS = {"split": "gallery", "return_pattern": 3, "checkpoint_sha256": "0"}
ROWS = 24
"""Of a group, a multiple of the batch: the gallery of `tiny_root` has 32 samples, so that an export has two."""


def cut(path):
    path.write_bytes(path.read_bytes()[:-8])


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(exporting, "ROW_GROUP", ROWS)


def column(table):
    """The features (n, D) of a Parquet table."""
    lists = table["feature"].combine_chunks()
    return lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1).copy()


def test_shards_and_parquet_hold_what_the_array_holds(export, tmp_path):
    """To the last bit, as the batches are the same; from queries that lack TI."""
    more = ("--split", "query", "--return_pattern", "2", "--normalise", "TEST.MISS", "t")
    for name, words in {"x.npz": (), "x": ("--shards", ROWS), "x.parquet": PARQUET}.items():
        assert "32 features in float32" in export(name, *words, *more)
    expected, file = dict(np.load("x.npz")), pq.ParquetFile("x.parquet")
    assert set(expected["present"]) == {3}
    shards, table = open_features(tmp_path / "x", normalise=False), file.read()
    for features in (read_all(shards), column(table)):
        assert np.array_equal(features, expected["features"])
    for names in ([*shards.names], table["name"].to_pylist()):
        assert names == expected["paths"][:, 0].tolist()
    assert np.array_equal(decode_present(expected["present"]), shards.present)
    for name, label in LABELS.items():
        assert np.array_equal(getattr(shards, name), expected[name])
        assert table[label].type == pa.int64() and table[label].to_pylist() == [*expected[name]]
    constants = {"present": "RGB,NI", "split": "query", "return_pattern": 2}
    assert {name: set(table[name].to_pylist()) for name in constants} == {
        name: {value} for name, value in constants.items()
    }
    assert shards.settings == open_features(tmp_path / "x.npz").settings
    store = open_store(tmp_path / "x", "")
    with safe_open(tmp_path / "x" / store.shards[-1], "np") as shard:
        paths = [bytes(row).decode().rstrip("\0").split("\0") for row in shard.get_tensor("paths")]
    assert paths == expected["paths"][ROWS:].tolist()
    metadata = file.schema_arrow.metadata.items()
    facts = {name.decode(): text.decode() for name, text in metadata}
    for name in ("checkpoint", "checkpoint_sha256", "data_set", "split"):
        assert facts[name] == (store.origin | store.record)[name] == expected[name]
    assert facts["normalised"] == "true"
    assert json.loads(facts["configuration"]) == json.loads(expected["configuration"].item())


def test_groups_are_bounded_and_half_precision_is_a_rounding(export, tmp_path):
    arrays = {}
    for dtype in ("float16", "float32"):
        export(dtype, "--shards", ROWS, "--dtype", dtype)
        export(f"{dtype}.parquet", *PARQUET, "--dtype", dtype)
        shards = open_features(tmp_path / dtype, normalise=False)
        file = pq.ParquetFile(f"{dtype}.parquet")
        groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        assert np.diff(shards.features.starts).tolist() == groups == [24, 8]
        table = file.read()
        assert table.schema.field("feature").type.value_type == getattr(pa, dtype)()
        arrays[dtype] = column(table)
        assert np.array_equal(read_all(shards), arrays[dtype])
    assert np.array_equal(arrays["float16"], arrays["float32"].astype(np.float16))


def test_an_interrupted_export_writes_the_missing_shards_alone(export, tmp_path):
    """One shard was not written, another is cut, store.json names none yet, and a temporary file is left over."""
    export("x", "--shards", "8")
    folder, before = tmp_path / "x", contents(tmp_path / "x")
    times = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    (folder / "shard-00000.safetensors").unlink()
    cut(folder / "shard-00002.safetensors")
    manifest = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_text(json.dumps(manifest | {"shards": []}))
    with pytest.raises(UserError, match="is not complete"):
        open_features(folder)
    (folder / ".shard-00000.safetensors.part").write_bytes(b"half")
    assert export("x", "--shards", "8").startswith("Wrote 2 shards, 2 were there")
    assert contents(folder) == before
    same = [name for name in times if (folder / name).stat().st_mtime_ns == times[name]]
    assert sorted(same) == ["shard-00001.safetensors", "shard-00003.safetensors"]
    assert export("x", "--shards", "8").startswith("Wrote 0 shards")


def test_shards_of_another_origin_are_refused(
    export, export_words, refusal, tmp_path, own_root, weights
):
    export("x", "--shards", ROWS)
    other = shutil.copy(weights, tmp_path / "other.pth")
    changed = torch.load(other)
    next(iter(changed["model"].values())).add_(1)
    torch.save(changed, other)
    cases = {
        "another return_pattern (3, not 2)": ("--return_pattern", "2"),
        "another dtype": ("--dtype", "float16"),
        "another checkpoint;": ("--weight", other),
        "another samples;": ("DATASETS.ROOT_DIR", own_root),
        "another TEST.MISS": ("TEST.MISS", "r"),
    }
    for what, words in cases.items():
        shards = ("--output", "x", "--shards", ROWS)
        sentence = refusal(export.features, *export_words, *shards, *words)
        assert f"are of {what}" in sentence and "--overwrite" in sentence
    export("x", "--shards", ROWS, "--return_pattern", "2", "--overwrite")
    assert open_features(tmp_path / "x").settings["return_pattern"] == 2


def samples_of(names):
    return [Sample((name, None, name), 1, 2, 3) for name in names]


def test_what_is_present_is_named_and_each_row_has_its_own(tmp_path):
    paths = [("r", "n", "t"), (None, "n", None), ("r", None, "t"), ("beside.jpg",)]
    samples = [Sample(files, number, number % 2) for number, files in enumerate(paths)]
    features = numpy_generator().standard_normal((4, 5)).astype(np.float32)
    groups = [(samples[:3], features[:3]), (samples[3:], features[3:])]
    path = tmp_path / "x.parquet"
    exporting.write_parquet(path, groups, FACTS, {"RGB", "TI"})
    table = pq.read_table(path)
    assert table["name"].to_pylist() == ["r", "n", "r", "beside.jpg"]
    assert table["present"].to_pylist() == ["RGB,TI", "", "RGB,TI", "RGB,TI"]
    assert table["identity"].to_pylist() == [0, 1, 2, 3] and np.array_equal(column(table), features)


def test_a_failure_leaves_no_file_and_the_old_one_as_it_was(tmp_path):
    """The second row group cannot be computed."""
    path = tmp_path / "x.parquet"
    path.write_text("old")

    def groups():
        yield samples_of("ab"), np.eye(2, dtype=np.float32)
        assert [file.name for file in sorted(tmp_path.iterdir())] == [".x.parquet.part", path.name]
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
        ("folder", "--shards", "--overwrite"): "has other files such as notes.txt",
        ("x.npz", *PARQUET): "must be a file ending in .parquet",
        ("x.parquet",): "must be a file ending in .npz",
        ("x.parquet", *PARQUET, "--shards"): "give one of them",
        ("x.npz", "--dtype", "float16"): "give --shards or --format parquet too",
        ("old.parquet", *PARQUET): "already exists; choose another",
    }
    for (output, *more), sentence in cases.items():
        assert sentence in refusal(export.features, *export_words, "--output", output, *more)
    monkeypatch.setattr("demo_sdtps.runtime.errors.find_spec", lambda _: None)
    message = refusal(export.features, *export_words, "--output", "x.parquet", *PARQUET)
    assert message == (
        "--format parquet needs pyarrow; install them by pip install -e '.[parquet]'."
    )


def test_a_name_that_is_no_text_is_refused(refusal, export_words, files, tmp_path):
    (tmp_path / "photos").mkdir()
    for name in ("ä.jpg", "b\udcff.jpg"):
        shutil.copy(files["rgb"][0], tmp_path / "photos" / name)
    more = ("--images", tmp_path / "photos", "--modality", "RGB", "--output", "x.parquet", *PARQUET)
    message = refusal(export.features, *export_words, *more)
    assert "b\\udcff.jpg' is not UTF-8, as Parquet needs" in message
