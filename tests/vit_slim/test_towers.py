"""Which Vision Transformers demo_sdtps.slim finds, and what it refuses before the first forward, by one sentence."""

import copy
import math

import pytest
import timm
import torch
import torchvision
from plug_in_host import make_replicas
from slim_host import host_case
from slim_models import count_hooks, timm_model, torchvision_model, transformers_model
from torch import nn
from torchvision.models.vision_transformer import ConvStemConfig

import demo_sdtps
from demo_sdtps.config import UserError

KNOWN = (
    "timm's VisionTransformer and Eva, CLIP's image tower, open_clip, torchvision, TransReID, transformers' ViT, DeiT, ViTMAE, "
    "CLIP, SigLIP, DINOv2 and DINOv3"
)
NONE = f"has no Vision Transformer that slimming knows ({KNOWN}); name the blocks by blocks_at."


def assert_refuses(model, sentence, *args, **settings):
    """The whole sentence; the model is left as it was."""
    hooks, modules = count_hooks(model), [name for name, _ in model.named_modules()]
    with pytest.raises(UserError) as error:
        demo_sdtps.slim(model, *args, **settings)
    assert str(error.value) == sentence
    assert count_hooks(model) == hooks and [name for name, _ in model.named_modules()] == modules


def small_timm(name, **changes):
    return timm.create_model(name, embed_dim=32, depth=1, num_heads=2, img_size=64, **changes)


ARCHITECTURES = {  # that attend in windows, and with a fixed bias for every pair of positions
    "SwinTransformer": lambda: torchvision.models.SwinTransformer(
        [4, 4], 16, [1, 1], [1, 2], [7, 7]
    ),
    "Beit": lambda: nn.Sequential(small_timm("beit_base_patch16_224")),
    "VisionTransformerRelPos": lambda: small_timm("vit_relpos_small_patch16_224"),
}


@pytest.mark.parametrize("inner", ARCHITECTURES)
def test_other_architectures(inner):
    assert_refuses(
        ARCHITECTURES[inner](),
        f"{inner} attends in windows or with fixed biases, so that no patch can be left out; choose another "
        f"backbone: slimming knows {KNOWN}.",
        **{"blocks_at": "blocks"} if inner == "VisionTransformerRelPos" else {},
    )


STEM = "but slimming needs one convolution; choose a backbone without a convolutional stem."
COMPILED = "is compiled already; slim the model, then compile it."


def convolutions():
    stem = [ConvStemConfig(8, 3, 4), ConvStemConfig(16, 3, 4)]
    model = torchvision.models.VisionTransformer(64, 16, 1, 2, 32, 64, conv_stem_configs=stem)
    return nn.ModuleDict({"body": model})


def compiled_block():
    model = timm_model("test_vit")
    model.blocks[1].compile()
    return model


def without_class_token():
    return timm_model("test_vit", class_token=False, global_pool="avg")


@pytest.mark.parametrize(
    ("build", "sentence", "settings"),
    [
        (
            lambda: nn.DataParallel(timm_model("test_vit")),
            "DataParallel wraps a model already; slim the model, then wrap it.",
            {},
        ),
        (
            lambda: transformers_model("ViTMAEModel", "ViTMAEForPreTraining"),
            "ViTMAEForPreTraining reconstructs patches that it masks itself; slim its encoder alone.",
            {},
        ),
        (lambda: transformers_model("CLIPModel").text_model, f"CLIPTextModel {NONE}", {}),
        (convolutions, f"ModuleDict.body makes its patches by Sequential, {STEM}", {}),
        (compiled_block, f"VisionTransformer {COMPILED}", {}),
        (
            lambda: nn.ModuleList(timm_model("test_vit", embed_dim=width) for width in (48, 32)),
            "score is 'supervised', whose weights are for tokens of one width, but the towers have 32 and 48 channels; slim "
            "each tower by itself.",
            {"score": "supervised"},
        ),
    ],
)
def test_models_that_slimming_does_not_fit(build, sentence, settings):
    assert_refuses(build(), sentence, (0,), (0.5,), **settings)


def test_a_score_without_attention_needs_no_class_token():
    slimmed = demo_sdtps.slim(without_class_token(), (1,), (0.5,))
    assert slimmed.forward_features(torch.randn(1, 3, 64, 32)).shape == (1, 4, 32)


