"""Slimming and SDTPS by demo_sdtps.patch in models of the miniature of DeMo's checkout, with both of its backbones."""

import shlex
from itertools import count

import pytest
import torch
from choices import margins
from commands import BASELINE
from numeric import assert_close, seeded, tolerance
from plug_in_host import CLASSES, NAMES, PATH
from tiny import pairs
from torch import nn

import demo_sdtps
from demo_sdtps.config import load_cfg
from demo_sdtps.evaluation.missing import extract_patterns
from demo_sdtps.modeling import make_model
from demo_sdtps.modeling.backbones import clip
from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint
from demo_sdtps.modeling.checkpoints.names import to_demo
from demo_sdtps.modeling.demo import missing_modalities

SIZE, CAMERAS = [128, 64], 4
STAGES = ["MODEL.SLIM_BLOCKS", [1, 3], "MODEL.SLIM_KEEP", [0.5, 0.5]]
ON = ["MODEL.USE_SDTPS", True]
FUSED = ["MODEL.HDM", True, "MODEL.ATM", True]
OWN = ["MODEL.SLIM_SHARED", False, "MODEL.SLIM_SCORE"]  # a score of the tokens chooses in each call
IMAGENET, CLIP = ["MODEL.TRANSFORMER_TYPE", "test_vit"], ["MODEL.TRANSFORMER_TYPE", "small_clip"]


@pytest.fixture
def build(host):
    """A patched model of KEY, VALUE, … options, the same for the same options."""
    defaults, make_theirs = host

    def build(*opts):
        cfg = demo_sdtps.add_config(defaults.clone())
        cfg.merge_from_list(["INPUT.SIZE_TRAIN", SIZE, *opts])
        torch.manual_seed(seeded())
        return demo_sdtps.patch(make_theirs(cfg, CLASSES, CAMERAS), cfg)

    return build


@pytest.fixture
def ours(monkeypatch, tmp_path):
    """Our model with the weights of a patched one, by a file as load_param and test_net.py read it; → (cfg, model)."""

    def small(self, cfg):  # CLIP's tower in the miniature's size
        vit = self._create(
            cfg, clip.NAME_IN_TIMM, mlp_layer=clip.QuickGELUMlp, embed_dim=64, depth=4, num_heads=2
        )
        vit.head = nn.Linear(64, 64, bias=False)
        return vit

    def load(model, *opts):
        words = [str(word) for word in opts]
        if "small_clip" in words:
            monkeypatch.setattr(clip.CLIP, "build", small)
            words = [
                *("ViT-B-16" if word == "small_clip" else word for word in words),
                "MODEL.PATCH_SIZE",
                "0",
            ]
        else:
            words += ["MODEL.PATCH_SIZE", "16"]
        cfg = load_cfg(
            BASELINE,
            [
                "INPUT.SIZE_TRAIN",
                str(SIZE),
                "INPUT.SIZE_TEST",
                str(SIZE),
                *shlex.split("MODEL.STRIDE_SIZE '[16,16]' MODEL.HEAD 4"),
                *words,
            ],
        )
        torch.save(model.state_dict(), tmp_path / "theirs.pth")
        actual = make_model(cfg, CLASSES, CAMERAS)
        load_weights(actual, read_checkpoint(tmp_path / "theirs.pth"))
        return cfg, actual.eval()

    return load


def triplets(batch=3, seed=1):
    torch.manual_seed(seeded(seed))
    return {name: torch.randn(batch, 3, *SIZE) for name in NAMES}, torch.arange(batch) % CAMERAS


def clear_triplets(model, batch=3):
    """Triplets of which the model keeps patches by scores that differ by more than roundings."""
    for seed in count(1):
        given = triplets(batch, seed)
        with margins() as actual:
            features(model, given)
        if min(actual, default=1) > tolerance(*PATH, *PATH):
            return given


def features(model, given=None):
    images, cameras = given or triplets()
    with torch.no_grad():
        return [
            model.eval()(images, cam_label=cameras, return_pattern=pattern) for pattern in (1, 2, 3)
        ]


