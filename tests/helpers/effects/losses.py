"""The keys of the losses, seen against the slow losses of tests/reference."""

import shlex
from itertools import combinations

import torch
from numeric import generator, seeded, tolerance
from pytest import approx
from tiny import output_of

from demo_sdtps.modeling.losses import make_center_losses, total_loss
from demo_sdtps.training.optim import make_center_optimizer
from effects.base import effect, model_of
from tests.reference import losses as reference

TRIPLETS_ALONE = ("MODEL.ID_LOSS_WEIGHT", "0")
IDENTITY_ALONE = ("MODEL.TRIPLET_LOSS_WEIGHT", "0")
WITH_CENTERS = ("MODEL.METRIC_LOSS_TYPE", "triplet_center")
LABELS = torch.tensor([0, 1, 2, 3] * 3)
IDENTITIES, WIDTH = 6, 10
ONE = {"original": 1.0}


def draw(seed=1):
    """Logits and features of one head."""
    draws = generator(seed)
    centers = torch.randn(IDENTITIES, WIDTH, generator=draws)
    features = centers[LABELS] + 0.7 * torch.randn(len(LABELS), WIDTH, generator=draws)
    return 3 * torch.randn(len(LABELS), IDENTITIES, generator=draws), features


def rounding():
    """The relative error of a loss: logits, distances and the squares that cancel in them are larger than a loss."""
    logits, features = draw()
    distances = torch.pdist(features)
    terms = (
        2 * features.square().sum(dim=1).max() / distances.min() ** 2 * distances.max() / triplet()
        + logits.abs().max()
    )
    return tolerance(WIDTH, len(LABELS), IDENTITIES) * float(terms)


def loss_of(cfg, center_losses=()):
    return float(total_loss(cfg, output_of(draw(), ONE), LABELS, ONE, center_losses)[0].detach())


def triplet(margin=None):
    return float(reference.batch_hard_triplet_loss(draw()[1].double(), LABELS, margin))


def identity(smoothing):
    return float(reference.label_smoothed_cross_entropy(draw()[0].double(), LABELS, smoothing))


def center(center_losses):
    return float(
        reference.center_loss(
            draw()[1].double(), LABELS, center_losses[0].centers.detach().double()
        )
    )


def centers_of(cfg):
    torch.manual_seed(seeded(3))
    return make_center_losses(cfg, IDENTITIES, [WIDTH])


def near(value):
    return approx(value, rel=rounding())


def which(found, candidates):
    """The one candidate (name: value) that is the value found."""
    (name,) = (name for name, value in candidates.items() if found == near(value))
    return name


@effect("MODEL.ID_LOSS_WEIGHT", {"1.0": near(1.0), "0.25": near(0.25)}, *IDENTITY_ALONE)
def weight_of_the_identity_loss(cfg):
    return loss_of(cfg) / identity(0.1)


@effect("MODEL.TRIPLET_LOSS_WEIGHT", {"1.0": near(1.0), "3": near(3.0)}, *TRIPLETS_ALONE)
def weight_of_the_triplet_loss(cfg):
    return loss_of(cfg) / triplet()


@effect("MODEL.IF_LABELSMOOTH", {"on": 0.1, "off": 0.0}, *IDENTITY_ALONE)
def label_smoothing(cfg):
    return which(loss_of(cfg), {smoothing: identity(smoothing) for smoothing in (0.0, 0.1, 0.2)})


@effect("MODEL.NO_MARGIN", {"True": None, "False": 0.3}, *TRIPLETS_ALONE)
@effect("SOLVER.MARGIN", {"0.3": 0.3, "0.8": 0.8}, *TRIPLETS_ALONE, "MODEL.NO_MARGIN", "False")
def margin(cfg):
    return which(loss_of(cfg), {margin: triplet(margin) for margin in (None, 0.3, 0.8)})


@effect(
    "MODEL.METRIC_LOSS_TYPE",
    {"triplet": {"triplet"}, "center": {"center"}, "triplet_center": {"triplet", "center"}},
    *TRIPLETS_ALONE,
    "SOLVER.CENTER_LOSS_WEIGHT",
    "1",
)
def losses_of_the_features(cfg):
    losses = centers_of(cfg)
    parts = {"triplet": triplet(), "center": center(losses) if losses else 1e6}
    sums = {
        names: sum(parts[name] for name in names)
        for count in range(3)
        for names in combinations(parts, count)
    }
    return set(which(loss_of(cfg, losses), sums))


@effect(
    "SOLVER.CENTER_LOSS_WEIGHT",
    {"0.0005": near(0.0005), "0.2": near(0.2)},
    *shlex.split("MODEL.METRIC_LOSS_TYPE center MODEL.ID_LOSS_WEIGHT 0"),
)
def weight_of_the_center_loss(cfg):
    losses = centers_of(cfg)
    return loss_of(cfg, losses) / center(losses)


@effect("SOLVER.CENTER_LR", {"0.5": near(0.5), "0.1": near(0.1)}, *WITH_CENTERS)
def step_of_the_centers_over_the_gradient(cfg):
    losses = centers_of(cfg)
    start = losses[0].centers.detach().double().requires_grad_()
    reference.center_loss(draw()[1].double(), LABELS, start).backward()
    optimizer = make_center_optimizer(cfg, losses)
    total_loss(cfg, output_of(draw(), ONE), LABELS, ONE, losses)[0].backward()
    optimizer.step()
    return float((start - losses[0].centers).detach().norm() / start.grad.norm())


@effect("MODEL.SDTPS_LOSS_WEIGHT", {"1.0": near(1.0), "0.2": near(0.2)})
def weight_of_the_sdtps_pair(cfg):
    first, second = draw(1), draw(2)
    weights = model_of(cfg).head_weights
    both, _ = total_loss(cfg, output_of((*first, *second), weights), LABELS, weights)
    alone = [total_loss(cfg, output_of(pair, ONE), LABELS, ONE)[0] for pair in (first, second)]
    return float((both - alone[1]) / alone[0])
