"""The model as an exported program of torch and as ONNX, for any batch."""

import re
import shlex
from ast import literal_eval
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from commands import CONFIG, ROOT, SHOWN, file_cameras, near, read_scores
from exported import export
from numeric import assert_close
from PIL import Image
from tiny import SHALLOW, random_images, tiny_model
from torchvision.transforms import v2

import demo_sdtps
from demo_sdtps.commands import test as test_net
from demo_sdtps.config import RETURN_PATTERNS
from demo_sdtps.evaluation.extraction import extract_patterns
from demo_sdtps.retrieval import onnx_export

pytestmark = pytest.mark.usefixtures("shallow")
SLIM = shlex.split(
    "MODEL.USE_SDTPS False MODEL.SLIM_BLOCKS [0,1] MODEL.SLIM_KEEP [0.5,0.5] INPUT.JOINT_AUGMENTATION True"
)
FUSION = ("MODEL.HDM", True, "MODEL.ATM", True, "MODEL.HEAD", 4)
MODELS = {
    "SDTPS": (),
    "saliency": (*SLIM, *FUSION, "MODEL.SLIM_SCORE", "saliency"),
    "self_supervised": (*SLIM, "MODEL.SLIM_SCORE", "self_supervised"),
    "ToMe": (*SLIM, "MODEL.SLIM_SCORE", "studies.baselines:ToMe", "MODEL.SLIM_SHARED", False),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "opts",
    [
        pytest.param(opts, marks=[pytest.mark.soak] * (name != "saliency"), id=name)
        for name, opts in MODELS.items()
    ],
)
def test_an_exported_program_takes_any_batch(opts):
    model = tiny_model(*opts).eval()
    program = onnx_export.export_program(model, [64, 32]).module()
    for batch in (1, 3, 40):
        images, cameras = random_images(batch, batch)
        with torch.no_grad():
            expected = extract_patterns(model, images, cameras)[0]
            actual = program(*images.values(), cameras)
        for one, other in zip(actual, expected.values(), strict=True):
            assert_close(one, other, *SHALLOW, *SHALLOW)


@pytest.mark.slow
@pytest.mark.soak
def test_onnx_gives_the_features_of_the_checkpoint(tiny_root, files, capsys, tmp_path):
    """Of slimming, SDTPS, HDM and ATMoE, with preprocessing by the metadata alone; the last camera is the mean. Of images whose
    selection is a tie but for rounding, another patch may be kept."""
    opts = (*MODELS["saliency"], "MODEL.USE_SDTPS", True)
    weights, _ = export(tmp_path, tiny_root, "m.onnx", opts=opts, config=CONFIG)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["batch", "1", "3", "8", "Wrote"]
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    about = session.get_modelmeta().custom_metadata_map
    size = [int(about["height"]), int(about["width"])]
    mean, std = literal_eval(about["mean"]), literal_eval(about["std"])
    images = {}
    for name, paths in files.items():
        pixels = [np.array(Image.open(path).convert("RGB")) for path in paths]
        resized = v2.functional.resize(
            torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2), size, antialias=True
        )
        images[name] = v2.functional.normalize(resized * float(about["scale"]), mean, std).numpy()
    reid = demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")
    known, unknown = file_cameras(files), np.full(SHOWN, int(about["unknown_camera"]))
    for cameras, camera in ((np.array(known), known), (unknown, None)):
        actual = session.run(None, {**images, "camera": cameras})
        expected = [
            reid.features(**files, return_pattern=pattern, camera=camera, normalise=False)
            for pattern in RETURN_PATTERNS
        ]
        inputs = list(map(torch.from_numpy, (*images.values(), cameras)))
        is_clear = ~onnx_export.undecided_triplets(
            onnx_export.Patterns(reid.model), inputs, list(map(torch.from_numpy, expected))
        )
        assert is_clear.any()
        for one, other in zip(actual, expected, strict=True):
            assert_close(one[is_clear], other[is_clear], *SHALLOW, *SHALLOW)


def test_an_image_whose_selection_is_a_tie_is_told_from_others():
    """The patches of an image of one colour are equal but for rounding; those of noise are not."""
    graph = onnx_export.Patterns(tiny_model(*MODELS["saliency"]).eval())
    images, cameras = random_images(1, 3)
    inputs = [image.clone() for image in images.values()]
    for image in inputs:
        image[1] = 0.5
    with torch.no_grad():
        expected = graph(*inputs, cameras)
    is_undecided = onnx_export.undecided_triplets(graph, (*inputs, cameras), expected)
    assert is_undecided.tolist() == [False, True, False]


