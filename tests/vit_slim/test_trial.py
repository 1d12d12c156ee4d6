"""What demo_sdtps.slim refuses by a trial on the meta device, which changes nothing, and what is left to the first forward."""

import random
from functools import partial

import pytest
import timm
import torch
import transformers
from slim_host import SIDE, Segmenter, Tower
from slim_models import WIDTH, count_hooks, timm_model
from torch import nn

import demo_sdtps
from demo_sdtps.config import UserError
from vit_slim.scores.base import Score


def with_convolution(**changes):
    """With a patch convolution that makes another grid, which the model itself has room for."""
    model = timm_model("vit_tiny_patch16_224")
    model.patch_embed.proj = nn.Conv2d(3, WIDTH, 16, 16, **changes)
    tokens = 1 + model.patch_embed.proj(torch.zeros(1, 3, 64, 32))[0, 0].numel()
    model.pos_embed = nn.Parameter(torch.zeros(1, tokens, WIDTH))
    return model


class Blind(nn.Module):
    """Calls its blocks on something else than its convolution's patches."""

    def __init__(self):
        super().__init__()
        self.other, self.tower = nn.Linear(3 * SIDE, WIDTH), Tower()

    def forward(self, images):
        tokens = self.other(images.flatten(1).unflatten(1, (-1, 3 * SIDE)))
        for block in self.tower.blocks:
            tokens = block(tokens)
        return tokens


class Skipping(Tower):
    """Leaves a block out, as layerdrop does."""

    def forward(self, images):
        return self.step(2, self.step(0, self.embed(images)))


def pit():
    return timm.create_model("pit_ti_224")


def vitdet():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return transformers.VitDetModel(transformers.VitDetConfig(**sizes, image_size=64))


GRID = r"^The patch convolution makes a grid of .* without padding\.$"
ROWS = r"^\w+ gets \(2, .*\), but slimming needs blocks of tokens, \(B, L, C\); choose another backbone\.$"
WHOLE = r"^\w+ runs, but not where patches are left out \(.*\): its blocks need the whole grid, .*restore=True"
COUNT = "^Block gets 17 tokens where the grid has 16 patches, but prefix={} and suffix={} were expected around them"
DROPOUT = r"^Block gets 7 tokens where the grid has 8 patches, .*, such as patch dropout \(timm's patch_drop_rate\)\.$"
REFUSED = {
    "padding": (partial(with_convolution, padding=8), GRID, {}),
    "dilation": (partial(with_convolution, dilation=2), GRID, {}),
    "PiT": (pit, GRID, {"blocks_at": "transformers.0.blocks"}),
    "PVT": (lambda: timm.create_model("pvt_v2_b0"), GRID, {"blocks_at": "stages.2.blocks"}),
    "DaViT": (lambda: timm.create_model("davit_tiny"), ROWS, {"blocks_at": "stages.2.blocks"}),
    "VitDet": (vitdet, ROWS, {"blocks_at": "encoder.layer"}),
    "CrossViT": (
        lambda: timm.create_model("crossvit_tiny_240"),
        "^MultiScaleBlock gets list, but slimming needs blocks of tokens",
        {"blocks_at": "blocks"},
    ),
    "mixer": (lambda: timm.create_model("mixer_s32_224"), WHOLE, {"blocks_at": "blocks"}),
    "head of the grid": (Segmenter, WHOLE, {"blocks_at": "tower.blocks"}),
    "patch dropout": (partial(timm_model, "test_vit", patch_drop_rate=0.25), DROPOUT, {}),
    "prefix": (Tower, COUNT.format(2, 0), {"blocks_at": "blocks", "prefix": 2}),
    "suffix": (Tower, COUNT.format(None, 3), {"blocks_at": "blocks", "suffix": 3}),
    "skipped block": (Skipping, "never came to block 1; .*layerdrop", {"blocks_at": "blocks"}),
    "no convolution": (Blind, "calls these blocks without its", {"blocks_at": "tower.blocks"}),
    "operations": (
        partial(timm.create_model, "vit_tiny_patch16_224"),
        r"^operations is 0\.01, but 0\.036 of them are left where one patch is kept",
        {"blocks": (0, 4), "keep": None, "operations": 0.01},
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("CrossViT", "DaViT")))
        for name in REFUSED
    ],
)
def test_before_the_first_forward(name):
    """By one sentence; the model is left as it was."""
    build, sentence, settings = REFUSED[name]
    model = build()
    hooks, modules = count_hooks(model), [module for module, _ in model.named_modules()]
    with pytest.raises(UserError, match=sentence) as error:
        demo_sdtps.slim(model, **{"blocks": (1,), "keep": (0.5,)} | settings)
    assert "\n" not in str(error.value)
    assert (
        count_hooks(model) == hooks and [module for module, _ in model.named_modules()] == modules
    )


