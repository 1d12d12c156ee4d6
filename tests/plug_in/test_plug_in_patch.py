"""demo_sdtps.patch and add_config on a model of the miniature of DeMo's checkout, beside this project's model."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import torch
from commands import BASELINE
from numeric import assert_close, shift_seed, tolerance
from sdtps_cases import assert_gradients_equal
from tiny import BLOCK, equal, make_replicas, margins, pairs
from torch import nn

import demo_sdtps
from demo_sdtps.config import get_cfg, load_cfg
from demo_sdtps.evaluation.protocol import extract_patterns
from demo_sdtps.modeling import backbones as clip
from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint
from demo_sdtps.modeling.checkpoints.names import to_demo
from demo_sdtps.modeling.demo import make_model, missing_modalities

FUSED = ["MODEL.HDM", True, "MODEL.ATM", True]
SLIMMED = ["MODEL.USE_SDTPS", False, "MODEL.SLIM_BLOCKS", [1, 3], "MODEL.SLIM_KEEP", [0.5, 0.5]]
ADDED = {"sdtps", "bottleneck_sdtps", "classifier_sdtps"}
NAMES = ("RGB", "NI", "TI")
WIDTH, CLASSES, CAMERAS, SIZE = 64, 5, 4, [64, 32]
SDTPS_PATH = (WIDTH, WIDTH, WIDTH // 4, 40, WIDTH, WIDTH, WIDTH // 5, 40, 40)
"""Lengths of the sums (numeric.py) in SDTPS of up to 40 patches: norms, cosines, scores, softmax; norm, MLP, softmax, means."""
PATH = (
    3 * 16 * 16,
    *4 * BLOCK,
    WIDTH,
    WIDTH,
    2 * WIDTH,
    *SDTPS_PATH,
    40,
    *2 * (WIDTH, WIDTH, WIDTH, 3 * 41, 3 * 41, WIDTH),
    7 * WIDTH,
)
"""… and from images to features: patches, four blocks, norm and projection, PIFE, SDTPS and its means, HDM and ATMoE."""


def patched(host, size, *opts):
    """A patched model of KEY, VALUE, … options, the same for the same options."""
    defaults, make_model = host
    cfg = demo_sdtps.add_config(defaults.clone())
    cfg.merge_from_list(["INPUT.SIZE_TRAIN", size, *opts])
    torch.manual_seed(shift_seed())
    return demo_sdtps.patch(make_model(cfg, CLASSES, CAMERAS), cfg)


def images(batch, seed=0, size=SIZE):
    torch.manual_seed(shift_seed(seed))
    return {name: torch.randn(batch, 3, *size) for name in NAMES}


def features(model, inputs, cameras=None):
    """Those of the three return patterns."""
    cameras = torch.zeros(len(inputs["RGB"]), dtype=torch.long) if cameras is None else cameras
    with torch.no_grad():
        return [
            model.eval()(inputs, cam_label=cameras, return_pattern=pattern) for pattern in (1, 2, 3)
        ]


@pytest.fixture
def build(host):
    def build(*opts, is_on=True):
        return patched(host, SIZE, "MODEL.USE_SDTPS", is_on, *opts)

    return build


def test_the_keys_are_the_schemas(host):
    cfg = demo_sdtps.add_config(host[0].clone())
    ours = get_cfg().MODEL
    added = set(cfg.MODEL) - set(host[0].MODEL)
    assert added == {name for name in ours if "SDTPS" in name or name.startswith("SLIM_")}
    assert all(cfg.MODEL[name] == ours[name] for name in added)
    cfg.MODEL.SDTPS_BETA = 0.1
    assert demo_sdtps.add_config(cfg).MODEL.SDTPS_BETA == 0.1


def step(model, precision=None):
    """A training forward and its gradients; the same noise whenever it is called."""
    torch.manual_seed(shift_seed(1))
    with torch.autocast("cpu", precision, enabled=precision is not None):
        output = model.train()(images(4), cam_label=torch.arange(4))
    pairs = output[:-1] if len(output) % 2 else output
    sum(tensor.float().square().mean() for tensor in pairs).backward()
    return output, {name: parameter.grad for name, parameter in model.named_parameters()}


EACH_SETTING = pytest.mark.parametrize(
    "opts",
    [
        [],
        FUSED,
        ["MODEL.DIRECT", 0, *FUSED],
        ["MODEL.GLOBAL_LOCAL", False, "TEST.MISS", "n"],
        ["MODEL.STRIDE_SIZE", [12, 14]],
    ],
    ids=str,
)


@EACH_SETTING
def test_off_changes_nothing_and_on_no_other_weight(build, host, opts):
    torch.manual_seed(shift_seed())
    cfg = host[0].clone()
    cfg.merge_from_list(["INPUT.SIZE_TRAIN", [64, 32], *opts])
    untouched, off, on = host[1](cfg, CLASSES, 4), build(*opts, is_on=False), build(*opts)
    assert type(off) is type(untouched) and not off._forward_hooks
    before, state = untouched.state_dict(), on.state_dict()
    assert list(off.state_dict()) == list(before)
    assert equal(before, off.state_dict()) and equal(before, state)
    assert state["bottleneck_sdtps.weight"].eq(1).all()
    assert state["bottleneck_sdtps.bias"].eq(0).all()
    assert not on.bottleneck_sdtps.bias.requires_grad
    weight = state["classifier_sdtps.weight"]
    six_standard_errors = 6 / (2 * weight.numel()) ** 0.5
    assert float(weight.std()) == pytest.approx(0.001, rel=six_standard_errors)


@EACH_SETTING
def test_training_returns_another_pair_and_reaches_every_new_parameter(build, opts):
    expected, _ = step(build(*opts, is_on=False))
    (logits, feature, *others), gradients = step(build(*opts))
    assert logits.shape == (4, CLASSES) and feature.shape == (4, 3 * WIDTH)
    # What was returned before follows, with the MoE's pair first where there is one: it comes from other tokens now.
    is_fused = "MODEL.HDM" in opts
    others, expected = ([torch.as_tensor(tensor) for tensor in each] for each in (others, expected))
    assert [tensor.shape for tensor in others] == [tensor.shape for tensor in expected]
    assert equal(others[2 * is_fused :], expected[2 * is_fused :])
    assert not is_fused or (not torch.equal(others[1], expected[1]) and others[-1] == 0)
    new = {name: gradient for name, gradient in gradients.items() if "sdtps" in name}
    assert len(new) == 3 * 11 + 3 and new.pop("bottleneck_sdtps.bias") is None
    for name, gradient in new.items():
        assert gradient.isfinite().all(), name
        # A bias that all selected tokens share cancels in the softmax over them.
        assert name.endswith("aggr.weight.3.bias") or gradient.norm() > 1e-7, name


def test_a_patched_model_is_one_of_the_checkouts(build):
    model = build(*FUSED)
    order = [kind.__name__ for kind in type(model).__mro__]
    assert order.index("SDTPSForward") < order.index("DeMo")
    assert {name.partition(".")[0] for name in model.state_dict()} - {
        name.partition(".")[0] for name in build(*FUSED, is_on=False).state_dict()
    } == ADDED
    state = list(model.state_dict())
    cfg = get_cfg()
    cfg.MODEL.USE_SDTPS = True
    assert demo_sdtps.patch(model, cfg) is model and list(model.state_dict()) == state


@pytest.mark.parametrize("opts", [FUSED, SLIMMED], ids=["SDTPS", "slimming"])
def test_copies_compute_by_their_own_weights(build, opts, tmp_path):
    """Of copy.deepcopy and load_param; a change of the copy's weights does not change the model's features."""
    model = build(*opts)
    before = features(model, images(2))
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    copied = copy.deepcopy(model)
    assert type(copied) is type(model) and equal(features(copied, images(2)), before)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(1.5)
    assert not equal(features(copied, images(2)), before) and equal(
        features(model, images(2)), before
    )
    copied.load_param(tmp_path / "weights.pth")
    assert equal(features(copied, images(2)), before)


def test_replicas_in_threads_do_not_mix(build):
    """Both threads stop before every pass through the backbone, so that each is in the middle of its forward."""
    model = build(*FUSED).eval()
    batches = [images(2, seed) for seed in (1, 2)]
    replicas = make_replicas(model, 2)
    expected = [features(replica, batch) for replica, batch in zip(replicas, batches, strict=True)]
    assert_close(expected[0][2], features(model, batches[0])[2], *PATH, *PATH)
    together = threading.Barrier(2, timeout=60)

    def stop(module, inputs):
        together.wait()

    handle = model.BACKBONE.register_forward_pre_hook(stop)
    with ThreadPoolExecutor(2) as pool:
        actual = list(pool.map(features, replicas, batches))
    handle.remove()
    assert all(equal(one, other) for one, other in zip(actual, expected, strict=True))
    assert not equal(actual[0], actual[1])


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_a_loss_weight_scales_the_pairs_gradient(build, weight):
    """As the weight of the pair's losses would; values stay."""
    gradients, values = [], []
    for key in (1.0, weight):
        model = build(*FUSED, "MODEL.SDTPS_LOSS_WEIGHT", key).train()
        torch.manual_seed(shift_seed(1))
        output = model(images(4), cam_label=torch.zeros(4, dtype=torch.long))
        pair = output[0].square().mean() + output[1].square().mean()
        rest = sum(tensor.square().mean() for tensor in output[2:-1])
        (pair * (weight if key == 1 else 1) + rest).backward()
        gradients.append(
            {
                name: p.grad
                for name, p in model.named_parameters()
                if p.requires_grad and p.grad is not None
            }
        )
        values.append(output[:2])
    assert equal(*values)
    assert gradients[0].keys() == gradients[1].keys()
    assert_gradients_equal(*gradients, 4 * PATH)  # there and back, by both


