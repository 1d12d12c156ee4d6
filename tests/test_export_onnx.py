"""The model as an exported program of torch and as ONNX, for any batch."""
from ast import literal_eval

import numpy as np
import onnxruntime
import pytest
import torch
from commands import CONFIG, SHOWN, cameras_of, checkpoint_file, cli_args_for
from numeric import assert_close
from PIL import Image
from tiny import MODEL, random_images, tiny_model
from torchvision.transforms import v2

import demo_sdtps
from demo_sdtps.config import RETURN_PATTERNS, load_cfg
from demo_sdtps.retrieval import onnx_export
from demo_sdtps.retrieval.extractor import mean_camera
from demo_sdtps.tools import export_onnx

SLIM = ("MODEL.USE_SDTPS", False, "MODEL.SLIM_BLOCKS", "[1, 3]", "MODEL.SLIM_KEEP", "[0.5, 0.5]",
        "INPUT.JOINT_AUGMENTATION", True)
FUSION = ("MODEL.HDM", True, "MODEL.ATM", True, "MODEL.HEAD", 4)
MODELS = {"SDTPS": (), "saliency": (*SLIM, *FUSION, "MODEL.SLIM_SCORE", "saliency"),
          "supervised": (*SLIM, "MODEL.SLIM_SCORE", "supervised"),
          "ToMe": (*SLIM, "MODEL.SLIM_SCORE", "demo_sdtps.studies.peers:ToMe", "MODEL.SLIM_SHARED", False)}


@pytest.mark.slow
@pytest.mark.parametrize("opts", MODELS.values(), ids=MODELS)
def test_an_exported_program_takes_any_batch(opts):
    model = tiny_model(*opts).eval()
    program = onnx_export.export_program(model, [64, 32]).module()
    for batch in (1, 3, 40):
        images, cameras = random_images(batch, batch)
        with torch.no_grad():
            expected = model.patterns(images, cameras)
            found = program(*images.values(), cameras)
        for one, other in zip(found, expected.values(), strict=True):
            assert_close(one, other, *MODEL, *MODEL)


@pytest.mark.slow
@pytest.mark.soak
def test_onnx_gives_the_features_of_the_checkpoint(tiny_root, files, command, tmp_path):
    """Of slimming, SDTPS, HDM and ATMoE, with preprocessing by the metadata alone; the last camera is the mean. Of images whose
    selection is a tie but for rounding, another patch may be kept."""
    opts = (*MODELS["saliency"], "MODEL.USE_SDTPS", True)
    weights = checkpoint_file(tmp_path / "w.pth", load_cfg(CONFIG, cli_args_for(tiny_root, *opts)[2:]))
    code, stdout, stderr = command(export_onnx.main, "--weight", weights, "--output", tmp_path / "m.onnx")
    assert code == 0, stderr
    assert [line.split()[0] for line in stdout.splitlines()] == ["batch", "1", "3", "8", "Wrote"]
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    told = session.get_modelmeta().custom_metadata_map
    size, mean, std = [int(told["height"]), int(told["width"])], literal_eval(told["mean"]), literal_eval(told["std"])
    fed = {}
    for name, paths in files.items():
        pixels = torch.stack([torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1) for path in paths])
        resized = v2.functional.resize(pixels, size, antialias=True)
        fed[name] = v2.functional.normalize(resized * float(told["scale"]), mean, std).numpy()
    reid = demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")
    known, unknown = cameras_of(files), np.full(SHOWN, int(told["unknown_camera"]))
    for cameras, given in ((np.array(known), known), (unknown, None)):
        found = session.run(None, {**fed, "camera": cameras})
        expected = [reid.features(**files, return_pattern=pattern, camera=given, normalise=False)
                    for pattern in RETURN_PATTERNS]
        inputs = [torch.from_numpy(part) for part in (*fed.values(), cameras)]
        with mean_camera(reid.model.backbone):
            graph = onnx_export.Patterns(reid.model)
            told = ~onnx_export.undecided(graph, inputs, [torch.from_numpy(part) for part in expected])
        assert told.any()
        for own, theirs in zip(found, expected, strict=True):
            assert_close(own[told], theirs[told], *MODEL, *MODEL)


def test_an_image_whose_selection_is_a_tie_is_told_from_others():
    """The patches of an image of one colour are equal but for rounding; those of noise are not."""
    graph = onnx_export.Patterns(tiny_model(*MODELS["saliency"]).eval())
    images, cameras = random_images(1, 3)
    inputs = [image.clone() for image in images.values()]
    for image in inputs:
        image[1] = 0.5
    with torch.no_grad():
        expected = graph(*inputs, cameras)
    assert onnx_export.undecided(graph, (*inputs, cameras), expected).tolist() == [False, True, False]
