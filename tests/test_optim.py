"""The optimiser's groups and the learning-rate schedule."""
import pytest
import torch
from golden_cases import load_case
from tiny import CLIP_CONFIG, clip_model, random_images, tiny_cfg, tiny_model

from config import load_cfg
from engine.optim import make_optimizer, make_scheduler, parameter_groups
from modeling.losses import total_loss

BASE_LR, BIAS_FACTOR, DECAY, BIAS_DECAY = 0.001, 2.5, 0.01, 0.02
SOLVER = ["SOLVER.BASE_LR", str(BASE_LR), "SOLVER.BIAS_LR_FACTOR", str(BIAS_FACTOR), "SOLVER.WEIGHT_DECAY", str(DECAY),
          "SOLVER.WEIGHT_DECAY_BIAS", str(BIAS_DECAY)]
OF_THE_TRUNK = 0.8 * BASE_LR


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_golden_schedule(optimizer):
    case = load_case("schedule")
    base_lr, epochs = case.settings["base_lr"], case.settings["max_epochs"]
    cfg = tiny_cfg("SOLVER.BASE_LR", base_lr, "SOLVER.MAX_EPOCHS", epochs, "SOLVER.WARMUP_ITERS",
                   case.settings["warmup_iters"])
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in case.settings["initial_lrs"]]
    optimizer = getattr(torch.optim, optimizer)(groups, lr=1.0)
    scheduler = make_scheduler(cfg, optimizer)
    for epoch, expected in enumerate(case.arrays["lrs"].tolist(), start=1):
        scheduler.step(epoch)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(expected, rel=1e-9), epoch
    assert epoch == epochs


def by_name(model, groups):
    """(lr, weight decay) of every parameter in the groups by its name; one that is there twice is an error."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {}
    for group in groups:
        for parameter in group["params"]:
            assert names[id(parameter)] not in found
            found[names[id(parameter)]] = (pytest.approx(group["lr"]), pytest.approx(group["weight_decay"]))
    return found


def imagenet_kind(*opts):
    cfg = tiny_cfg(*SOLVER, *opts)
    model = tiny_model(*SOLVER, *opts)
    return model, parameter_groups(cfg, model)


def test_every_trainable_parameter_once():
    model, groups = imagenet_kind()
    frozen = {f"heads.{name}.bottleneck.bias" for name in ("sdtps", "original")}
    assert by_name(model, groups).keys() == {name for name, _ in model.named_parameters()} - frozen


def test_groups_of_an_imagenet_kind_of_trunk():
    found = by_name(*imagenet_kind())
    weight, bias = (BASE_LR, DECAY), (BASE_LR * BIAS_FACTOR, BIAS_DECAY)
    assert found["trunk.vit.blocks.0.attn.qkv.weight"] == (OF_THE_TRUNK, DECAY)
    assert found["trunk.vit.blocks.5.mlp.fc2.bias"] == (OF_THE_TRUNK, BIAS_DECAY)
    assert found["trunk.vit.pos_embed"] == (OF_THE_TRUNK, DECAY)
    assert found["trunk.camera_embedding"] == (OF_THE_TRUNK, DECAY)
    assert found["pife.reduce.NI.1.weight"] == weight
    assert found["pife.reduce.NI.1.bias"] == bias
    assert found["sdtps.tir_sparse.score_predictor.0.weight"] == weight
    assert found["sdtps.rgb_aggr.weight.3.bias"] == bias
    assert found["sdtps.rgb_aggr.scale"] == weight
    assert found["heads.sdtps.bottleneck.weight"] == weight
    assert found["heads.original.classifier.weight"] == weight


def test_groups_of_clips_trunk():
    model = clip_model()
    found = by_name(model, parameter_groups(load_cfg(CLIP_CONFIG, SOLVER), model))
    assert found["trunk.vit.blocks.0.attn.qkv.weight"] == (5e-6, DECAY)
    assert found["trunk.vit.blocks.11.mlp.fc2.bias"] == (5e-6, BIAS_DECAY)
    assert found["trunk.vit.norm_pre.bias"] == (5e-6, BIAS_DECAY)
    assert found["trunk.vit.cls_token"] == (5e-6, DECAY)
    assert found["trunk.vit.head.weight"] == (5e-6, DECAY)
    assert found["trunk.camera_embedding"] == (BASE_LR, DECAY)
    assert found["pife.reduce.RGB.1.bias"] == (BASE_LR * BIAS_FACTOR, BIAS_DECAY)


def test_large_fc_lr():
    plain, large = (by_name(*imagenet_kind("SOLVER.LARGE_FC_LR", value)) for value in ("False", "True"))
    changed = {name for name in plain if plain[name] != large[name]}
    assert changed == {"heads.sdtps.classifier.weight", "heads.original.classifier.weight"}
    assert all(large[name] == (2 * BASE_LR, DECAY) for name in changed)


def test_groups_are_few():
    """Trunk and new layers, weights and biases."""
    _, groups = imagenet_kind()
    assert len(groups) == 4
    assert len({(group["lr"], group["weight_decay"]) for group in groups}) == 4


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_optimizer_steps(name):
    opts = ["SOLVER.OPTIMIZER_NAME", name, "SOLVER.MOMENTUM", "0.7"]
    cfg, model = tiny_cfg(*opts), tiny_model(*opts)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(cfg, model)
    assert type(optimizer) is getattr(torch.optim, name)
    if name == "SGD":
        assert {group["momentum"] for group in optimizer.param_groups} == {0.7}
    images, cameras = random_images(1)
    labels = torch.tensor([0, 0, 1, 1])
    total_loss(cfg, model.train()(images, cameras), labels, model.pair_weights).backward()
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) != parameter.requires_grad, name
        assert parameter.isfinite().all(), name