class Counting(nn.Module):
    """Has what a forward changes: statistics, an attribute that it caches, random numbers that it draws."""

    def __init__(self):
        super().__init__()
        self.norm, self.tower, self.cache = nn.BatchNorm2d(3), Tower(dropout=0.5), None

    def forward(self, images):
        self.cache = torch.rand(len(images)), random.random()
        return self.tower(self.norm(images))


def test_nothing_of_the_model_changes():
    model, calls = Counting(), []
    model.tower.blocks[1].eval()
    model.tower.blocks[0].register_forward_hook(lambda *call: calls.append(call))
    model.norm.register_forward_pre_hook(lambda *call: calls.append(call))
    modes = [module.training for module in model.modules()]
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    state, python = torch.get_rng_state(), random.getstate()
    demo_sdtps.slim(model, (1,), (0.5,), blocks_at="tower.blocks")
    assert torch.equal(torch.get_rng_state(), state) and random.getstate() == python
    assert model.cache is None and not calls
    demo_sdtps.unslim(model)
    assert [module.training for module in model.modules()] == modes
    assert model.state_dict().keys() == weights.keys()
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in weights.items())


class OnValues(Score):
    """Reads values, which a tensor on the meta device does not have."""

    def score(self, tokens, context):
        return torch.tensor(tokens.sum(dim=2).tolist())


def test_a_score_of_the_user_is_not_tried():
    score = OnValues(WIDTH, (0, 0), modalities=("image",))
    model = demo_sdtps.slim(timm_model("test_vit"), (1,), (0.5,), score)
    assert model(torch.randn(2, 3, 64, 32)).shape == (2, 5)


class Guided(nn.Module):
    """Takes more than images, and its tower is none that can run by itself."""

    def __init__(self, tower):
        super().__init__()
        self.tower, self.tower.forward = tower, None

    def forward(self, images, shift):
        return type(self.tower).forward(self.tower, images + shift)


@pytest.mark.parametrize(
    ("tower", "sentence"),
    [
        (partial(with_convolution, padding=8), GRID),
        (partial(timm_model, "test_vit", patch_drop_rate=0.25), DROPOUT),
        (Skipping, "never came to block 1"),
    ],
    ids=["padding", "patch dropout", "skipped block"],
)
def test_a_model_that_cannot_be_tried_is_refused_by_its_forward(tower, sentence):
    model = Guided(tower())
    demo_sdtps.slim(model, (1,), (0.5,), blocks_at="tower.blocks")
    side = (32, 32) if isinstance(model.tower, Tower) else (64, 32)
    with pytest.raises(UserError, match=sentence):
        model(torch.randn(2, 3, *side), 0.5)


def test_patch_dropout_does_nothing_in_evaluation():
    model = timm_model("test_vit", patch_drop_rate=0.25).eval()
    slimmed = demo_sdtps.slim(model, (1,), (0.5,))
    assert slimmed(torch.randn(2, 3, 64, 32)).shape == (2, 5)
    with pytest.raises(UserError, match=DROPOUT):
        slimmed.train()(torch.randn(2, 3, 64, 32))


class Persistent(nn.Module):
    """Calls a tower again, or a second one instead, where it fails at the block `fails_at`."""

    def __init__(self, restarts):
        super().__init__()
        self.towers = nn.ModuleList(timm_model("test_vit") for _ in range(2))
        self.restarts, self.fails_at = restarts, None
        for number, block in enumerate(self.towers[0].blocks):
            block.register_forward_pre_hook(lambda *_, number=number: self.fail(number))

    def fail(self, block):
        if block == self.fails_at:
            self.fails_at = None
            raise RuntimeError("busy")

    def forward(self, images):
        try:
            return self.towers[0](images)
        except RuntimeError:
            return self.towers[0 if self.restarts else 1](images)


@pytest.mark.parametrize(
    ("block", "settings"),
    [(0, {}), (1, {}), (2, {}), (1, {"restore": True}), (2, {"shared": False})],
    ids=str,
)
def test_a_model_may_catch_the_error_of_a_tower(block, settings):
    for restarts in (True, False):
        model = demo_sdtps.slim(Persistent(restarts).eval(), (1,), (0.5,), **settings)
        images = torch.randn(2, 3, 64, 32)
        expected = model.towers[0 if restarts else 1](images)
        model.fails_at = block
        assert torch.equal(model(images), expected) and model.fails_at is None


def test_a_size_of_images_may_be_a_list():
    """As TransReID has it from its configuration."""
    model = timm_model("test_vit")
    model.patch_embed.img_size = [*model.patch_embed.img_size]
    assert demo_sdtps.slim(model, (1,), (0.5,)).slimming.blocks == (1,)
