"""Identity, triplet, center and distillation losses against the reference system's numbers and slow versions of themselves."""

import math
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from golden_cases import load_case, relative_error
from numeric import assert_close, generator, shift_seed, with_gradient
from tiny import tiny_cfg

from demo_sdtps.config import UserError
from demo_sdtps.modeling.losses import (
    CenterLoss,
    Target,
    TrainingOutput,
    batch_hard_triplet_loss,
    distill_loss,
    feature_distill_loss,
    identity_loss,
    make_center_losses,
    total_loss,
)
from tests.reference import losses as reference

SEEDS = pytest.mark.parametrize("seed", [1, 2, 3])
PAIRS = {"sdtps": 0.3, "original": 2.0}
"""Weights of the heads' losses."""
SUMS = (10, 12, 7)
"""Lengths of the longest sums of a loss: channels, samples, identities."""


def make_output(parts, heads, auxiliary=None):
    """The training output with these [logits, features, …] of `heads`, in their order."""
    return TrainingOutput(
        dict(zip(heads, parts[::2], strict=True)),
        dict(zip(heads, parts[1::2], strict=True)),
        auxiliary,
    )


def draw(seed, identities=4, instances=3, width=10, classes=7):
    """Features close enough together that some gaps are above a margin and some below; labels in random order."""
    draws = generator(seed)
    labels = torch.arange(identities).repeat(instances)[
        torch.randperm(identities * instances, generator=draws)
    ]
    centres = torch.randn(identities, width, generator=draws)
    features = centres[labels] + 0.7 * torch.randn(len(labels), width, generator=draws)
    return features, 3 * torch.randn(len(labels), classes, generator=draws), labels


def largest(features, logits):
    """The largest term of a head's losses: a distance, with what cancels in it, as squares of norms are so much larger than the
    squared distance that is their difference, or a logit."""
    distances = torch.pdist(features)
    cancellation = 2 * features.square().sum(dim=1).max() / distances.min() ** 2
    return max(float(distances.max() * cancellation), float(logits.abs().max()))


@pytest.mark.parametrize("name", ["soft_triplet", "margin_triplet", "label_smooth_ce"])
def test_golden(name):
    case = load_case("losses")
    labels, settings = case.arrays["labels"], case.settings
    loss, source, setting = {
        "soft_triplet": (batch_hard_triplet_loss, "features", None),
        "margin_triplet": (batch_hard_triplet_loss, "features", settings["margin"]),
        "label_smooth_ce": (identity_loss, "scores", settings["label_smoothing"]),
    }[name]
    value, gradient = with_gradient(lambda leaf: loss(leaf, labels, setting), case.arrays[source])
    assert relative_error(value, case.arrays[name]) < 1e-5
    assert relative_error(gradient, case.arrays[f"grad_{name}"]) < 1e-5


def test_triplet_of_equal_features_has_a_finite_gradient():
    value, gradient = with_gradient(
        lambda leaf: batch_hard_triplet_loss(leaf, torch.tensor([0, 0, 1, 1])), torch.ones(4, 3)
    )
    assert_close(value, math.log(2), 4)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("temperature", [1.0, 4.0, 20.0])
@SEEDS
def test_distillation_with_a_masked_class_and_without(seed, temperature):
    _, logits, _ = draw(seed)
    teacher = 3 * torch.randn(logits.shape, generator=generator(seed + 50))
    expected = with_gradient(
        lambda leaf: reference.distill_loss(leaf, teacher.double(), temperature), logits.double()
    )
    largest = float(torch.cat([logits, teacher]).abs().max())
    for ends in product((-1e4, -torch.inf), repeat=2):
        pairs = zip((logits, teacher), ends, strict=True)
        ours, target = (F.pad(each, (0, 1), value=end) for each, end in pairs)
        loss = partial(distill_loss, teacher=target, temperature=temperature)
        value, gradient = with_gradient(loss, ours)
        assert_close(value, expected[0], *SUMS[1:], 7, scale=temperature * largest)
        scale = temperature / len(logits)
        assert_close(gradient, F.pad(expected[1], (0, 1)), *SUMS[1:], 7, scale=scale)


