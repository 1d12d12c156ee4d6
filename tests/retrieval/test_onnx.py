"""Exported files in place of a checkpoint: ONNX Runtime, and OpenVINO where it is installed."""

import json
import re
import shlex
import sys
from importlib.util import find_spec

import numpy as np
import onnx
import pytest
import torch
from commands import (
    BASELINE,
    CONFIG,
    ROOT,
    SHOWN,
    checkpoint_file,
    cli_args_for,
    file_cameras,
    near,
    read_rows,
    read_scores,
)
from numeric import assert_close
from PIL import Image
from tiny import MODEL
from torchvision.transforms import v2

import demo_sdtps
from demo_sdtps.commands import export as commands
from demo_sdtps.commands import search
from demo_sdtps.commands import test as test_net
from demo_sdtps.commands.cli import run
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.modeling.checkpoints.loading import read_checkpoint
from demo_sdtps.modeling.exported import resized
from demo_sdtps.retrieval.onnx_export import export_model

needs_openvino = pytest.mark.skipif(
    not (find_spec("openvino") and find_spec("nncf")), reason="openvino and nncf are not installed"
)
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shallow")]
SLIM = shlex.split(
    "MODEL.SLIM_BLOCKS [0,1] MODEL.SLIM_KEEP [0.5,0.5] INPUT.JOINT_AUGMENTATION True "
    "MODEL.HDM True MODEL.ATM True MODEL.HEAD 4"
)
OPENVINO = pytest.param("m.xml", marks=[needs_openvino, pytest.mark.soak])


def export(folder, root, name, *words, opts=(), config=BASELINE):
    """A checkpoint in `folder`, and an export of it → their paths."""
    weights, file = folder / "w.pth", folder / name
    if not weights.exists():
        checkpoint_file(weights, load_cfg(config, cli_args_for(root, *opts, config=config)[2:]))
    main = commands.onnx if name.endswith("onnx") else commands.openvino
    with pytest.MonkeyPatch.context() as patch:
        line = ["command", "--weight", weights, "--output", file, *words]
        patch.setattr(sys, "argv", [*map(str, line)])
        run(main)
    return weights, file


@pytest.fixture(scope="module")
def exported(tiny_root, tmp_path_factory):
    """A model of RGB and TI, and its file."""
    opts = ("MODEL.MODALITIES", "[RGB, TI]", "TEST.IMS_PER_BATCH", 3)
    return export(tmp_path_factory.mktemp("exported"), tiny_root, "m.onnx", opts=opts)


def sides(checkpoint, file, **items):
    """Features by the checkpoint and by the file."""
    models = demo_sdtps.load(checkpoint, "MODEL.DEVICE", "cpu"), demo_sdtps.load(file)
    camera = items.pop("camera", None)
    return [model.features(**items, camera=camera) for model in models]


def check(checkpoint, file, files, **change):
    expected, actual = sides(checkpoint, file, **files, **change)
    assert_close(np.asarray(actual), np.asarray(expected), *MODEL, *MODEL)
    assert (actual.present == expected.present).all()


def test_a_file_gives_the_features_of_its_checkpoint(exported, files):
    """Of complete triplets in several batches, of missing modalities, and with cameras."""
    shown = {name: files[name] for name in ("rgb", "ti")}
    check(*exported, shown, camera=file_cameras(files))
    check(*exported, {"rgb": shown["rgb"]})
    check(*exported, {"rgb": [*shown["rgb"][:2], None], "ti": [None, *shown["ti"][1:3]]})


@pytest.mark.parametrize("name", ["m.onnx", OPENVINO])
def test_a_pruned_model_in_a_file_leaves_missing_modalities_out(name, tiny_root, files, tmp_path):
    """With SDTPS, HDM and ATMoE, for every number of triplets; a missing modality has no vote in what is kept."""
    paths = export(tmp_path, tiny_root, name, opts=SLIM, config=CONFIG)
    folder = tiny_root / "RGBNT201" / "test"
    all_files = {key: sorted((folder / key.upper()).iterdir())[:7] for key in files}
    for count in (1, 7):
        for missing in (None, "rgb", "ti"):
            check(*paths, {key: each[:count] for key, each in all_files.items() if key != missing})


def test_images_are_resized_as_torch_resizes_them(files):
    """But for a level of 255."""
    pixels = np.asarray(Image.open(files["rgb"][0]).resize((41, 77))).transpose(2, 0, 1)
    by_torch = v2.functional.resize(torch.tensor(pixels), [32, 16]).numpy()
    assert np.abs(resized(pixels, (32, 16)) - by_torch.astype(int)).max() <= 1


