"""Random input at every door: what comes is a result or a `UserError`, never another exception.

The same examples in every run (derandomised), and nothing is kept in the checkout.
"""
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.load import DEMO_SCHEMA
from demo_sdtps.datasets import READERS, SPLITS
from demo_sdtps.datasets.images import decode
from demo_sdtps.engine.checkpoint import read_checkpoint, stored_config
from demo_sdtps.modeling.pretrained import read_weights
from demo_sdtps.seps.image_text import read_image_texts
from demo_sdtps.seps.schema import SEPS_SCHEMA


def examples(count):
    return settings(max_examples=count, derandomize=True, database=None, deadline=None,
                    suppress_health_check=list(HealthCheck))


def allowed(call, *arguments, **options):
    """The result; or None for a `UserError`, which must say something, and not for ever."""
    try:
        return call(*arguments, **options)
    except UserError as error:
        text = str(error)
        assert text.strip() and len(text) < 5000
        return None


# Names of images

DIGITS = st.text("0123456789", min_size=1, max_size=7)
SIGNS = ["_cam", "_c", "_s", "_v", "-1", "cam1", "_", "-", " ", ".", "..", "\n", "²", "٣", "\udcff"]
PARTS = st.one_of(DIGITS, st.sampled_from(SIGNS), st.text(max_size=4))
NAMES = st.lists(PARTS, max_size=8).map("".join)
NEAR = st.builds("{}{}{}{}{}".format, DIGITS, st.sampled_from(["_cam", "_c", "_s"]), DIGITS,
                 st.sampled_from(["", "_v1", "_v9", "_0_00", "_001"]), st.text(max_size=3))


def is_name(text):
    try:
        return "/" not in text and "\0" not in text and len(os.fsencode(text)) < 240
    except UnicodeEncodeError:
        return False


@pytest.mark.parametrize("name", READERS)
@examples(40)
@given(st.lists(st.one_of(NAMES, NEAR).filter(is_name), min_size=1, max_size=3), st.sampled_from(SPLITS), st.booleans())
def test_readers(name, names, split, is_whole):
    """Any names in a data set's folders: samples of what is there, or a sentence."""
    with tempfile.TemporaryDirectory() as root:
        folders = _folders_of(name, Path(root), split, names)
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            for image in names if is_whole else names[:1]:
                Image.new("RGB", (768, 1)).save(os.path.join(folder, f"{image}.jpg"), "JPEG")
        found = allowed(READERS[name].read, Path(root), split)
        for sample in found or ():
            assert all(os.path.isfile(path) for path in sample.paths)
            assert sample.identity >= 0 and 0 <= sample.camera < 9 and sample.scene >= 0
            torch.tensor([sample.identity, sample.camera, sample.scene])


def _folders_of(name, root, split, names):
    if name == "Synthetic":
        name, root = "RGBNT201", root / "synthetic"
    place = {"RGBNT201": {"train": "train_171"}, "WMVeID863": {"train": "train", "query": "query"},
             "RGBNT100": {"train": "bounding_box_train", "query": "query", "gallery": "bounding_box_test"},
             "MSVR310": {"train": "bounding_box_train", "query": "query3", "gallery": "bounding_box_test"}}
    place = place[name].get(split, "test")
    if name == "RGBNT201":
        return [root / name / place / modality for modality in ("RGB", "NI", "TI")]
    if name == "RGBNT100":
        return [root / name / "rgbir" / place]
    within = root / name / place / (names[0][:4] or "x") if name == "MSVR310" else root / "MSVWild863" / place
    return [within / modality for modality in ("vis", "ni", "th")]


# Files of images with captions

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
                    max_leaves=6)
