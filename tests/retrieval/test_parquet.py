"""Features as Parquet: what the .npz holds, from one process and from two, and nothing where the export fails."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from commands import CONFIG, KEEP_ALL, SMALL, checkpoint_file, cli_args_for, contents
from forked import run_two
from numeric import assert_close, numpy_generator
from pyarrow import parquet as pq
from tiny import MODEL

from demo_sdtps.commands import export_features
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.datasets import Sample
from demo_sdtps.retrieval import export as exporting

PARQUET = ("--format", "parquet")
LABELS = {"ids": "identity", "cams": "camera", "scenes": "scene"}
FACTS = {"split": "gallery", "return_pattern": 3, "checkpoint_sha256": "0"}
ROWS = 24
"""Of a row group, a multiple of the batch: the gallery of `tiny_root` has 32 samples, so that its export has two."""


@pytest.fixture(scope="module")
def weights(tiny_root, tmp_path_factory):
    cfg = load_cfg(CONFIG, ["DATASETS.ROOT_DIR", str(tiny_root), *SMALL, *KEEP_ALL])
    return checkpoint_file(tmp_path_factory.mktemp("weights") / "last.pth", cfg)


@pytest.fixture
def words(tiny_root, weights, tmp_path, monkeypatch):
    """The arguments of export_features.py for outputs in `tmp_path`, in batches of eight."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exporting, "ROW_GROUP", ROWS)
    return cli_args_for(tiny_root, "--weight", weights, *KEEP_ALL, "TEST.IMS_PER_BATCH", 8)


@pytest.fixture
def export(words, command):
    """Call export_features.py: → (exit code, stdout, stderr)."""
    return lambda name, *more: command(export_features.main, *words, "--output", name, *more)


def features_of(table):
    lists = table["feature"].combine_chunks()
    return lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1).copy()


def facts_of(file):
    return {name.decode(): text.decode() for name, text in file.schema_arrow.metadata.items()}


def test_parquet_holds_what_the_npz_holds(export, tmp_path):
    """To the last bit, as the batches are the same; from own queries that lack TI."""
    more = ("--split", "query", "--return_pattern", "2", "--normalise", "TEST.MISS", "t")
    assert export("x.npz", *more)[0] == 0
    code, stdout, stderr = export("x.parquet", *PARQUET, *more)
    assert code == 0, stderr
    expected, file = dict(np.load("x.npz")), pq.ParquetFile("x.parquet")
    width, table = expected["features"].shape[1], file.read()
    assert stdout == "Wrote 32 features in float32 to x.parquet\n"
    assert table.schema.field("feature").type == pa.list_(pa.float32(), width)
    assert np.array_equal(features_of(table), expected["features"])
    assert table["name"].to_pylist() == expected["paths"][:, 0].tolist()
    for name, label in LABELS.items():
        assert table[label].type == pa.int64() and table[label].to_pylist() == [*expected[name]]
    constants = {"present": "RGB,NI", "split": "query", "return_pattern": 2}
    assert {name: set(table[name].to_pylist()) for name in constants} == {
        name: {value} for name, value in constants.items()
    }
    assert set(expected["present"]) == {3}
    facts, configuration = facts_of(file), json.loads(expected["configuration"].item())
    for name in ("checkpoint", "checkpoint_sha256", "data_set", "split"):
        assert facts[name] == expected[name]
    assert json.loads(facts["configuration"]) == configuration and facts["normalised"] == "true"
    assert [*contents(tmp_path)] == ["x.npz", "x.parquet"]


def test_row_groups_are_bounded_and_half_precision_is_a_rounding(export):
    for dtype in ("float32", "float16"):
        assert export(f"{dtype}.parquet", *PARQUET, "--dtype", dtype)[0] == 0
    files = {dtype: pq.ParquetFile(f"{dtype}.parquet") for dtype in ("float32", "float16")}
    for file in files.values():
        groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        assert groups == [24, 8]
    whole, half = (features_of(file.read()) for file in files.values())
    assert half.dtype == np.float16 and np.array_equal(half, whole.astype(np.float16))


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
    assert table["identity"].to_pylist() == [0, 1, 2, 3] and np.array_equal(
        features_of(table), features
    )


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


def test_what_cannot_be_written_is_refused_before_any_work(refusal, words, tmp_path, monkeypatch):
    (tmp_path / "old.parquet").write_text("mine")
    cases = {
        ("x.npz", *PARQUET): "must be a file ending in .parquet",
        ("x.parquet",): "must be a file ending in .npz",
        ("x.parquet", *PARQUET, "--shards"): "give one of them",
        ("x.npz", "--dtype", "float16"): "give --shards or --format parquet too",
        ("old.parquet", *PARQUET): "already exists; choose another",
    }
    for (output, *more), sentence in cases.items():
        assert sentence in refusal(export_features.main, *words, "--output", output, *more)
    monkeypatch.setattr("demo_sdtps.runtime.errors.find_spec", lambda _: None)
    message = refusal(export_features.main, *words, "--output", "x.parquet", *PARQUET)
    assert message == (
        "--format parquet needs pyarrow; install them by pip install -e '.[parquet]'."
    )


def test_a_name_that_is_no_text_is_refused(refusal, words, files, tmp_path):
    (tmp_path / "photos").mkdir()
    for name in ("ä.jpg", "b\udcff.jpg"):
        shutil.copy(files["rgb"][0], tmp_path / "photos" / name)
    more = ("--images", tmp_path / "photos", "--modality", "RGB", "--output", "x.parquet", *PARQUET)
    message = refusal(export_features.main, *words, *more)
    assert "b\\udcff.jpg' is not UTF-8, as Parquet needs" in message


@pytest.mark.slow
def test_two_processes_write_what_one_does(export, words, tmp_path):
    """Row groups that they cannot share equally."""
    assert export("alone.parquet", *PARQUET)[0] == 0
    program = (
        "from demo_sdtps.commands import run_command\nfrom demo_sdtps.retrieval import export\n"
        "export.ROW_GROUP = 11\nrun_command('export')\n"
    )
    Path("program.py").write_text(program)
    output = ("--output", tmp_path / "two.parquet")
    done = run_two(tmp_path / "program.py", *words, *output, *PARQUET)
    assert done.returncode == 0 and done.stdout.count("Wrote 32 features") == 1, done.stderr
    assert pq.ParquetFile("two.parquet").num_row_groups == 3
    alone, two = (pq.read_table(f"{name}.parquet") for name in ("alone", "two"))
    assert_close(features_of(two), features_of(alone), *MODEL, *MODEL)
    assert two.drop_columns("feature").equals(alone.drop_columns("feature"))
    assert two.schema.metadata == alone.schema.metadata
    assert sorted(contents(tmp_path)) == ["alone.parquet", "program.py", "two.parquet"]
