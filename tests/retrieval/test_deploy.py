"""Exported files in place of a checkpoint: ONNX Runtime, OpenVINO where it is installed, and BoxMOT where it is."""

import json
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from commands import CONFIG, SHOWN, file_cameras, near, read_rows, read_scores
from exported import export
from numeric import assert_close
from PIL import Image
from slim_models import CASES
from tiny import MODEL
from torchvision.transforms import v2

import demo_sdtps
from demo_sdtps.commands import search
from demo_sdtps.commands import test as test_net
from demo_sdtps.commands.export import features as export_features
from demo_sdtps.config import UserError
from demo_sdtps.modeling.checkpoints.loading import read_checkpoint
from demo_sdtps.modeling.exported import resized
from demo_sdtps.retrieval.onnx_export import export_model
from demo_sdtps.retrieval.onnx_export.operators import OPERATORS
from studies import deployed

needs_openvino = pytest.mark.skipif(
    not (find_spec("openvino") and find_spec("nncf")), reason="openvino and nncf are not installed"
)
pytestmark = pytest.mark.slow  # test_export_onnx.py has the fast ones
BATCHES = (1, 2, 7)
SLIM = shlex.split(
    "MODEL.USE_SDTPS False MODEL.SLIM_BLOCKS [1,3] MODEL.SLIM_KEEP [0.5,0.5] INPUT.JOINT_AUGMENTATION True "
    "MODEL.SLIM_SCORE self_supervised"
)


@pytest.fixture(scope="module")
def exported(tiny_root, tmp_path_factory):
    """A model of RGB and TI, and its file that takes uint8."""
    opts = ("MODEL.MODALITIES", "[RGB, TI]", "TEST.IMS_PER_BATCH", 3)
    folder = tmp_path_factory.mktemp("exported")
    return export(folder, tiny_root, "m.onnx", "--input", "uint8", opts=opts)


def sides(checkpoint, file, **items):
    """Features by the checkpoint and by the file."""
    models = demo_sdtps.load(checkpoint, "MODEL.DEVICE", "cpu"), demo_sdtps.load(file)
    camera = items.pop("camera", None)
    return [model.features(**items, camera=camera) for model in models]


def check(checkpoint, file, files, **change):
    expected, actual = sides(checkpoint, file, **files, **change)
    assert_close(actual, expected, *MODEL, *MODEL)
    assert (actual.present == expected.present).all()


def test_a_file_gives_the_features_of_its_checkpoint(exported, files):
    """Of complete triplets in several batches, of missing modalities, and with cameras."""
    shown = {name: files[name] for name in ("rgb", "ti")}
    check(*exported, shown, camera=file_cameras(files))
    check(*exported, {"rgb": shown["rgb"]})
    check(*exported, {"rgb": [*shown["rgb"][:2], None], "ti": [None, *shown["ti"][1:3]]})


def test_images_of_any_size_are_resized_inside(exported, files, tmp_path):
    """But for a level of 255, by the file where all sizes are equal and before it where not; from every kind of item."""
    reids = [demo_sdtps.load(path) for path in exported]
    pictures = [Image.open(path).convert("RGB") for path in files["rgb"]]
    large = [picture.resize((41, 77), Image.Resampling.BICUBIC) for picture in pictures]
    unequal = [large[0], np.asarray(pictures[1]), np.asarray(large[2]) / 255]
    for items in (large, unequal):
        one, other = (reid.features(rgb=items) for reid in reids)
        between = reids[0].distance(one, one) + 9 * np.eye(len(one))
        near_by = np.diag(reids[0].distance(one, other))
        assert (near_by < 0.01 * between.min(axis=1)).all()
        rows, _ = reids[1].search(other, one, top=1)
        assert rows[:, 0].tolist() == list(range(len(one)))
    # by the file itself, for other code than ours
    model, arrays = reids[1].model, [np.asarray(each).transpose(2, 0, 1) for each in large]
    resized_before = model.inputs([[each, None] for each in arrays], [0] * len(arrays))
    before, inside = map(model.run, (resized_before, resized_before | {"rgb": np.stack(arrays)}))
    assert np.abs(inside - before).max() < 0.1 * np.abs(before[1:] - before[0]).max()
    pixels = arrays[0]
    by_torch = v2.functional.resize(torch.tensor(pixels), [32, 16]).numpy()
    assert np.abs(resized(pixels, (32, 16)) - by_torch.astype(int)).max() <= 1