@pytest.mark.slow
def test_the_lines_of_the_page_give_the_features(tiny_root, files, tmp_path, monkeypatch):
    """Of images of the model's size and of larger ones, which Pillow and torchvision resize alike but for a few levels; and of
    the model in float16, whose inputs and outputs are float32."""
    opts = ("INPUT.PIXEL_MEAN", "[0.4, 0.5, 0.6]", "INPUT.PIXEL_STD", "[0.2, 0.25, 0.3]")
    weights, _ = export(tmp_path, tiny_root, "model.onnx", opts=opts)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.S)
    (lines,) = (block for block in blocks if "onnxruntime.InferenceSession" in block)
    reid = demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")
    paths = {"rgb": "a.jpg", "ni": "b.png", "ti": "c.png"}
    for precision, size, change in (
        ("float32", (16, 32), 0),
        ("float32", (70, 50), 1e-4),
        ("float16", (16, 32), 1e-4),
    ):
        for name, path in paths.items():
            Image.open(files[name][0]).resize(size, Image.Resampling.BICUBIC).save(path)
        onnx_export.convert_onnx(Path("model.onnx"), precision)
        exec(lines, actual := {})
        expected = reid.features(**paths)
        loaded = demo_sdtps.load("model.onnx")(**paths)
        assert reid.distance(loaded, actual["features"]).max() < 1e-6
        assert actual["features"].dtype == np.float32 and actual["features"].shape == expected.shape
        if not change:
            assert_close(actual["features"], expected, *SHALLOW, *SHALLOW)
        others = reid.features(**{name: images[1:] for name, images in files.items()})
        allowed = change * reid.distance(others, expected).min() + 1e-12
        assert reid.distance(actual["features"], expected).max() <= allowed


@pytest.mark.slow
def test_a_model_of_triton_takes_and_gives_what_its_configuration_says(tiny_root, tmp_path):
    """Tensors of its names, types and shapes, with the batch as first axis, as the server passes them to ONNX Runtime."""
    repository = tmp_path / "repository"
    export(tmp_path, tiny_root, "m.onnx", "--triton", repository)
    config = (repository / "m" / "config.pbtxt").read_text()
    assert all(line in config for line in ('name: "m"\n', 'backend: "onnxruntime"\n'))
    entry = r'^(input|output) \{name: "(\w+)" data_type: TYPE_(\w+) dims: \[(.*?)\]( reshape: \{shape: \[\]\})?\}$'
    types = {"FP32": np.float32, "INT64": np.int64}
    fed, outputs = {}, {}
    for kind, name, data_type, dims, is_flat in re.findall(entry, config, re.M):
        shape = (5, *map(int, dims.split(", ")))
        values = np.zeros(shape, types[data_type])
        assert not is_flat or shape == (5, 1)
        (fed if kind == "input" else outputs)[name] = values[:, 0] if is_flat else values
    assert list(fed) == ["rgb", "ni", "ti", "camera"]
    file = repository / "m" / "1" / "model.onnx"
    assert file.read_bytes() == (tmp_path / "m.onnx").read_bytes()
    actual = onnxruntime.InferenceSession(file).run(list(outputs), fed)
    assert [(each.shape, each.dtype) for each in actual] == [
        (each.shape, each.dtype) for each in outputs.values()
    ]
    with pytest.raises(SystemExit, match="2"):  # a model of that name is there
        export(tmp_path, tiny_root, "other/m.onnx", "--triton", repository)


@pytest.mark.slow
@pytest.mark.soak
def test_another_precision_is_compared_with_float32_on_the_test_split(
    tiny_root, command, capsys, tmp_path
):
    """Of a model that reads RGB alone, whose graph has no other input. Equal distances may change places."""
    opts = ("MODEL.MODALITIES", "[RGB]")
    words = ("--precision", "int8")
    weights, _ = export(tmp_path, tiny_root, "m.onnx", *words, opts=opts)
    header, *rows = [line.split() for line in capsys.readouterr().out.splitlines()[4:7]]
    assert header == ["precision", "mAP", "Rank-1", "ms/triplet"]
    assert [row[0] for row in rows] == ["float32", "int8"]
    command(test_net.main, "--weight", weights, "--json", tmp_path / "m.json")
    scores = read_scores(tmp_path / "m.json")["3"]
    expected = near({"3": {name: scores[name] for name in ("mAP", "Rank-1")}}, printed=0.0005)
    assert {"mAP": float(rows[0][1]) / 100, "Rank-1": float(rows[0][2]) / 100} == expected["3"]
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert [argument.name for argument in session.get_inputs()] == ["rgb", "camera"]
    assert "MatMulInteger" in str(onnx.load(tmp_path / "m.onnx").graph)
