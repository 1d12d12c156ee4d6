"""Which Vision Transformers demo_sdtps.slim finds, and what it refuses by one sentence: by itself, or at the first forward."""

import copy
import math
from functools import partial

import pytest
import timm
import torch
import torchvision
from slim_models import Ensemble, Tower, timm_model, transformers_model
from torch import nn
from torchvision.models.vision_transformer import ConvStemConfig

import demo_sdtps
from demo_sdtps.config import UserError


def assert_refuses(model, word, *args, **settings):
    """By one sentence; the model is left as it was."""
    before = [type(module) for module in model.modules()]
    with pytest.raises(UserError) as error:
        demo_sdtps.slim(model, *args, **settings)
    assert word in str(error.value) and "\n" not in str(error.value)
    assert [type(module) for module in model.modules()] == before


def small_timm(name, **changes):
    return timm.create_model(name, embed_dim=32, depth=1, num_heads=2, img_size=64, **changes)


def convolutions():
    stem = [ConvStemConfig(8, 3, 4), ConvStemConfig(16, 3, 4)]
    model = torchvision.models.VisionTransformer(64, 16, 1, 2, 32, 64, conv_stem_configs=stem)
    return nn.ModuleDict({"body": model})


def compiled_block():
    model = timm_model("test_vit")
    model.blocks[1].compile()
    return model


def padded():
    """Its patch convolution pads, so that the grid is larger."""
    model = Tower()
    model.stem = nn.Conv2d(3, 32, 8, 8, padding=4)
    model.position = nn.Parameter(torch.zeros(1, 25, 32))
    return model


@pytest.mark.parametrize(
    ("build", "word", "settings"),
    [
        (
            lambda: torchvision.models.SwinTransformer([4, 4], 16, [1, 1], [1, 2], [7, 7]),
            "SwinTransformer",
            {},
        ),
        (lambda: nn.Sequential(small_timm("beit_base_patch16_224")), "Beit", {}),
        (lambda: small_timm("vit_relpos_small_patch16_224"), "RelPos", {"blocks_at": "blocks"}),
        (lambda: timm.create_model("mixer_s32_224"), "Mixer", {"blocks_at": "blocks"}),
        (lambda: nn.DataParallel(timm_model("test_vit")), "DataParallel", {}),
        (lambda: transformers_model("ViTMAEModel"), "ViTMAEModel", {}),
        (partial(transformers_model, "YolosModel", image_size=[64, 64]), "tokens after them", {}),
        *(
            (partial(transformers_model, name, head), head, {})
            for name, head in (
                ("ViTModel", "ViTForMaskedImageModeling"),
                ("PixioModel", "PixioBackbone"),
            )
        ),
        (lambda: transformers_model("CLIPModel").text_model, "CLIPTextModel", {}),
        (convolutions, "one nn.Conv2d", {}),
        (compiled_block, "compiled", {}),
        (padded, "without padding", {"blocks_at": "blocks"}),
    ],
)
def test_models_that_token_pruning_does_not_fit(build, word, settings):
    assert_refuses(build(), word, (0,), (0.5,), **settings)


def test_the_last_block_of_transreid_with_jpm_belongs_to_its_head():
    model = timm_model("test_vit")
    model.local_feature = True
    assert_refuses(model, "blocks is [2]", (2,), (0.5,))


def test_a_model_that_is_slimmed():
    model = demo_sdtps.slim(timm_model("test_vit"), (1,), (0.5,))
    for again in (model, nn.Sequential(model), copy.deepcopy(model)):
        assert_refuses(again, "VisionTransformer in")
    with pytest.raises(UserError, match="is not slimmed"):
        demo_sdtps.unslim(demo_sdtps.unslim(model))
    whole = demo_sdtps.slim(Ensemble({"a": model, "b": timm_model("test_vit")}), (1,), (0.5,))
    whole["b"] = timm_model("test_vit")
    other = demo_sdtps.slim(timm_model("test_vit"))
    other.blocks = timm_model("test_vit").blocks
    for call in (whole, other.forward_features):
        with pytest.raises(UserError, match="slim it again after a part was replaced"):
            call(torch.zeros(1, 3, 160, 160))
    whole["b"].blocks[1].forward = whole["b"].forward
    assert_refuses(whole["b"], "was replaced")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"blocks": (3,), "keep": (0.5,)}, "blocks is [3]"),
        ({"blocks": (), "keep": ()}, "blocks is ()"),
        ({"blocks": [1.5], "keep": (0.5,)}, "blocks is [1.5]"),
        *(
            ({"keep": keep}, f"keep {keep!r}")
            for keep in (0.5, (0.5, 0.0), [math.nan] * 2, ("1", 1))
        ),
        ({"keep": 0.5, "operations": 1.5}, "operations 1.5"),
        ({"operations": 0.5}, "operations 0.5"),
        ({"score": "salience"}, "score 'salience'"),
        ({"blocks_at": "patch_embed"}, "blocks_at is 'patch_embed'"),
    ],
    ids=str,
)
def test_wrong_settings(settings, word):
    defaults = {"blocks": (1, 2), "keep": (0.5, 0.5)}
    assert_refuses(timm_model("test_vit"), word, **defaults | settings)