@pytest.mark.parametrize(
    "opts",
    [
        [*STAGES, *CLIP, *FUSED],
        [*STAGES, *CLIP, "MODEL.SLIM_MERGE", False],
        [*STAGES, *CLIP, *OWN, "studies.baselines:EViT"],
        [*STAGES, *IMAGENET, *OWN, "studies.baselines:EViT", "MODEL.GLOBAL_LOCAL", False],
        [*STAGES, *IMAGENET, *OWN, "distinctness"],
        [*STAGES, *IMAGENET, "TEST.MISS", "rt", *FUSED],
        [*IMAGENET, "MODEL.DIRECT", 0, *FUSED],
        [*IMAGENET, "MODEL.GLOBAL_LOCAL", False, "TEST.MISS", "n"],
        [*ON, *IMAGENET],
        [*ON, *IMAGENET, "MODEL.DIRECT", 0],
        [*ON, *IMAGENET, "MODEL.HDM", True],
        [*ON, *IMAGENET, *FUSED],
        [*ON, *IMAGENET, "MODEL.DIRECT", 0, *FUSED],
        [*ON, *IMAGENET, "MODEL.GLOBAL_LOCAL", False, "TEST.MISS", "n"],
        [*ON, *IMAGENET, *FUSED, "MODEL.SDTPS_FEEDS_HDM", False],
    ],
    ids=lambda opts: " ".join(map(str, opts)),
)
def test_features_are_those_of_our_model(build, ours, opts):
    model = build(*opts)
    with torch.no_grad():
        for parameter in model.parameters():  # none is 0 or 1, as some are at the start
            parameter.add_(0.05 * torch.randn_like(parameter))
    images, cameras = given = clear_triplets(model)
    actual = features(model, given)
    cfg, expected = ours(model, *opts)
    theirs, by_us = model.state_dict(), to_demo(expected.state_dict())
    assert {name: tensor.shape for name, tensor in by_us.items()} == {
        name: tensor.shape for name, tensor in theirs.items()
    }
    with torch.no_grad():
        (patterns,) = extract_patterns(
            expected, images, cameras, [missing_modalities(cfg.TEST.MISS)]
        )
    for pattern, feature in zip((1, 2, 3), actual, strict=True):
        assert_close(feature, patterns[pattern], *PATH, *PATH)


@pytest.mark.parametrize("tower", [IMAGENET, CLIP], ids=["ImageNet", "CLIP"])
def test_gradients_are_those_of_our_model(build, ours, tower):
    opts = [*STAGES, *tower]
    model = build(*opts)
    _, other = ours(model, *opts)
    images, cameras = clear_triplets(model, 4)
    for each in (model, other):
        output = each.train()(images, cam_label=cameras)
        logits, feature = output if each is model else pairs(output)
        (logits.square().sum() + feature.square().sum()).backward()
    theirs = {
        name: tensor.grad for name, tensor in model.named_parameters() if tensor.grad is not None
    }
    name = (
        "BACKBONE.base.conv1.weight" if tower is CLIP else "BACKBONE.base.patch_embed.proj.weight"
    )
    gradient = other.backbone.vit.patch_embed.proj.weight.grad
    assert gradient.norm() > 0
    assert_close(theirs[name], gradient, *4 * PATH)  # there and back, by both
    assert all(torch.isfinite(grad).all() for grad in theirs.values()) and len(theirs) > 50


def test_operations_fall_by_the_share_of_tokens(build):
    """DeMo's own count, of a forward whose blocks after the first see half of the patches, with class and extra token."""
    dense, slimmed = (
        build(*CLIP, *opts).flops()[0]
        for opts in ([], ["MODEL.SLIM_BLOCKS", [1], "MODEL.SLIM_KEEP", [0.5]])
    )
    share = (1 + 3 * (16 + 2) / (32 + 1)) / 4
    assert 0.9 * share < slimmed / dense < 1.1 * share


def test_sdtps_behind_slimming_selects_among_what_is_left(build):
    model = build(*STAGES, *IMAGENET, "MODEL.USE_SDTPS", True, *FUSED)
    seen = []
    model.sdtps.register_forward_hook(
        lambda module, inputs, output: seen.append([part.shape[1] for part in inputs[:3]])
    )
    output = model.train()(*triplets(4)[:1], cam_label=torch.zeros(4, dtype=torch.long))
    assert seen == [[8, 8, 8]] and len(output) == 7
    assert [feature.shape for feature in features(model)] == [(3, 192), (3, 640), (3, 832)]