IDS = st.sampled_from(["1", "2", "3", "x", "", " ", "\ufeff", "a b"])
LINES = st.lists(st.one_of(TEXTS, IDS), max_size=8).map("\n".join)
PLACES = ["1.jpg", "2.jpg", "d", "../1.jpg", "/etc/passwd", "", ".", "a\0b", "\ud800", "d/../1.jpg"]
PATHS = st.one_of(st.sampled_from(PLACES), JSON)
DENSE = st.lists(st.one_of(st.fixed_dictionaries({"id": IDS | JSON, "caption": TEXTS | JSON}), JSON).map(json.dumps),
                 max_size=4).map("\n".join)


@examples(200)
@given(st.one_of(LINES.map(str.encode), st.binary(max_size=20)), st.one_of(
    st.lists(IDS, max_size=4).map("\n".join).map(str.encode), st.binary(max_size=8)),
    st.one_of(st.dictionaries(IDS, PATHS, max_size=4).map(json.dumps), JSON.map(json.dumps), st.text(max_size=9)),
    st.one_of(st.none(), DENSE))
@example(b"a\nb", b"1\n2", '{"1": "1.jpg", "2": "2.jpg"}', '{"id": "1", "caption": "c"}\n{"id": 2, "caption": "d"}')
def test_image_texts(captions, ids, mapping, dense):
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "set"
        (folder / "images" / "d").mkdir(parents=True)
        for image in ("1.jpg", "2.jpg", "../1.jpg"):
            (folder / "images" / image).touch()
        (folder / "train_caps.txt").write_bytes(captions)
        (folder / "train_ids.txt").write_bytes(ids)
        (folder / "id_mapping.json").write_text(mapping, encoding="utf-8", errors="surrogatepass")
        if dense is not None:
            (folder / "train_dense.jsonl").write_text(dense, encoding="utf-8")
        found = allowed(read_image_texts, Path(root), "set", "train")
        if found:
            assert len(found.captions) == len(found.image_of) and set(found.image_of) == set(range(len(found.paths)))
            assert all(Path(path).resolve().is_relative_to((folder / "images").resolve()) for path in found.paths)
            assert all(text.strip().encode() for text in (*found.captions, *(found.long_captions or ())))


# The configuration

SCHEMAS = {"re-identification": DEMO_SCHEMA, "SEPS": SEPS_SCHEMA}
KEYS = st.sampled_from(sorted({key.name for schema in SCHEMAS.values() for key in schema.keys}))
VALUES = st.one_of(
    st.integers().map(str), st.floats().map(str), st.text(max_size=12), st.binary(max_size=9).map(os.fsdecode),
    st.sampled_from(["True", "on", "None", "()", "[]", "{}", "[[]]", "1e999", "-1", "0", "[1, 2]", "(1, 'a')", "[nan, 0, 0]",
                     "...", "b'x'", "1j", "-" * 5000 + "1", "(" * 5000, "0x" + "f" * 5000, "9" * 5000, "[9e400, 1, 1]",
                     "'a\\0'", "{1: 2}", "{1, 2}", f"[{2**70}, 1]", "x" * 5000, "auto", "hub", "cuda:0", "cpu", "ViT-B-16",
                     "test_vit"]),
    st.recursive(st.integers() | st.floats() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=4)
                 | st.tuples(inner, inner), max_leaves=8).map(repr))


@pytest.mark.parametrize("schema", SCHEMAS)
@examples(150)
@given(st.lists(st.tuples(st.one_of(KEYS, st.text(max_size=8)), VALUES), min_size=1, max_size=3))
def test_words(schema, pairs):
    _check(allowed(load_cfg, None, [word for pair in pairs for word in pair], SCHEMAS[schema]), SCHEMAS[schema])


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.binary(max_size=5),
                    st.dates(), st.datetimes(), st.sampled_from(["1e-4", "('0')", "[8, 8]", "yes"]))
TREES = st.recursive(SCALARS, lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)), max_leaves=8)
SECTIONS = st.dictionaries(st.sampled_from(["MODEL", "INPUT", "SOLVER", "TEST", "DATASETS", "DATALOADER", "OUTPUT_DIR"]),
                           st.one_of(TREES, st.dictionaries(KEYS.map(lambda key: key.split(".")[-1]), TREES, max_size=3)))
