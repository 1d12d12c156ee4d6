"""Which Vision Transformers demo_sdtps.slim finds, and what it refuses before the first forward, by one sentence."""

import copy
import subprocess
import sys

import pytest
import timm
import torch
import torchvision
import transformers
from slim_host import Block, Host, Tower
from slim_models import (
    CASES,
    WORDS,
    hooks_of,
    open_clip_model,
    timm_model,
    torchvision_model,
    transformers_model,
)
from torch import nn
from torchvision.models.vision_transformer import ConvStemConfig

import demo_sdtps
from demo_sdtps.config import UserError
from studies.baselines import EViT, ToMe

KNOWN = "timm's VisionTransformer and Eva, CLIP's image tower, open_clip, torchvision, transformers' ViT, CLIP and DINOv2"
NONE = f"has no Vision Transformer that slimming knows ({KNOWN}); name the blocks of another one by blocks_at."


def refused(model, sentence, *args, **settings):
    """The whole sentence; the model is left as it was."""
    hooks, modules = hooks_of(model), [name for name, _ in model.named_modules()]
    with pytest.raises(UserError) as error:
        demo_sdtps.slim(model, *args, **settings)
    assert str(error.value) == sentence
    assert hooks_of(model) == hooks and [name for name, _ in model.named_modules()] == modules


def small_timm(name, **changes):
    return timm.create_model(name, embed_dim=32, depth=1, num_heads=2, img_size=64, **changes)


def small_transformers(name, **changes):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64}
    config = getattr(transformers, name.replace("Model", "Config"))(**sizes | changes)
    return getattr(transformers, name)(config)


def swin():
    return timm.create_model(
        "swin_tiny_patch4_window7_224", embed_dim=16, depths=(1, 1), num_heads=(1, 2), img_size=56
    )


WINDOWS, BIASES = "attends in windows", "adds a fixed bias for every pair of positions"
ARCHITECTURES = [
    (swin, "SwinTransformer", WINDOWS),
    (
        lambda: torchvision.models.SwinTransformer([4, 4], 16, [1, 1], [1, 2], [7, 7]),
        "SwinTransformer",
        WINDOWS,
    ),
    (lambda: small_timm("samvit_base_patch16"), "VisionTransformerSAM", WINDOWS),
    (
        lambda: small_transformers("SamVisionModel", mlp_dim=32, global_attn_indexes=[]),
        "SamVisionModel",
        WINDOWS,
    ),
    (lambda: nn.Sequential(small_timm("beit_base_patch16_224")), "Beit", BIASES),
    (lambda: small_transformers("BeitModel", use_relative_position_bias=True), "BeitModel", BIASES),
    (lambda: small_timm("vit_relpos_small_patch16_224"), "VisionTransformerRelPos", BIASES),
]


@pytest.mark.parametrize(("build", "inner", "reason"), ARCHITECTURES)
def test_other_architectures(build, inner, reason):
    refused(
        build(),
        f"{inner} {reason}, so that no patch can be left out; choose another backbone: slimming knows {KNOWN}.",
        **{"blocks_at": "blocks"} if inner == "VisionTransformerRelPos" else {},
    )


STEM = (
    "but slimming needs one convolution, whose output is the grid of patches; choose a backbone without a "
    "convolutional stem."
)
COMPILED = "is compiled, so that hooks come too late; slim first, compile then."


def convolutions():
    stem = [ConvStemConfig(8, 3, 4), ConvStemConfig(16, 3, 4)]
    model = torchvision.models.VisionTransformer(64, 16, 1, 2, 32, 64, conv_stem_configs=stem)
    return nn.ModuleDict({"body": model})


def compiled(*path):
    model = timm_model("test_vit")
    model.get_submodule(".".join(path)).compile()
    return model