@SEEDS
def test_distillation_of_features(seed):
    features, *_ = draw(seed)
    teacher = torch.randn(features.shape, generator=generator(seed + 70))
    value, gradient = with_gradient(lambda leaf: feature_distill_loss(leaf, teacher), features)
    expected = with_gradient(
        lambda leaf: reference.feature_distill_loss(leaf, teacher.double()), features.double()
    )
    least = float(features.norm(dim=1).min())
    assert_close(value, expected[0], *SUMS[1:], features.shape[1], scale=2)
    assert_close(gradient, expected[1], *SUMS[1:], features.shape[1], scale=1 / least)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(feature_distill_loss(features, teacher), value)
    with pytest.raises(UserError, match="the teacher's"):
        feature_distill_loss(features, teacher[:1])
    same = feature_distill_loss(features, 3 * features)
    assert_close(same, 0.0, *SUMS[1:], features.shape[1], scale=1)


def test_distillation_follows_the_teacher_and_does_not_change_it():
    _, logits, _ = draw(1)
    student, teacher = (each.clone().requires_grad_() for each in (logits, logits.flip(0)))
    distill_loss(student, teacher).backward()
    assert teacher.grad is None and student.grad.abs().min() > 0
    assert_close(distill_loss(logits, logits), 0.0, *SUMS, scale=float(logits.abs().max()))
    with torch.autocast("cpu", torch.bfloat16):
        half = distill_loss(logits.bfloat16(), teacher.bfloat16())
    assert torch.equal(half, distill_loss(logits.bfloat16().float(), teacher.bfloat16().float()))
    with pytest.raises(UserError, match=r"are \(12, 7\) and the teacher's \(12, 6\)"):
        distill_loss(logits, logits[:, :6])
    with pytest.raises(UserError, match="temperature"):
        distill_loss(logits, logits, 0.0)


# Centers

WIDTHS = (10, 4)
CENTER = ["MODEL.METRIC_LOSS_TYPE", "triplet_center"]


def draw_centers(cfg):
    torch.manual_seed(shift_seed(2))
    return make_center_losses(cfg, 6, WIDTHS)


def draw_pairs(classes=6):
    """(logits, feature) pairs of the WIDTHS for one batch, as a flat list, and its labels."""
    outputs = []
    for seed, width in enumerate(WIDTHS, start=5):
        draws = generator(seed)
        outputs.append(3 * torch.randn(12, classes, generator=draws))
        outputs.append(torch.randn(12, width, generator=draws))
    return outputs, draw(5)[2]


@SEEDS
def test_center(seed):
    """Values, and gradients of features and of centers."""
    features, _, labels = draw(seed)
    torch.manual_seed(shift_seed(seed))
    loss = CenterLoss(7, features.shape[1])
    expected_centers = loss.centers.detach().double().requires_grad_()
    value, gradient = with_gradient(lambda leaf: loss(leaf, labels), features)
    expected = with_gradient(
        lambda leaf: reference.center_loss(leaf, labels, expected_centers), features.double()
    )
    assert_close(value, expected[0], *SUMS)
    assert_close(gradient, expected[1], *SUMS[:2])
    assert_close(
        loss.centers.grad, expected_centers.grad, *SUMS[:2], 3, scale=float(expected[1].abs().max())
    )
    assert loss.centers.grad[4:].eq(0).all()  # of identities that are not in the batch
    assert loss.centers.grad[:4].abs().sum(1).min() > 0


@pytest.mark.parametrize("auxiliary", [None, torch.tensor([0.75, 0.25])], ids=["none", "two"])
@pytest.mark.parametrize("sampler", ["softmax_triplet", "softmax"])
@pytest.mark.parametrize("kind", ["triplet", "center", "triplet_center"])
@pytest.mark.parametrize(
    ("opts", "smoothing", "margin"),
    [
        ("SOLVER.MARGIN 0.8", 0.1, None),
        ("MODEL.NO_MARGIN False SOLVER.MARGIN 0.8 MODEL.IF_LABELSMOOTH off", 0.0, 0.8),
    ],
    ids=["as by default", "with a margin, not smoothed"],
)
def test_total_of_every_metric_loss(kind, sampler, auxiliary, opts, smoothing, margin):
    """The triplet loss needs the batches of identities; the loss of scores, a number of each process, is a mean."""
    weights = "SOLVER.CENTER_LOSS_WEIGHT 0.02 MODEL.ID_LOSS_WEIGHT 0.25 MODEL.TRIPLET_LOSS_WEIGHT 3"
    kinds = f"MODEL.METRIC_LOSS_TYPE {kind} DATALOADER.SAMPLER {sampler}"
    cfg = tiny_cfg(*opts.split(), *kinds.split(), *weights.split())
    losses, (outputs, labels) = draw_centers(cfg), draw_pairs()
    expected = scale = 0.0 if auxiliary is None else float(auxiliary.mean())
    for index, weight in enumerate(PAIRS.values()):
        logits, features = (tensor.double() for tensor in outputs[2 * index : 2 * index + 2])
        pair = 0.25 * float(reference.label_smoothed_cross_entropy(logits, labels, smoothing))
        if "triplet" in kind and sampler == "softmax_triplet":
            pair += 3 * float(reference.batch_hard_triplet_loss(features, labels, margin))
        if "center" in kind:
            centers = losses[index].centers.detach().double()
            pair += 0.02 * float(reference.center_loss(features, labels, centers))
        expected += weight * pair
        scale += weight * (pair + 3 * largest(features, logits))
    actual, _ = total_loss(cfg, make_output(outputs, PAIRS, auxiliary), labels, PAIRS, losses)
    assert_close(actual, expected, *SUMS, scale=scale)