@pytest.mark.parametrize("opts", [FUSED, SLIMMED], ids=["SDTPS", "slimming"])
def test_a_backbone_alone_and_a_failed_pass_leave_nothing_behind(build, opts):
    model = build(*opts).eval()
    expected = features(model, images(2))
    model.BACKBONE(images(2)["RGB"], cam_label=torch.zeros(2, dtype=torch.long))
    with pytest.raises(KeyError):
        model({"RGB": images(2)["RGB"]}, cam_label=torch.zeros(2, dtype=torch.long))
    assert equal(features(model, images(2)), expected)


WHOLE = [128, 64]
STAGES = ["MODEL.SLIM_BLOCKS", [1, 3], "MODEL.SLIM_KEEP", [0.5, 0.5]]
ON = ["MODEL.USE_SDTPS", True]
RATIOS = ["MODEL.SDTPS_SPARSE_RATIO", 0.75, "MODEL.SDTPS_AGGR_RATIO", 0.5, "MODEL.SDTPS_BETA", 0.1]
OWN = ["MODEL.SLIM_SHARED", False, "MODEL.SLIM_SCORE"]  # a score of the tokens chooses in each call


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
        sizes = ["INPUT.SIZE_TRAIN", WHOLE, "INPUT.SIZE_TEST", WHOLE, "MODEL.STRIDE_SIZE", [16, 16]]
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
        inputs = images(batch, seed, WHOLE), torch.arange(batch) % CAMERAS
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
def test_features_are_those_of_our_model(host, ours, opts):
    model = patched(host, WHOLE, *opts)
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


def test_gradients_are_those_of_our_model(host, ours):
    model = patched(host, WHOLE, *STAGES)
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