@pytest.mark.parametrize(
    ("build", "sentence", "settings"),
    [
        (
            lambda: nn.DataParallel(timm_model("test_vit")),
            "DataParallel wraps a model already; slim the model, then wrap it.",
            {},
        ),
        (lambda: nn.Linear(2, 2), f"Linear {NONE}", {}),
        (torchvision.models.squeezenet1_1, f"SqueezeNet {NONE}", {}),
        (lambda: transformers_model("CLIPModel").text_model, f"CLIPTextModel {NONE}", {}),
        (Host, f"Host {NONE}", {}),
        (
            lambda: small_timm("vit_tiny_r_s16_p8_224"),
            f"VisionTransformer makes its patches by HybridEmbed, {STEM}",
            {},
        ),
        (convolutions, f"ModuleDict.body makes its patches by Sequential, {STEM}", {}),
        (
            lambda: timm_model("test_vit", class_token=False, global_pool="avg"),
            "score is EViT, which reads the attention of the class token, but VisionTransformer has no class token; "
            "choose another score, such as saliency.",
            {"score": EViT(32, (4, 4))},
        ),
        (
            Tower,
            "score is 'EViT', which reads the keys of a block, but the attention of this backbone's blocks (Block) is "
            "computed in another way; choose another score or backbone.",
            {"score": EViT(32, (4, 4)), "blocks_at": "blocks"},
        ),
        (
            lambda: nn.Sequential(nn.Linear(2, 2), nn.ModuleList([Block()])),
            "blocks_at is '1', but Sequential has no nn.Conv2d beside these blocks, whose output is the grid of "
            "patches; slimming needs one.",
            {"blocks_at": "1"},
        ),
        (lambda: torch.compile(timm_model("test_vit")), f"OptimizedModule {COMPILED}", {}),
        (
            lambda: nn.Sequential(torch.compile(timm_model("test_vit"))),
            f"Sequential {COMPILED}",
            {},
        ),
        (compiled, f"VisionTransformer {COMPILED}", {}),
        (lambda: compiled("blocks", "1"), f"VisionTransformer {COMPILED}", {}),
    ],
)
def test_models_that_slimming_does_not_fit(build, sentence, settings):
    refused(build(), sentence, (0,), (0.5,), **settings)


def test_a_score_without_attention_needs_no_class_token():
    model = timm_model("test_vit", class_token=False, global_pool="avg")
    slimmed = demo_sdtps.slim(model, (1,), (0.5,))
    assert slimmed.forward_features(torch.randn(1, 3, 64, 32)).shape == (1, 4, 32)


def test_a_model_that_is_slimmed():
    model = demo_sdtps.slim(timm_model("test_vit"), (1,), (0.5,))
    again = "VisionTransformer is slimmed already, or a part of it; call demo_sdtps.unslim(model) before."
    refused(model, again)
    refused(nn.Sequential(model), again.replace("VisionTransformer", "Sequential"))
    refused(copy.deepcopy(model), again)
    with pytest.raises(
        UserError,
        match=r"^VisionTransformer is not slimmed; call demo_sdtps\.slim\(model\) before\.$",
    ):
        demo_sdtps.unslim(demo_sdtps.unslim(model))


