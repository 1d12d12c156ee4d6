"""Slimming and SDTPS by demo_sdtps.patch in models of the miniature of DeMo's checkout, beside this project's model."""

from functools import partial
from itertools import count

import pytest
import torch
from choices import margins
from commands import BASELINE
from numeric import assert_close, tolerance
from plug_in_host import CAMERAS, CLASSES, PATH, features, images, patched
from tiny import pairs
from torch import nn

from demo_sdtps.config import load_cfg
from demo_sdtps.evaluation.extraction import extract_patterns
from demo_sdtps.modeling import backbones as clip
from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint
from demo_sdtps.modeling.checkpoints.names import to_demo
from demo_sdtps.modeling.demo import make_model, missing_modalities

SIZE = [128, 64]
STAGES = ["MODEL.SLIM_BLOCKS", [1, 3], "MODEL.SLIM_KEEP", [0.5, 0.5]]
ON = ["MODEL.USE_SDTPS", True]
FUSED = ["MODEL.HDM", True, "MODEL.ATM", True]
RATIOS = ["MODEL.SDTPS_SPARSE_RATIO", 0.75, "MODEL.SDTPS_AGGR_RATIO", 0.5, "MODEL.SDTPS_BETA", 0.1]
OWN = ["MODEL.SLIM_SHARED", False, "MODEL.SLIM_SCORE"]  # a score of the tokens chooses in each call


@pytest.fixture
def build(host):
    return partial(patched, host, SIZE)


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
        monkeypatch.setattr(clip.CLIP, "build", small)
        sizes = ["INPUT.SIZE_TRAIN", SIZE, "INPUT.SIZE_TEST", SIZE, "MODEL.STRIDE_SIZE", [16, 16]]
        clips = ["MODEL.TRANSFORMER_TYPE", "ViT-B-16", "MODEL.PATCH_SIZE", 0, "MODEL.HEAD", 4]
        cfg = load_cfg(BASELINE, [str(word) for word in (*sizes, *clips, *opts)])
        torch.save(model.state_dict(), tmp_path / "theirs.pth")
        actual = make_model(cfg, CLASSES, CAMERAS)
        load_weights(actual, read_checkpoint(tmp_path / "theirs.pth"))
        return cfg, actual.eval()

    return load


def clear_triplets(model, batch=3):
    """Images and cameras of which the model keeps patches by scores that differ by more than roundings."""
    for seed in count(1):
        inputs = images(batch, seed, SIZE), torch.arange(batch) % CAMERAS
        with margins() as actual:
            features(model, *inputs)
        if min(actual, default=1) > tolerance(*PATH, *PATH):
            return inputs


@pytest.mark.parametrize(
    "opts",
    [
        [*STAGES, *FUSED],
        [*STAGES, "MODEL.SLIM_MERGE", False, "MODEL.DIRECT", 0],
        [*STAGES, *OWN, "saliency", "MODEL.GLOBAL_LOCAL", False],
        [*STAGES, "TEST.MISS", "rt", *FUSED],
        [*ON, "MODEL.DIRECT", 0],
        [*ON, "MODEL.HDM", True, "TEST.MISS", "nt", "MODEL.SDTPS_GUIDE_MISSING", False],
        [*ON, *RATIOS],
        [*ON, "MODEL.DIRECT", 0, *FUSED],
        [*ON, "MODEL.GLOBAL_LOCAL", False, "TEST.MISS", "n"],
        [*ON, *FUSED, "MODEL.SDTPS_FEEDS_HDM", False],
    ],
    ids=lambda opts: " ".join(map(str, opts)),
)
def test_features_are_those_of_our_model(build, ours, opts):
    model = build(*opts)
    with torch.no_grad():
        for parameter in model.parameters():  # none is 0 or 1, as some are at the start
            parameter.add_(0.05 * torch.randn_like(parameter))
    triplets, cameras = clear_triplets(model)
    actual = features(model, triplets, cameras)
    cfg, expected = ours(model, *opts)
    theirs, by_us = model.state_dict(), to_demo(expected.state_dict())
    assert {name: tensor.shape for name, tensor in by_us.items()} == {
        name: tensor.shape for name, tensor in theirs.items()
    }
    with torch.no_grad():
        (patterns,) = extract_patterns(
            expected, triplets, cameras, [missing_modalities(cfg.TEST.MISS)]
        )
    for pattern, feature in zip((1, 2, 3), actual, strict=True):
        assert_close(feature, patterns[pattern], *PATH, *PATH)


def test_gradients_are_those_of_our_model(build, ours):
    model = build(*STAGES)
    _, other = ours(model, *STAGES)
    triplets, cameras = clear_triplets(model, 4)
    for each in (model, other):
        output = each.train()(triplets, cam_label=cameras)
        logits, feature = output if each is model else pairs(output)
        (logits.square().sum() + feature.square().sum()).backward()
    theirs = {
        name: tensor.grad for name, tensor in model.named_parameters() if tensor.grad is not None
    }
    gradient = other.backbone.vit.patch_embed.proj.weight.grad
    assert gradient.norm() > 0
    assert_close(
        theirs["BACKBONE.base.conv1.weight"], gradient, *4 * PATH
    )  # there and back, by both
    assert all(torch.isfinite(grad).all() for grad in theirs.values()) and len(theirs) > 50
