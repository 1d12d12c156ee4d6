"""The optimiser's groups and the learning-rate schedule."""

import pytest
import torch
from golden_cases import load_case
from numeric import assert_close
from tiny import CLIP_CONFIG, random_images, tiny_cfg, tiny_model

from demo_sdtps.config import load_cfg
from demo_sdtps.modeling.demo import make_model
from demo_sdtps.modeling.losses import make_center_losses, total_loss
from demo_sdtps.training.optim import (
    make_center_optimizer,
    make_optimizer,
    make_scheduler,
    parameter_groups,
)

BASE_LR, BIAS_FACTOR, DECAY, BIAS_DECAY = 0.001, 2.5, 0.01, 0.02
SOLVER = (
    f"SOLVER.BASE_LR {BASE_LR} SOLVER.BIAS_LR_FACTOR {BIAS_FACTOR} SOLVER.WEIGHT_DECAY {DECAY} "
    f"SOLVER.WEIGHT_DECAY_BIAS {BIAS_DECAY}"
).split()
OF_THE_BACKBONE = 0.8 * BASE_LR


def test_golden_schedule():
    case = load_case("schedule")
    base_lr, epochs = case.settings["base_lr"], case.settings["max_epochs"]
    opts = ["SOLVER.BASE_LR", base_lr, "SOLVER.MAX_EPOCHS", epochs]
    cfg = tiny_cfg(*opts, "SOLVER.WARMUP_ITERS", case.settings["warmup_iters"])
    groups = [
        {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate}
        for rate in case.settings["initial_lrs"]
    ]
    optimizer = torch.optim.Adam(groups)
    scheduler = make_scheduler(cfg, optimizer)
    for epoch, expected in enumerate(case.arrays["lrs"].tolist(), start=1):
        scheduler.step(epoch)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(
            expected, rel=1e-9
        ), epoch
    assert epoch == epochs