SCORES = "'saliency' or 'distinctness' or 'supervised' or 'self_supervised', or a Score"
DEPTH = (
    "but VisionTransformer has 3 blocks, so patches can be dropped after blocks 0 (the input) to 2; choose among "
    "these."
)
NO_LIST = "but VisionTransformer has no list of blocks there; give the path of an nn.Sequential or nn.ModuleList."
BOTH = "but there must be increasing blocks and one share for each, such as (0, 4) and (0.5, 0.5)."


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"blocks": (3,), "keep": (0.5,)}, f"blocks is [3], {DEPTH}"),
        ({"blocks": (-1,), "keep": (0.5,)}, f"blocks is [-1], {DEPTH}"),
        ({"blocks": (), "keep": ()}, f"blocks is () and keep (), {BOTH}"),
        ({"blocks": (2, 1)}, f"blocks is (2, 1) and keep (0.5, 0.5), {BOTH}"),
        ({"blocks": (1, 1)}, f"blocks is (1, 1) and keep (0.5, 0.5), {BOTH}"),
        ({"blocks": (1,)}, f"blocks is (1,) and keep (0.5, 0.5), {BOTH}"),
        ({"keep": (0.5, 0.0)}, "keep is (0.5, 0.0), but each share must be above 0 and at most 1."),
        ({"keep": (1.5, 0.5)}, "keep is (1.5, 0.5), but each share must be above 0 and at most 1."),
        (
            {"keep": (float("nan"), 0.5)},
            "keep is (nan, 0.5), but each share must be above 0 and at most 1.",
        ),
        (
            {"score": "salience"},
            f"score is 'salience', but it must be {SCORES}; the nearest is 'saliency'.",
        ),
        (
            {"score": ToMe(32, (2, 2))},
            "score is ToMe, whose merged tokens weigh more in attention (needs_sizes), which other "
            "blocks than this project's do not know; choose another score, or use MODEL.SLIM_SCORE of "
            "this project's model.",
        ),
        ({"score": None}, f"score is None, but it must be {SCORES}."),
        ({"blocks": 2}, f"blocks is 2 and keep (0.5, 0.5), {BOTH}"),
        ({"score": []}, "score has 0 scores for 2 blocks; give one for each."),
        ({"shared": "all"}, "shared is 'all'; it must be True, False or 'first'."),
        ({"blocks_at": "layers"}, f"blocks_at is 'layers', {NO_LIST}"),
        ({"blocks_at": "patch_embed"}, f"blocks_at is 'patch_embed', {NO_LIST}"),
    ],
    ids=str,
)
def test_wrong_settings(settings, sentence):
    refused(timm_model("test_vit"), sentence, **{"blocks": (1, 2), "keep": (0.5, 0.5)} | settings)


def test_less_than_one_patch_is_refused_by_the_first_forward():
    model = demo_sdtps.slim(timm_model("test_vit"), (1, 2), (0.5, 0.2))
    with pytest.raises(
        UserError,
        match=r"^keep is \[0.5, 0.2\], but 0.2 of 4 patches is less than one; raise it\.$",
    ):
        model(torch.randn(1, 3, 64, 32))


def test_a_tower_is_found_wherever_it_is():
    model = nn.Sequential(nn.Identity(), nn.ModuleDict({"body": torchvision_model()}))
    assert demo_sdtps.slim(model, (1,), (0.5,)).slimming.blocks == (1,)
    seen = []
    model[1].body.encoder.layers[1].register_forward_hook(
        lambda block, args, output: seen.append(output.shape[1])
    )
    model[1].body(torch.randn(1, 3, 64, 64))
    assert seen == [1 + 8 + 1]


@pytest.mark.parametrize(
    "build", [open_clip_model, lambda: transformers_model("CLIPModel")], ids=["open_clip", "CLIP"]
)
def test_text_is_never_slimmed(build):
    """Its blocks are of the same class as the images'."""
    model = build().eval()
    dense = copy.deepcopy(model)
    demo_sdtps.slim(model, (0,), (0.5,))
    for name, module in model.named_modules():
        if "text" in name or name.startswith("transformer"):
            assert not module._forward_hooks and not module._forward_pre_hooks, name
    encode = [
        each.encode_text
        if hasattr(each, "encode_text")
        else lambda words, each=each: each.get_text_features(words)[1]
        for each in (model, dense)
    ]
    assert torch.equal(encode[0](WORDS), encode[1](WORDS))


@pytest.mark.parametrize("name", [name for name in CASES if name != "OpenAI's CLIP"])
def test_one_tower_is_found_with_its_layout(name):
    model = demo_sdtps.slim(CASES[name].build(), (1,), (0.5,))
    (layout,) = model.slimming.layouts
    assert (layout.depth, layout.tokens_first, layout.suffix) == (3, CASES[name].tokens_first, 0)


@pytest.mark.slow
def test_nothing_but_torch_is_imported():
    """By slim, of a model of own classes, and its forward."""
    code = """
import sys
import torch
from torch import nn
import demo_sdtps
demo_sdtps.slim, demo_sdtps.unslim, demo_sdtps.slim_loss
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, 4)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True) for _ in range(2))
    def forward(self, images):
        tokens = self.conv(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens)
        return tokens
model = demo_sdtps.slim(Model(), (1,), (0.5,), blocks_at="blocks")
print(model(torch.randn(1, 3, 16, 16)).shape[1], {"yacs", "timm", "torchvision", "transformers", "PIL"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "8 set()\n", done.stderr