def test_commands_take_a_file_as_a_checkpoint(exported, tiny_root, command, tmp_path):
    """mAP, exported features and hits of a search; a card and the origin are beside it and in it."""
    checkpoint, file = exported
    scores, features, hits = [], [], []
    root = ("DATASETS.ROOT_DIR", tiny_root)
    for number, weight in enumerate((checkpoint, file)):
        outputs = [tmp_path / f"{number}{suffix}" for suffix in (".json", ".npz", ".csv")]
        photos, index = tiny_root / "RGBNT201" / "test", ("--index", tmp_path / f"i{number}")
        asked = ("--gallery", photos, "--query", photos, "--top", "2", *index)
        for main, words in (
            (test_net.main, ("--json", outputs[0], "TEST.MISS", "t", *root)),
            (export_features, ("--output", outputs[1], *root)),
            (search.main, ("--csv", outputs[2], *asked)),
        ):
            code, _, stderr = command(main, "--weight", weight, *words)
            assert code == 0, stderr
        scores.append(read_scores(outputs[0]))
        features.append(np.load(outputs[1]))
        hits.append(read_rows(outputs[2]))
    assert scores[1] == near(scores[0])
    assert_close(features[1]["features"], features[0]["features"], *MODEL, *MODEL)
    assert features[0]["checkpoint_sha256"] != features[1]["checkpoint_sha256"]
    assert [row[:2] for row in hits[0]] == [row[:2] for row in hits[1]]
    same = sum(one[2] == other[2] for one, other in zip(*hits, strict=True))
    assert same > 0.9 * len(hits[0]) > 50
    assert f'load("{file.name}")' in file.with_suffix(".md").read_text()
    record = json.loads(
        {entry.key: entry.value for entry in onnx.load(file).metadata_props}["demo_sdtps"]
    )
    assert record["origin"]["dataset"] == "Synthetic" and record["modalities"] == ["RGB", "TI"]


def test_a_checkpoint_is_evaluated_as_each_file(exported, tiny_root, success, tmp_path):
    """By torch and each runtime that is installed, in float32 with the mAP of `test`, otherwise with one near it."""
    scores, output = tmp_path / "scores.json", tmp_path / "deployed.json"
    success(
        test_net.main, "--weight", exported[0], "--json", scores, "DATASETS.ROOT_DIR", tiny_root
    )
    stdout = success(deployed.main, f"tiny={exported[0]}", "--json", output)
    content = json.loads(output.read_text())
    maps = {row["precision"]: row["mAP"] for row in content["rows"]}
    expected = read_scores(scores)["3"]["mAP"]
    for precision, each in maps.items():
        bound = 1e-3 if "float32" in precision else 0.05
        assert each == pytest.approx(expected, abs=bound), precision
    runtimes = {
        "torch": ("float32", "bfloat16"),
        "ONNX Runtime": ("float32", "int8", "int8_static"),
    }
    if find_spec("openvino") and find_spec("nncf"):
        runtimes["OpenVINO"] = ("float32", "bfloat16", "int8")
    assert maps.keys() == {
        f"{name} {each}" for name, precisions in runtimes.items() for each in precisions
    }
    assert stdout.strip().endswith(deployed.table(content))


