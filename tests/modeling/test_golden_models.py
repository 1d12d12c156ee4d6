"""Modules and whole models against the reference systems' numbers (modules 1e-5, whole models 1e-4)."""

import golden_cases
import pytest
import torch
from golden_cases import load_case, relative_error, seeded_input

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS, load_cfg
from demo_sdtps.evaluation.missing import extract_patterns
from demo_sdtps.modeling import make_model
from demo_sdtps.modeling.checkpoints.names import from_demo, to_demo
from demo_sdtps.modeling.checkpoints.pretrained import resize_position
from demo_sdtps.modeling.sdtps import MultiModalSDTPS

INPUTS = [f"{modality}_cash" for modality in MODALITIES] + [
    f"{modality}_global" for modality in MODALITIES
]
OUTPUTS = ["RGB_enhanced", "NI_enhanced", "TI_enhanced", "rgb_mask", "nir_mask", "tir_mask"]


def build_sdtps(case):
    names = (
        "embed_dim",
        "num_patches",
        "sparse_ratio",
        "aggr_ratio",
        "beta",
        "use_gumbel",
        "dim_ratio",
    )
    module = MultiModalSDTPS(**{name: case.settings[name] for name in names})
    module.load_state_dict(case.weights)  # strict: the names are the interface
    return module


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_sdtps_small(mode):
    case = load_case("sdtps_small")
    module = build_sdtps(case).train(mode == "train")
    inputs = [case.arrays[name].clone().requires_grad_() for name in INPUTS]
    outputs = module(*inputs)
    for name, output in zip(OUTPUTS, outputs, strict=True):
        assert relative_error(output, case.arrays[name]) < 1e-5, name

    sum(
        (output * case.arrays[f"probe_{modality}"]).sum()
        for modality, output in zip(MODALITIES, outputs[:3], strict=True)
    ).backward()
    for name, tensor in zip(INPUTS[:3], inputs[:3], strict=True):
        assert relative_error(tensor.grad, case.arrays[f"grad_{name}"]) < 1e-5, name
    assert all(tensor.grad is None for tensor in inputs[3:]), "no gradient reaches the globals"
    assert (
        relative_error(
            module.rgb_sparse.score_predictor[0].weight.grad, case.arrays["grad_rgb_predictor"]
        )
        < 1e-5
    )
    assert (
        relative_error(module.tir_aggr.weight[1].weight.grad, case.arrays["grad_tir_aggr"]) < 1e-5
    )


def test_sdtps_default():
    case = load_case("sdtps_default")
    module = build_sdtps(case)
    batch, width, patches = (
        case.settings["batch"],
        case.settings["embed_dim"],
        case.settings["num_patches"],
    )
    inputs = [
        seeded_input(seed, batch, *((patches, width) if name.endswith("cash") else (width,)))
        for name, seed in case.settings["input_seeds"].items()
    ]
    with torch.no_grad():
        outputs = module(*inputs)
    for name, output in zip(OUTPUTS, outputs, strict=True):
        assert relative_error(output, case.arrays[name]) < 1e-5, name
    assert sum(p.numel() for p in module.parameters()) == 365_157


def test_position_resize():
    case = load_case("position_resize")
    resized = resize_position(case.arrays["position_embedding"][None], tuple(case.settings["grid"]))
    assert resized.shape == (1, 129, 24)
    assert relative_error(resized[0], case.arrays["resized"]) < 1e-6


@pytest.mark.parametrize(
    "name",
    [
        "demo_sdtps",
        pytest.param("demo_clip", marks=pytest.mark.slow),
        pytest.param("demo_imagenet", marks=pytest.mark.slow),
        pytest.param("demo_clip_direct0", marks=[pytest.mark.slow, pytest.mark.soak]),
    ],
)
def test_whole_model(name):
    case = load_case(name)
    settings = case.settings
    cfg = load_cfg(settings["config_file"], list(map(str, settings["opts"])))
    with torch.device("meta"):  # all of its numbers are the case's
        model = make_model(cfg, settings["num_class"], settings["camera_num"])
    ours = from_demo(case.weights)
    model.to_empty(device=golden_cases.DEVICE).load_state_dict(ours)
    assert (
        sum(p.numel() for p in model.parameters() if p.requires_grad)
        == settings["trainable_parameters"]
    )

    images = {
        modality: seeded_input(seed, *settings["image_shape"])
        for modality, seed in settings["image_seeds"].items()
    }
    with torch.no_grad():
        patterns = extract_patterns(model.eval(), images, case.arrays["cam_label"])[0]
    assert list(patterns) == list(RETURN_PATTERNS)
    for pattern, feature in patterns.items():
        assert relative_error(feature, case.arrays[f"pattern_{pattern}"]) < 1e-4, pattern

    back = to_demo(ours)
    assert back.keys() == case.weights.keys()
    for key, tensor in case.weights.items():
        assert back[key].dtype == tensor.dtype and back[key].shape == tensor.shape, key
        assert torch.equal(back[key], tensor), key