class Skipping(Tower):
    """Calls not all of its blocks."""

    def steps(self, indices, x, **masks):
        return super().steps([0, 2], x, **masks)


class Blind(nn.Module):
    """Calls the blocks of its tower with patches that another convolution makes."""

    def __init__(self):
        super().__init__()
        self.tower, self.other = Tower(), Tower()

    def forward(self, images):
        return self.tower.steps(range(3), self.other.embed(images))


class Beside(Tower):
    """The patches of another convolution come before its own."""

    def embed(self, images):
        return torch.cat([Tower().embed(images), super().embed(images)], dim=1)


class Segmenter(nn.Module):
    """A head that needs the whole grid, of the `side` or of the root of the number of patches."""

    def __init__(self, side=None):
        super().__init__()
        self.tower, self.head, self.side = Tower(), nn.ConvTranspose2d(32, 2, 2, 2), side

    def forward(self, images):
        patches = self.tower(images)[:, 1:].transpose(1, 2)
        side = self.side or math.isqrt(patches.shape[2])
        return self.head(patches.unflatten(2, (side, side)))


class Counted(Segmenter):
    """An error of its own where features are left out, as of LLaVA."""

    def forward(self, images):
        if self.tower(images).shape[1] != 1 + 16:
            raise self.side or ValueError("Image features and image tokens do not match")


@pytest.mark.parametrize(
    ("build", "word", "side", "settings"),
    [
        (
            partial(transformers_model, "VitDetModel"),
            "needs blocks of tokens",
            (64, 64),
            {"blocks_at": "encoder.layer"},
        ),
        (partial(transformers_model, "PixtralVisionModel"), "of B images", (64, 64), {}),
        (partial(timm_model, "test_vit", patch_drop_rate=0.25), "patch_drop_rate", (64, 32), {}),
        (Tower, "prefix=2", (32, 32), {"blocks_at": "blocks", "prefix": 2}),
        (Skipping, "layerdrop", (32, 32), {"blocks_at": "blocks"}),
        (Blind, "patches slimming has not seen", (32, 32), {"blocks_at": "tower.blocks"}),
        (Beside, "with prefix=None", (32, 32), {"blocks_at": "blocks"}),
        (partial(Segmenter, 4), "needs the whole grid", (32, 32), {"blocks_at": "tower.blocks"}),
        (
            Segmenter,
            "all blocks and heads",
            (32, 32),
            {"blocks_at": "tower.blocks", "keep": (0.25,)},
        ),
        (Counted, "do not match", (32, 32), {"blocks_at": "tower.blocks"}),
        (partial(Counted, AssertionError()), "whole grid", (32, 32), {"blocks_at": "tower.blocks"}),
        (
            partial(timm_model, "test_vit", features_only=True, num_classes=None),
            "features_only",
            (64, 32),
            {},
        ),
    ],
)
def test_what_the_first_forward_shows(build, word, side, settings):
    """It is refused by one sentence, and so is every later one; the dense model runs again."""
    model = demo_sdtps.slim(build(), (1,), **{"keep": (0.5,)} | settings)
    for _ in range(2):
        with pytest.raises(UserError) as error:
            model.train()(torch.randn(2, 3, *side))
        assert word in str(error.value) and "\n" not in str(error.value)
    demo_sdtps.unslim(model).train()(torch.randn(2, 3, *side))