def test_files_that_cannot_be_used_are_named(exported, tmp_path):
    for name, content, text in (
        ("none.onnx", None, "does not exist"),
        ("bad.onnx", b"no model", "cannot be read"),
    ):
        if content:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name} {text}"):
            demo_sdtps.load(tmp_path / name)
    with pytest.raises(UserError, match=r"SIZE_TEST is \[32, 32\], but .* with \[32, 16\]"):
        sizes = ("INPUT.SIZE_TRAIN", "[32, 32]", "INPUT.SIZE_TEST", "[32, 32]")
        demo_sdtps.load(exported[1], *sizes)
    with pytest.raises(UserError, match=r"MODEL.SLIM_\w+ is \[0.*\], but .* with \[\]"):
        demo_sdtps.load(exported[1], "MODEL.SLIM_BLOCKS", "[0]", "MODEL.SLIM_KEEP", "[0.5]")
    with pytest.raises(UserError, match="but a checkpoint is needed"):
        read_checkpoint(exported[1])
    with pytest.raises(UserError, match=r"shape \(0, 5, 3\)"):
        demo_sdtps.load(exported[1]).features(rgb=np.zeros((0, 5, 3), np.uint8))
    plain = onnx.load(exported[1])
    (entry,) = (each for each in plain.metadata_props if each.key == "demo_sdtps")
    record = json.loads(entry.value)
    del record["file_digest"]
    wrong = ({"origin": [1]}, {"cameras": "4"}, {"columns": {"x": [0, 1]}}, {"size": 3})
    for text in (*(json.dumps(record | each) for each in wrong), "[]", "{", ""):
        entry.value = text
        onnx.save(plain, tmp_path / "plain.onnx")
        with pytest.raises(UserError, match="no record"):
            demo_sdtps.load(tmp_path / "plain.onnx")


def test_a_flipped_bit_of_an_exported_file_is_told(exported, tmp_path):
    """Anywhere, as in weights, where features would be other ones; also of a saved model."""
    demo_sdtps.load(exported[0], "MODEL.DEVICE", "cpu").save_pretrained(tmp_path)
    file = Path(shutil.copy(exported[1], tmp_path / "x.onnx"))
    for path, place in ((file, file), (tmp_path / "model.safetensors", tmp_path)):
        whole = path.read_bytes()
        demo_sdtps.load(place)
        for share in (0.1, 0.5, 0.9):
            damaged = bytearray(whole)
            damaged[int(share * len(whole))] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(UserError, match="damaged"):
                demo_sdtps.load(place)


def test_a_failed_export_leaves_the_earlier_file_alone(exported, tmp_path):
    file, blocked = tmp_path / "x.onnx", tmp_path / ".x.onnx.0.part"
    file.write_bytes(b"earlier")
    blocked.mkdir()
    with pytest.raises(UserError, match=r"x\.onnx cannot be written"):
        export_model(demo_sdtps.load(exported[0], "MODEL.DEVICE", "cpu"), file, overwrite=True)
    assert {*tmp_path.iterdir()} == {file, blocked} and file.read_bytes() == b"earlier"