def test_commands_take_a_file_as_a_checkpoint(exported, tiny_root, success, tmp_path):
    """mAP, exported features and hits of a search; a card is beside it and the origin in it."""
    checkpoint, file = exported
    scores, features, hits = [], [], []
    root = ("DATASETS.ROOT_DIR", tiny_root)
    for number, weight in enumerate((checkpoint, file)):
        outputs = [tmp_path / f"{number}{suffix}" for suffix in (".json", ".npz", ".csv")]
        photos, index = tiny_root / "RGBNT201" / "test", ("--index", tmp_path / f"i{number}")
        asked = ("--gallery", photos, "--query", photos, "--top", "2", *index)
        for main, words in (
            (test_net.main, ("--json", outputs[0], "TEST.MISS", "t", *root)),
            (commands.features, ("--output", outputs[1], *root)),
            (search.main, ("--csv", outputs[2], *asked)),
        ):
            success(main, "--weight", weight, *words)
        scores.append(read_scores(outputs[0]))
        features.append(np.load(outputs[1]))
        hits.append(read_rows(outputs[2]))
    assert scores[1] == near(scores[0])
    assert_close(features[1]["features"], features[0]["features"], *MODEL, *MODEL)
    assert [row[:2] for row in hits[0]] == [row[:2] for row in hits[1]]
    same = sum(one[2] == other[2] for one, other in zip(*hits, strict=True))
    assert same > 0.9 * len(hits[0]) > 50
    assert f'load("{file.name}")' in file.with_suffix(".md").read_text()
    (entry,) = (each for each in onnx.load(file).metadata_props if each.key == "demo_sdtps")
    record = json.loads(entry.value)
    assert record["origin"]["dataset"] == "Synthetic" and record["modalities"] == ["RGB", "TI"]


def test_files_that_cannot_be_used_are_named(exported, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    plain = onnx.load(exported[1])
    del plain.metadata_props[:]
    onnx.save(plain, tmp_path / "plain.onnx")
    for name in ("none.onnx", "bad.onnx", "plain.onnx"):
        with pytest.raises(UserError, match=name):
            demo_sdtps.load(tmp_path / name)
    for key, *words in (
        ("SIZE_TEST", "INPUT.SIZE_TRAIN", "[32, 32]", "INPUT.SIZE_TEST", "[32, 32]"),
        (r"SLIM_\w+", "MODEL.SLIM_BLOCKS", "[0]", "MODEL.SLIM_KEEP", "[0.5]"),
    ):
        with pytest.raises(UserError, match=key):
            demo_sdtps.load(exported[1], *words)
    with pytest.raises(UserError, match="checkpoint"):
        read_checkpoint(exported[1])


def test_a_failed_export_leaves_the_earlier_file_alone(exported, tmp_path, monkeypatch):
    file = tmp_path / "x.onnx"
    file.write_bytes(b"earlier")
    monkeypatch.setattr("demo_sdtps.retrieval.onnx_export.TOLERANCE", -1.0)
    with pytest.raises(UserError, match="differs from torch"):
        export_model(demo_sdtps.load(exported[0], "MODEL.DEVICE", "cpu"), file, overwrite=True)
    assert [*tmp_path.iterdir()] == [file] and file.read_bytes() == b"earlier"


def test_the_lines_of_the_page_give_the_features(tiny_root, files, tmp_path, monkeypatch):
    """Of images of the model's size and of larger ones, which Pillow and torchvision resize alike but for a few levels."""
    opts = ("INPUT.PIXEL_MEAN", "[0.4, 0.5, 0.6]", "INPUT.PIXEL_STD", "[0.2, 0.25, 0.3]")
    weights, _ = export(tmp_path, tiny_root, "model.onnx", opts=opts)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.S)
    (lines,) = (block for block in blocks if "onnxruntime.InferenceSession" in block)
    reid = demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")
    paths = {"rgb": "a.jpg", "ni": "b.png", "ti": "c.png"}
    for size, allowed in (((16, 32), 1e-6), ((70, 50), 1e-3)):
        for name, path in paths.items():
            Image.open(files[name][0]).resize(size, Image.Resampling.BICUBIC).save(path)
        exec(lines, actual := {})
        assert ((actual["features"] - np.asarray(reid.features(**paths))) ** 2).sum() < allowed


@pytest.mark.parametrize("name", ["m.onnx", OPENVINO])
def test_int8_is_near_float32(name, tiny_root, tmp_path):
    """Calibrated, where the runtime needs it, on own images without labels; near the checkpoint, and not equal to it."""
    photos = tiny_root / "RGBNT201" / "train_171"
    words = ("--precision", "int8", "--images", photos)
    checkpoint, file = export(tmp_path, tiny_root, name, *words, opts=("MODEL.MODALITIES", "[RGB]"))
    items = {"rgb": sorted((tiny_root / "RGBNT201" / "test" / "RGB").iterdir())[:SHOWN]}
    one, other = (np.asarray(features) for features in sides(checkpoint, file, **items))
    cosines = (one * other).sum(axis=1)
    assert (cosines > 0.97).all() and (cosines < 1 - 1e-7).any()
    assert name.endswith("xml") or "MatMulInteger" in str(onnx.load(file).graph)
