"""Identity and triplet losses against the reference system's numbers and slow versions of themselves."""
import pytest
import torch
from golden_cases import load_case, relative_error
from reference import losses as reference
from tiny import tiny_cfg

from modeling.losses import batch_hard_triplet_loss, euclidean_distance, identity_loss, total_loss

MARGINS = pytest.mark.parametrize("margin", [None, 0.0, 0.3, 5.0])
SEEDS = pytest.mark.parametrize("seed", [1, 2, 3])


def with_gradient(loss, tensor):
    leaf = tensor.clone().requires_grad_()
    value = loss(leaf)
    value.backward()
    return value.detach(), leaf.grad


def draw(seed, identities=4, instances=3, width=10, classes=7):
    """Features close enough together that some gaps are above a margin and some below; labels in random order."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(identities).repeat(instances)[torch.randperm(identities * instances, generator=generator)]
    centres = torch.randn(identities, width, generator=generator)
    features = centres[labels] + 0.7 * torch.randn(len(labels), width, generator=generator)
    return features, 3 * torch.randn(len(labels), classes, generator=generator), labels


@pytest.mark.parametrize("name", ["soft_triplet", "margin_triplet", "label_smooth_ce"])
def test_golden(name):
    case = load_case("losses")
    labels = case.arrays["labels"]
    loss, source = {
        "soft_triplet": (lambda features: batch_hard_triplet_loss(features, labels), "features"),
        "margin_triplet": (lambda features: batch_hard_triplet_loss(features, labels, case.settings["margin"]), "features"),
        "label_smooth_ce": (lambda scores: identity_loss(scores, labels, case.settings["label_smoothing"]), "scores"),
    }[name]
    value, gradient = with_gradient(loss, case.arrays[source])
    assert relative_error(value, case.arrays[name]) < 1e-5
    assert relative_error(gradient, case.arrays[f"grad_{name}"]) < 1e-5


@MARGINS
@SEEDS
def test_triplet(seed, margin):
    features, _, labels = draw(seed)
    value, gradient = with_gradient(lambda leaf: batch_hard_triplet_loss(leaf, labels, margin), features)
    expected = with_gradient(lambda leaf: reference.batch_hard_triplet_loss(leaf, labels, margin), features.double())
    assert float(value) == pytest.approx(float(expected[0]), rel=1e-5)
    assert float((gradient.double() - expected[1]).norm()) <= 1e-5 * float(expected[1].norm())


def test_triplet_by_hand():
    features = torch.tensor([[0.0], [1.0], [4.0], [6.0]])
    labels = torch.tensor([0, 0, 1, 1])
    # farthest positive - nearest negative: 1 - 4, 1 - 3, 2 - 3, 2 - 5
    gaps = torch.tensor([-3.0, -2.0, -1.0, -3.0])
    assert float(batch_hard_triplet_loss(features, labels, margin=1.5)) == pytest.approx(0.5 / 4, rel=1e-5)
    assert float(batch_hard_triplet_loss(features, labels)) == pytest.approx(float((1 + gaps.exp()).log().mean()), rel=1e-5)


def test_triplet_of_equal_features_has_a_finite_gradient():
    value, gradient = with_gradient(lambda leaf: batch_hard_triplet_loss(leaf, torch.tensor([0, 0, 1, 1])), torch.ones(4, 3))
    assert float(value) == pytest.approx(0.693147, rel=1e-5)
    assert gradient.isfinite().all()


def test_distance_is_never_zero():
    """Its square is clamped at 1e-12, so that the root has a derivative."""
    distance = euclidean_distance(torch.tensor([[1.0, 1.0], [1.0, 1.0], [4.0, 5.0]]))
    assert torch.allclose(distance, torch.tensor([[1e-6, 1e-6, 5], [1e-6, 1e-6, 5], [5, 5, 1e-6]]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@SEEDS
def test_identity(seed, smoothing):
    _, scores, labels = draw(seed)
    value, gradient = with_gradient(lambda leaf: identity_loss(leaf, labels, smoothing), scores)
    expected = with_gradient(lambda leaf: reference.label_smoothed_cross_entropy(leaf, labels, smoothing), scores.double())
    assert relative_error(value, expected[0]) < 1e-5
    assert relative_error(gradient, expected[1]) < 1e-5


def test_losses_are_computed_in_float32_under_autocast():
    features, scores, labels = draw(4)
    outputs = (scores.bfloat16(), features.bfloat16())
    expected = total_loss(tiny_cfg(), [part.float() for part in outputs], labels, [1.0])
    with torch.autocast("cpu", torch.bfloat16):
        found = total_loss(tiny_cfg(), outputs, labels, [1.0])
    assert float(found) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("opts, id_weight, triplet_weight, smoothing, margin", [
    ([], 1.0, 1.0, 0.1, None),
    (["MODEL.ID_LOSS_WEIGHT", "0.25"], 0.25, 1.0, 0.1, None),
    (["MODEL.TRIPLET_LOSS_WEIGHT", "3"], 1.0, 3.0, 0.1, None),
    (["MODEL.IF_LABELSMOOTH", "off"], 1.0, 1.0, 0.0, None),
    (["MODEL.NO_MARGIN", "False"], 1.0, 1.0, 0.1, 0.3),
    (["MODEL.NO_MARGIN", "False", "SOLVER.MARGIN", "0.8", "MODEL.ID_LOSS_WEIGHT", "0"], 0.0, 1.0, 0.1, 0.8),
    (["SOLVER.MARGIN", "0.8"], 1.0, 1.0, 0.1, None),
], ids=str)
def test_total(opts, id_weight, triplet_weight, smoothing, margin):
    pair_weights = (0.3, 2.0)
    outputs, expected = [], 0.0
    for seed, weight in zip((5, 6), pair_weights, strict=True):
        features, scores, _ = draw(seed, classes=6)
        labels = draw(5)[2]
        outputs += [scores, features]
        expected += weight * (
            id_weight * float(reference.label_smoothed_cross_entropy(scores.double(), labels, smoothing))
            + triplet_weight * float(reference.batch_hard_triplet_loss(features.double(), labels, margin)))
    assert float(total_loss(tiny_cfg(*opts), tuple(outputs), labels, pair_weights)) == pytest.approx(expected, rel=1e-5)


def test_total_wants_a_weight_for_every_pair():
    features, scores, labels = draw(7)
    with pytest.raises(ValueError):
        total_loss(tiny_cfg(), (scores, features, scores, features), labels, [1.0])