def test_features_need_no_torch(exported, files):
    code = (
        "import sys, demo_sdtps; reid = demo_sdtps.load(sys.argv[1]); "
        "assert reid.features(rgb=sys.argv[2]).shape == (1, 128); assert 'torch' not in sys.modules"
    )
    words = map(str, (exported[1], files["rgb"][0]))
    subprocess.run([sys.executable, "-c", code, *words], check=True)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.soak] * (name != "torchvision"))
        for name, case in CASES.items()
    ],
)
@pytest.mark.parametrize("settings", [{"score": "saliency"}, {"shared": False}], ids=str)
def test_models_of_slim_are_exported_for_any_batch(case, settings, tmp_path):
    """By torch.export, and the first of them by ONNX."""
    dense = case.model().float()
    model = demo_sdtps.slim(dense, (0, 2), (0.5, 0.5), **case.settings | settings)

    class Called(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, images):
            return case.call(self.model, images)

    called, batch = Called().eval(), torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(called, (case.draw(2).float(),), dynamic_shapes=({0: batch},))
    runs = [program.module()]
    if case in [*CASES.values()][:1]:
        import onnxruntime

        written = torch.onnx.export(
            program, dynamo=True, verbose=False, custom_translation_table=OPERATORS
        )
        written.save(tmp_path / "m.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
        name = session.get_inputs()[0].name
        runs.append(lambda images: torch.from_numpy(session.run(None, {name: images.numpy()})[0]))
    for count in BATCHES:
        images = case.draw(count, count).float()
        with torch.no_grad():
            expected = called(images)
            for run in runs:
                torch.testing.assert_close(run(images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["m.onnx", pytest.param("m.xml", marks=needs_openvino)])
def test_a_slimmed_model_in_a_file_leaves_missing_modalities_out(name, tiny_root, files, tmp_path):
    """With HDM, for every number of triplets; and what a missing modality has no vote in."""
    opts = (*SLIM, "MODEL.HDM", True, "MODEL.ATM", True, "MODEL.HEAD", 4)
    paths = export(tmp_path, tiny_root, name, "--input", "uint8", opts=opts, config=CONFIG)
    folder = tiny_root / "RGBNT201" / "test"
    all_files = {key: sorted((folder / key.upper()).iterdir())[:7] for key in files}
    for count in BATCHES:
        for missing in (None, "rgb", "ti"):
            shown = {key: each[:count] for key, each in all_files.items() if key != missing}
            check(*paths, shown)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "precision"),
    [("m.onnx", "int8_static"), pytest.param("m.xml", "int8", marks=needs_openvino)],
)
def test_int8_is_calibrated_and_near_float32(name, precision, tiny_root, command, tmp_path, capsys):
    """On own images, without labels; its features are near those of the checkpoint, and not equal."""
    photos = tiny_root / "RGBNT201" / "train_171"
    words = ("--precision", precision, "--images", photos)
    checkpoint, file = export(tmp_path, tiny_root, name, *words, opts=("MODEL.MODALITIES", "[RGB]"))
    assert "mAP" not in capsys.readouterr().out
    items = {"rgb": sorted((tiny_root / "RGBNT201" / "test" / "RGB").iterdir())[:SHOWN]}
    one, other = sides(checkpoint, file, **items)
    cosines = (one * other).sum(axis=1)
    assert (cosines > 0.97).all() and (cosines < 1 - 1e-7).any()
    assert name.endswith("xml") or file.stat().st_size < checkpoint.stat().st_size


@pytest.mark.skipif(not find_spec("boxmot"), reason="boxmot is not installed")
def test_a_model_of_rgb_is_one_of_boxmot(tiny_root, files, tmp_path, monkeypatch):
    """The lines of the page: two boxes of a frame have the features of these crops."""
    import cv2

    opts = ("MODEL.MODALITIES", "[RGB]", "INPUT.PIXEL_MEAN", "[0.4,0.5,0.6]")
    checkpoint, _ = export(tmp_path, tiny_root, "tracker.onnx", "--input", "imagenet", opts=opts)
    frame = np.zeros((220, 200, 3), np.uint8)
    crops = [cv2.imread(str(path)) for path in files["rgb"][:2]]
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    (lines,) = (
        each for each in page.split("```") if "boxmot" in each and each.startswith("python")
    )
    rows = [
        list(map(int, row.split(",")))
        for row in lines.partition("[[")[2].partition("]]")[0].split("], [")
    ]
    for crop, (left, top, right, bottom) in zip(crops, rows, strict=True):
        frame[top:bottom, left:right] = cv2.resize(crop, (right - left, bottom - top))
    monkeypatch.chdir(tmp_path)
    cv2.imwrite("frame.png", frame)
    exec(lines.removeprefix("python\n").replace("frame.jpg", "frame.png"), actual := {})
    shown = [frame[top:bottom, left:right, ::-1] for left, top, right, bottom in rows]
    small = [np.ascontiguousarray(cv2.resize(crop, (16, 32))) for crop in shown]
    expected = demo_sdtps.load(checkpoint, "MODEL.DEVICE", "cpu").features(rgb=small)
    np.testing.assert_allclose(actual["features"], expected, atol=0.01)