def test_parts_are_the_losses_of_the_heads_and_sum_to_the_total():
    cfg = tiny_cfg(*CENTER, "MODEL.TRIPLET_LOSS_WEIGHT", "3")
    losses, (outputs, labels) = draw_centers(cfg), draw_pairs()
    *outputs, auxiliary = (tensor.requires_grad_() for tensor in (*outputs, torch.tensor([0.5])))
    total, parts = total_loss(cfg, make_output(outputs, PAIRS, auxiliary), labels, PAIRS, losses)
    names = [f"{kind}/{head}" for head in PAIRS for kind in ("id", "triplet", "center")]
    assert list(parts) == ["auxiliary", *names]
    assert not any(loss.requires_grad for loss in parts.values()) and total.requires_grad
    assert_close(total, sum(map(float, parts.values())), len(parts))
    assert float(parts["auxiliary"]) == 0.5
    with torch.no_grad():
        triplet, center = batch_hard_triplet_loss(outputs[3], labels), losses[0](outputs[1], labels)
        assert_close(parts["triplet/original"], 2 * 3 * float(triplet), 2)
        assert_close(parts["center/sdtps"], 0.3 * 0.0005 * float(center), 2)


def test_heads_follow_a_teacher_by_their_names():
    """One that the teacher lacks has the other losses alone, and one of another width follows the logits alone."""
    weights = "SOLVER.DISTILL_WEIGHT 0.5 SOLVER.DISTILL_TEMPERATURE 3 SOLVER.DISTILL_FEATURES 2"
    cfg, (outputs, labels) = tiny_cfg(*weights.split()), draw_pairs()
    output = make_output(outputs, PAIRS)
    without, other_parts = total_loss(cfg, output, labels, PAIRS)
    target = Target(outputs[0].flip(0), outputs[1].flip(0))
    expected = {
        "distill/sdtps": 0.3 * 0.5 * float(distill_loss(outputs[0], target.logits, 3.0)),
        "distill_features/sdtps": 0.6 * float(feature_distill_loss(outputs[1], target.features)),
    }
    for features, names in (
        (target.features, [*expected]),
        (target.features[:, 1:], [*expected][:1]),
    ):
        teacher = {"sdtps": target._replace(features=features)}
        total, parts = total_loss(cfg, output, labels, PAIRS, teacher=teacher)
        assert parts.keys() - other_parts.keys() == {*names}
        for name in names:
            assert_close(parts[name], expected[name], 2)
        gain = sum(expected[name] for name in names)
        assert_close(total - without, gain, len(parts), scale=float(total))


def test_center_is_computed_in_float32_under_autocast():
    outputs, labels = draw_pairs()
    half = [tensor.bfloat16() for tensor in outputs]
    cfg = tiny_cfg(*CENTER, "SOLVER.CENTER_LOSS_WEIGHT", "1")
    losses = draw_centers(cfg)
    whole = make_output([tensor.float() for tensor in half], PAIRS)
    expected, _ = total_loss(cfg, whole, labels, PAIRS, losses)
    with torch.autocast("cpu", torch.bfloat16):
        actual, _ = total_loss(cfg, make_output(half, PAIRS), labels, PAIRS, losses)
    assert torch.equal(actual, expected)
