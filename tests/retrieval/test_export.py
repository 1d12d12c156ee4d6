"""Features as an array and as Parquet: the same in each, and refusals."""

import json

import numpy as np
import pyarrow as pa
from commands import KEEP_ALL
from numeric import numpy_generator
from pyarrow import parquet as pq

import demo_sdtps
from demo_sdtps.commands.export import features as export_features
from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets import Sample
from demo_sdtps.modeling.checkpoints.loading import save_checkpoint
from demo_sdtps.retrieval import features as exporting

SETTINGS = KEEP_ALL


def column(table):
    """The features (n, D) of a Parquet table."""
    lists = table["feature"].combine_chunks()
    return lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1)


def test_parquet_holds_what_the_array_holds(export):
    """To the last bit; from queries that lack TI."""
    more = ("--split", "query", "--return_pattern", "2", "--normalise", "TEST.MISS", "t")
    for name in ("x.npz", "x.parquet"):
        assert "Wrote 32 features in float32" in export(name, *more)
    expected, file = dict(np.load("x.npz")), pq.ParquetFile("x.parquet")
    table, metadata = file.read(), file.schema_arrow.metadata
    assert np.array_equal(column(table), expected["features"])
    assert np.allclose(np.linalg.norm(expected["features"], axis=1), 1)
    for name, label in exporting.LABELS.items():
        assert table[label].type == pa.int64() and table[label].to_pylist() == [*expected[name]]
    paths = [table[name.lower()].to_pylist() for name in MODALITIES]
    assert [*map(list, zip(*paths, strict=True))] == expected["paths"].tolist()
    assert table["name"].to_pylist() == paths[0] and table["row"].to_pylist() == [*range(32)]
    constants = {"present": {"RGB,NI"}, "split": {"query"}, "return_pattern": {2}}
    assert {name: {*table[name].to_pylist()} for name in constants} == constants
    assert {*expected["present"]} == {3} and metadata[b"normalised"] == b"true"
    for name in ("checkpoint", "checkpoint_sha256", "data_set", "split"):
        assert metadata[name.encode()].decode() == expected[name]
    configuration = json.loads(expected["configuration"].item())
    assert configuration == json.loads(metadata[b"configuration"])
    expected = {"TEST.MISS": "t", "TEST.NECK_FEAT": "before", "TEST.AMP": "off"}
    assert configuration.items() >= expected.items()


def test_what_cannot_be_written_is_refused(refusal, export_words, weights, tmp_path):
    """An ending, a file that is there, and numbers beyond half precision."""
    call = lambda *words: refusal(export_features, *export_words, "--output", *words)  # noqa: E731
    assert ".npz" in call("x.csv")
    (tmp_path / "old.npz").write_text("mine")
    assert "old.npz" in call("old.npz")
    reid = demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")
    reid.model.backbone.vit.norm.weight.data.mul_(1e6)
    save_checkpoint(tmp_path / "large.pth", reid.cfg, reid.model, 1)
    words = ("x.parquet", "--weight", tmp_path / "large.pth", "--dtype", "float16")
    assert "more than float16 holds" in call(*words)


def test_what_is_present_is_named_and_each_row_has_its_own(tmp_path):
    """One image may hold all three, and a name may be no text."""
    paths = [("r", "n", "t"), (None, "b\udcff", None), ("r", None, "t"), ("beside.jpg",)]
    samples = [Sample(files, number, number % 2) for number, files in enumerate(paths)]
    values = numpy_generator().standard_normal((4, 5)).astype(np.float32)
    present = np.array([[1, 0, 1], [0, 0, 0], [1, 0, 1], [1, 1, 1]], bool)
    facts = {"split": "gallery", "return_pattern": 3}
    exporting.write_parquet(tmp_path / "x.parquet", samples, values, present, facts)
    table = pq.read_table(tmp_path / "x.parquet")
    assert table["name"].to_pylist() == ["r", "b\\xff", "r", "beside.jpg"]
    assert table["present"].to_pylist() == ["RGB,TI", "", "RGB,TI", "RGB,NI,TI"]
    assert table["identity"].to_pylist() == [0, 1, 2, 3] and np.array_equal(column(table), values)