def test_a_model_that_is_slimmed():
    model = demo_sdtps.slim(timm_model("test_vit"), (1,), (0.5,))
    again = "VisionTransformer or a part of it is slimmed already; call demo_sdtps.unslim before."
    assert_refuses(model, again)
    assert_refuses(nn.Sequential(model), again.replace("VisionTransformer", "Sequential"))
    assert_refuses(copy.deepcopy(model), again)
    with pytest.raises(
        UserError,
        match=r"^VisionTransformer is not slimmed; call demo_sdtps\.slim\(model\) before\.$",
    ):
        demo_sdtps.unslim(demo_sdtps.unslim(model))


SCORES = "'saliency' or 'distinctness' or 'supervised' or 'self_supervised', or a Score"
DEPTH = "but VisionTransformer has 3 blocks; choose among 0 (its input) to 2."
NO_LIST = "but VisionTransformer has no list of blocks there; give the path of an nn.Sequential or nn.ModuleList."
BOTH = "but there must be rising whole numbers and one share in (0, 1] for each, such as (0, 4) and (0.5, 0.5)."


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"blocks": (3,), "keep": (0.5,)}, f"blocks is [3], {DEPTH}"),
        ({"blocks": (), "keep": ()}, f"blocks is () and keep (), {BOTH}"),
        ({"keep": (0.5, 0.0)}, f"blocks is (1, 2) and keep (0.5, 0.0), {BOTH}"),
        *(
            ({"blocks": blocks, "keep": (0.5,)}, f"blocks is {blocks!r} and keep (0.5,), {BOTH}")
            for blocks in ("x", [1.5], ["0"], [None], [-1], [[0]])
        ),
        *(
            ({"keep": keep}, f"blocks is (1, 2) and keep {keep!r}, {BOTH}")
            for keep in ("xy", [math.nan] * 2, [0.5, None], ["0.5", 0.5])
        ),
        *(
            (
                {"keep": None, "operations": operations},
                f"operations is {operations!r} and keep None; give one of them, operations as a share in (0, 1].",
            )
            for operations in ("x", math.nan, [0.5], 0.0)
        ),
        ({"prefix": "x"}, "prefix is 'x' and suffix 0; both must be numbers of tokens."),
        ({"suffix": -1}, "prefix is None and suffix -1; both must be numbers of tokens."),
        ({"score": []}, "score has 0 scores for 2 blocks; give one for each."),
        (
            {"score": "salience"},
            f"score is 'salience', but it must be {SCORES}; the nearest is 'saliency'.",
        ),
        (
            {"keep": None, "operations": 0.2},
            "operations is 0.2, but 0.342 of them are left where one patch is kept after block 1; raise it, or drop patches "
            "after an earlier block.",
        ),
        (
            {"keep": (0.5, 0.2)},
            "keep is [0.5, 0.2], but 0.2 of 4 patches is less than one; raise it.",
        ),
        ({"blocks_at": "patch_embed"}, f"blocks_at is 'patch_embed', {NO_LIST}"),
    ],
    ids=str,
)
def test_wrong_settings(settings, sentence):
    assert_refuses(
        timm_model("test_vit"), sentence, **{"blocks": (1, 2), "keep": (0.5, 0.5)} | settings
    )


def test_a_tower_is_found_wherever_it_is():
    model = nn.Sequential(nn.Identity(), nn.ModuleDict({"body": torchvision_model()}))
    assert demo_sdtps.slim(model, (1,), (0.5,)).slimming.blocks == (1,)
    counts = []
    model[1].body.encoder.layers[1].register_forward_hook(
        lambda block, args, output: counts.append(output.shape[1])
    )
    model[1].body(torch.randn(1, 3, 64, 64))
    assert counts == [1 + 8 + 1]


def test_replicas_are_refused():
    """nn.DataParallel makes them of every module before it runs them in threads."""
    model = demo_sdtps.slim(host_case().model(), (1, 2), (0.6, 0.5), blocks_at="tower.blocks")
    with pytest.raises(UserError, match=r"^nn.DataParallel .*; use .*DistributedDataParallel\.$"):
        make_replicas(model, 2)