SYNTAX = st.lists(st.sampled_from([
    "MODEL:", "SOLVER:", " ", "  ", "\n", "- ", "? ", ": ", "&a ", "*a", "<<: ", "!!python/object:os.x ", "!!set ", "!!int ",
    "!!float ", "!!bool ", "!!timestamp ", "!x ",
    "'", '"', "{", "}", "[", "]", ", ", "|", ">", "---\n", "...\n", "#", "%YAML 9.9\n", "\t", "\x00", "\x85", "0x", "1_0",
    ".nan", "2026-13-01", "12:60:99", "\\x", "=", "~", "é", "\ufeff", "HEAD", "SEED"]), max_size=14).map("".join)


@pytest.mark.parametrize("schema", SCHEMAS)
@examples(200)
@given(st.one_of(SECTIONS.map(lambda tree: yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "replace")),
                 SYNTAX.map(str.encode), st.binary(max_size=30)))
@example(b"MODEL:\n  - &a [*a]")
@example(b"!!int")
@example(b"SOLVER: {SEED: !!bool x, GAMMA: !!timestamp y}")
@example(b"SOLVER: {SEED: [0x" + b"f" * 5000 + b"]}")
def test_files(schema, content):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run.yml").write_bytes(content)
        _check(allowed(load_cfg, Path(folder) / "run.yml", (), SCHEMAS[schema]), SCHEMAS[schema])


def _check(cfg, schema):
    """What is let in has every key in its type, and can be written down."""
    if cfg:
        for key in schema.keys:
            node = cfg
            for part in key.name.split("."):
                node = node[part]
            assert type(node) is type(key.default)
        yaml.safe_load(cfg.dump())


# Files of images and of weights: whole ones, damaged

CHANGES = st.lists(st.one_of(
    st.tuples(st.just("set"), st.floats(0, 1), st.integers(0, 255)), st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
    st.tuples(st.sampled_from(["drop", "double"]), st.floats(0, 1), st.integers(1, 40))),
    min_size=1, max_size=6)


def damaged(data, changes):
    for kind, where, number in changes:
        place = int(where * (len(data) - 1)) if len(data) else 0
        if kind == "set":
            data = data[:place] + bytes([number]) + data[place + 1:]
        else:
            rest = {"cut": b"", "drop": data[place + number:], "double": data[max(place - number, 0):]}
            data = data[:place] + rest[kind]
    return data


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Small files of every kind, by name."""
    folder = tmp_path_factory.mktemp("whole")
    image = Image.linear_gradient("L").resize((24, 16)).convert("RGB")
    for format in ("JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP", "PPM", "JPEG2000"):
        image.save(folder / format, format)
    image.convert("P").save(folder / "palette", "PNG", transparency=bytes(range(99)))
    image.save(folder / "packed", "TIFF", compression="tiff_lzw")
    weights = {"model": {"heads.original.classifier.weight": torch.ones(3, 2)}, "camera_num": 2, "dataset": "x"}
    torch.save(weights, folder / "zip.pth")
    torch.save(weights, folder / "old.pth", _use_new_zipfile_serialization=False)
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(folder)
    return found


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP", "PPM", "JPEG2000", "palette", "packed"])
@examples(40)
@given(changes=CHANGES)
def test_images(kind, whole, changes):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "image.jpg")
        Path(path).write_bytes(damaged(whole[kind], changes))
        image = allowed(decode, path)
        assert image is None or (image.dtype == torch.uint8 and image.ndim == 3 and len(image) == 3)


@pytest.mark.parametrize("kind", ["zip.pth", "old.pth"])
@examples(150)
@given(changes=CHANGES)
def test_weights(kind, whole, changes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.pth"
        path.write_bytes(damaged(whole[kind], changes))
        allowed(read_checkpoint, path)
        allowed(stored_config, path)
        allowed(read_weights, path, archives=False)