def by_name(model, groups):
    """(lr, weight decay) of every parameter in the groups by its name; one that is there twice is an error."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    actual = {}
    for group in groups:
        for parameter in group["params"]:
            assert names[id(parameter)] not in actual
            actual[names[id(parameter)]] = (
                pytest.approx(group["lr"]),
                pytest.approx(group["weight_decay"]),
            )
    return actual


def imagenet_kind(*opts):
    cfg = tiny_cfg(*SOLVER, *opts)
    model = tiny_model(*SOLVER, *opts)
    return model, parameter_groups(cfg, model)


def test_groups_of_an_imagenet_kind_of_backbone():
    """Every trainable parameter once, in groups of backbone and new layers, weights and biases."""
    model, groups = imagenet_kind()
    actual = by_name(model, groups)
    frozen = {f"heads.{name}.bottleneck.bias" for name in ("sdtps", "original")}
    assert actual.keys() == {name for name, _ in model.named_parameters()} - frozen
    assert len(groups) == 4
    weight, bias = (BASE_LR, DECAY), (BASE_LR * BIAS_FACTOR, BIAS_DECAY)
    assert actual["backbone.vit.blocks.0.attn.qkv.weight"] == (OF_THE_BACKBONE, DECAY)
    assert actual["backbone.vit.blocks.5.mlp.fc2.bias"] == (OF_THE_BACKBONE, BIAS_DECAY)
    assert actual["backbone.vit.pos_embed"] == (OF_THE_BACKBONE, DECAY)
    assert actual["backbone.camera_embedding"] == (OF_THE_BACKBONE, DECAY)
    assert actual["pife.reduce.NI.1.weight"] == weight
    assert actual["pife.reduce.NI.1.bias"] == bias
    assert actual["sdtps.tir_sparse.score_predictor.0.weight"] == weight
    assert actual["sdtps.rgb_aggr.weight.3.bias"] == bias
    assert actual["sdtps.rgb_aggr.scale"] == weight
    assert actual["heads.sdtps.bottleneck.weight"] == weight
    assert actual["heads.original.classifier.weight"] == weight


def test_groups_of_clips_backbone():
    with torch.device("meta"):
        model = make_model(load_cfg(CLIP_CONFIG), 5, 4)
    actual = by_name(model, parameter_groups(load_cfg(CLIP_CONFIG, SOLVER), model))
    assert actual["backbone.vit.blocks.0.attn.qkv.weight"] == (5e-6, DECAY)
    assert actual["backbone.vit.blocks.11.mlp.fc2.bias"] == (5e-6, BIAS_DECAY)
    assert actual["backbone.vit.norm_pre.bias"] == (5e-6, BIAS_DECAY)
    assert actual["backbone.vit.cls_token"] == (5e-6, DECAY)
    assert actual["backbone.vit.head.weight"] == (5e-6, DECAY)
    assert actual["backbone.camera_embedding"] == (BASE_LR, DECAY)
    assert actual["pife.reduce.RGB.1.bias"] == (BASE_LR * BIAS_FACTOR, BIAS_DECAY)


def test_large_fc_lr():
    plain, large = (
        by_name(*imagenet_kind("SOLVER.LARGE_FC_LR", value)) for value in ("False", "True")
    )
    changed = {name for name in plain if plain[name] != large[name]}
    assert changed == {"heads.sdtps.classifier.weight", "heads.original.classifier.weight"}
    assert all(large[name] == (2 * BASE_LR, DECAY) for name in changed)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("SGD", {"momentum": 0.7, "fused": None}),
        ("Adam", {"fused": True}),
        ("AdamW", {"fused": True}),
    ],
)
def test_the_optimizer_is_torchs_with_the_settings(name, extra):
    opts = [*SOLVER, "SOLVER.OPTIMIZER_NAME", name, "SOLVER.MOMENTUM", "0.7"]
    optimizer = make_optimizer(tiny_cfg(*opts), tiny_model(*opts))
    assert type(optimizer) is getattr(torch.optim, name)
    settings = {(group["lr"], group["weight_decay"]) for group in optimizer.param_groups}
    assert len(settings) == len(optimizer.param_groups) == 4
    assert all(group.items() >= extra.items() for group in optimizer.param_groups)


# Centers


@pytest.mark.parametrize(
    ("name", "weight", "sdtps_weight"), [("SGD", 0.0005, 1.0), ("Adam", 40.0, 0.3)]
)
def test_centers_step_does_not_know_the_weight_of_their_loss(name, weight, sdtps_weight):
    """CENTER_LR times the gradient of the loss without CENTER_LOSS_WEIGHT, whatever moves the model."""
    opts = [
        *("SOLVER.OPTIMIZER_NAME", name, "MODEL.METRIC_LOSS_TYPE", "triplet_center"),
        *("SOLVER.CENTER_LR", "0.25", "SOLVER.CENTER_LOSS_WEIGHT", weight),
        *("MODEL.SDTPS_LOSS_WEIGHT", sdtps_weight),
    ]
    cfg, model = tiny_cfg(*opts), tiny_model(*opts)
    losses = make_center_losses(cfg, model.num_class, list(model.layout.widths.values()))
    before = [loss.centers.detach().clone() for loss in losses]
    images, cameras = random_images(1)
    labels = torch.tensor([0, 0, 2, 3])
    outputs = model.train()(images, cameras)
    total_loss(cfg, outputs, labels, model.head_weights, losses)[0].backward()
    optimizer = make_center_optimizer(cfg, losses)
    assert optimizer.param_groups[0]["momentum"] == 0
    optimizer.step()
    assert len(losses) == 2
    for loss, start, features, head_weight in zip(
        losses, before, outputs.features.values(), (sdtps_weight, 1.0), strict=True
    ):
        # d/dc of the mean of |f - c|²: -2/B Σ (f - c) over the identity's samples.
        gradient = torch.zeros_like(start, dtype=torch.float64)
        for feature, label in zip(features.detach().double(), labels.tolist(), strict=True):
            gradient[label] -= 2 / len(labels) * (feature - start[label])
        assert_close(
            loss.centers - start,
            -0.25 * head_weight * gradient,
            *8 * (1,),
            scale=float(start.abs().max()),
        )
        assert torch.equal(loss.centers[[1, 4]], start[[1, 4]])
