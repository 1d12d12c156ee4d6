"""Modules and whole models against the reference systems' numbers (modules 1e-5, whole models 1e-4)."""

import golden_cases
import numpy as np
import pytest
import torch
from golden_cases import DEVICE, load_case, relative_error

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS, load_cfg
from demo_sdtps.evaluation.protocol import extract_patterns
from demo_sdtps.modeling.checkpoints.names import from_demo, to_demo
from demo_sdtps.modeling.checkpoints.pretrained import resize_position
from demo_sdtps.modeling.demo import make_model
from demo_sdtps.modeling.sdtps import MultiModalSDTPS

INPUTS = [f"{modality}_{kind}" for kind in ("cash", "global") for modality in MODALITIES]
OUTPUTS = ["RGB_enhanced", "NI_enhanced", "TI_enhanced", "rgb_mask", "nir_mask", "tir_mask"]
RATIOS = ("sparse_ratio", "aggr_ratio", "dim_ratio")
SETTINGS = ("embed_dim", "num_patches", *RATIOS, "beta", "use_gumbel")


def assert_near(actual, expected, error=1e-5, name=""):
    assert relative_error(actual, expected) < error, name


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_sdtps_small(mode):
    case = load_case("sdtps_small")
    module = MultiModalSDTPS(**{name: case.settings[name] for name in SETTINGS})
    module.load_state_dict(case.weights)  # strict: the names are the interface
    module.train(mode == "train")
    inputs = [case.arrays[name].clone().requires_grad_() for name in INPUTS]
    outputs = module(*inputs)
    arrays = case.arrays
    for name, output in zip(OUTPUTS, outputs, strict=True):
        assert_near(output, arrays[name], name=name)

    probes = [arrays[f"probe_{modality}"] for modality in MODALITIES]
    sum((one * probe).sum() for one, probe in zip(outputs[:3], probes, strict=True)).backward()
    for name, tensor in zip(INPUTS[:3], inputs[:3], strict=True):
        assert_near(tensor.grad, arrays[f"grad_{name}"], name=name)
    assert all(tensor.grad is None for tensor in inputs[3:]), "no gradient reaches the globals"
    score_mlp, aggregation = module.rgb_sparse.score_predictor, module.tir_aggr.weight
    assert_near(score_mlp[0].weight.grad, arrays["grad_rgb_predictor"])
    assert_near(aggregation[1].weight.grad, arrays["grad_tir_aggr"])


def test_position_resize():
    case = load_case("position_resize")
    resized = resize_position(case.arrays["position_embedding"][None], tuple(case.settings["grid"]))
    assert resized.shape == (1, 129, 24)
    assert_near(resized[0], case.arrays["resized"], 1e-6)


SLOW = pytest.mark.slow
WHOLE = [
    pytest.param("demo_sdtps", marks=SLOW),
    pytest.param("demo_clip", marks=SLOW),
    pytest.param("demo_imagenet", marks=SLOW),
    pytest.param("demo_clip_direct0", marks=SLOW),
]


@pytest.mark.parametrize("name", WHOLE)
def test_whole_model(name):
    case = load_case(name)
    settings = case.settings
    cfg = load_cfg(settings["config_file"], list(map(str, settings["opts"])))
    model = make_model(cfg, settings["num_class"], settings["camera_num"])
    ours = from_demo(case.weights)
    model.to(golden_cases.DEVICE).load_state_dict(ours)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trainable == settings["trainable_parameters"]

    images = {}  # of which the case names the seeds
    for modality, seed in settings["image_seeds"].items():
        image = np.random.RandomState(seed).standard_normal(settings["image_shape"])
        images[modality] = torch.from_numpy(image.astype(np.float32)).to(DEVICE)
    with torch.no_grad():
        patterns = extract_patterns(model.eval(), images, case.arrays["cam_label"])[0]
    assert list(patterns) == list(RETURN_PATTERNS)
    for pattern, feature in patterns.items():
        assert_near(feature, case.arrays[f"pattern_{pattern}"], 1e-4, pattern)

    back = to_demo(ours)
    assert back.keys() == case.weights.keys()
    for key, tensor in case.weights.items():
        assert back[key].dtype == tensor.dtype and back[key].shape == tensor.shape, key
        assert torch.equal(back[key], tensor), key
