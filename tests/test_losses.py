"""Identity, triplet and center losses against the reference system's numbers and slow versions of themselves."""
import pytest
import torch
from golden_cases import load_case, relative_error
from reference import losses as reference
from tiny import CLASSES, random_images, tiny_cfg, tiny_model

from demo_sdtps.modeling.losses import (
    LOSSES,
    CenterLoss,
    batch_hard_triplet_loss,
    euclidean_distance,
    identity_loss,
    make_center_losses,
    total_loss,
)

MARGINS = pytest.mark.parametrize("margin", [None, 0.0, 0.3, 5.0])
SEEDS = pytest.mark.parametrize("seed", [1, 2, 3])
ONE, PAIRS = {"original": 1.0}, {"sdtps": 0.3, "original": 2.0}
"""Weights of the heads' losses."""


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
        "label_smooth_ce": (lambda logits: identity_loss(logits, labels, case.settings["label_smoothing"]), "scores"),
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
    _, logits, labels = draw(seed)
    value, gradient = with_gradient(lambda leaf: identity_loss(leaf, labels, smoothing), logits)
    expected = with_gradient(lambda leaf: reference.label_smoothed_cross_entropy(leaf, labels, smoothing), logits.double())
    assert relative_error(value, expected[0]) < 1e-5
    assert relative_error(gradient, expected[1]) < 1e-5


def test_losses_are_computed_in_float32_under_autocast():
    features, logits, labels = draw(4)
    outputs = (logits.bfloat16(), features.bfloat16())
    expected, _ = total_loss(tiny_cfg(), [part.float() for part in outputs], labels, ONE)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = total_loss(tiny_cfg(), outputs, labels, ONE)
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
    outputs, expected = [], 0.0
    for seed, weight in zip((5, 6), PAIRS.values(), strict=True):
        features, logits, _ = draw(seed, classes=6)
        labels = draw(5)[2]
        outputs += [logits, features]
        expected += weight * (
            id_weight * float(reference.label_smoothed_cross_entropy(logits.double(), labels, smoothing))
            + triplet_weight * float(reference.batch_hard_triplet_loss(features.double(), labels, margin)))
    assert float(total_loss(tiny_cfg(*opts), tuple(outputs), labels, PAIRS)[0]) == pytest.approx(expected, rel=1e-5)


def test_total_wants_a_weight_for_every_pair():
    features, logits, labels = draw(7)
    with pytest.raises(ValueError):
        total_loss(tiny_cfg(), (logits, features, logits, features), labels, ONE)


# Centers

WIDTHS = (10, 4)
CENTER = ["MODEL.METRIC_LOSS_TYPE", "triplet_center"]


def draw_pairs(classes=6):
    """(logits, feature) pairs of the WIDTHS for one batch, as a flat list, and its labels."""
    outputs = []
    for seed, width in enumerate(WIDTHS, start=5):
        generator = torch.Generator().manual_seed(seed)
        outputs += [3 * torch.randn(12, classes, generator=generator), torch.randn(12, width, generator=generator)]
    return outputs, draw(5)[2]


@SEEDS
def test_center(seed):
    """Values, and gradients of features and of centers."""
    features, _, labels = draw(seed)
    torch.manual_seed(seed)
    loss = CenterLoss(7, features.shape[1])
    expected_centers = loss.centers.detach().double().requires_grad_()
    value, gradient = with_gradient(lambda leaf: loss(leaf, labels), features)
    expected = with_gradient(lambda leaf: reference.center_loss(leaf, labels, expected_centers), features.double())
    assert float(value) == pytest.approx(float(expected[0]), rel=1e-6)
    assert relative_error(gradient, expected[1]) < 1e-6
    assert relative_error(loss.centers.grad, expected_centers.grad) < 1e-6
    assert loss.centers.grad[4:].eq(0).all()  # of identities that are not in the batch
    assert loss.centers.grad[:4].abs().sum(1).min() > 0


def test_center_by_hand():
    loss = CenterLoss(3, 2)
    with torch.no_grad():
        loss.centers.copy_(torch.tensor([[1.0, 2.0], [5.0, 5.0], [0.0, -1.0]]))
    # (1² + 2²) and (3² + 0²) from the centers of identities 0 and 2
    value = loss(torch.tensor([[2.0, 4.0], [3.0, -1.0]]), torch.tensor([0, 2]))
    value.backward()
    assert float(value.detach()) == pytest.approx((5 + 9) / 2)
    assert loss.centers.grad.tolist() == [[-1.0, -2.0], [0.0, 0.0], [-3.0, 0.0]]


def test_a_center_is_where_its_features_mean_is():
    """The loss is least there, and 0 for features that are all at their center."""
    features, _, labels = draw(1)
    loss = CenterLoss(4, features.shape[1])
    with torch.no_grad():
        loss.centers.copy_(torch.stack([features[labels == label].mean(0) for label in range(4)]))
    loss(features, labels).backward()
    assert loss.centers.grad.abs().max() < 1e-6
    assert float(loss(loss.centers.detach()[labels], labels).detach()) == 0


def test_centers_start_as_standard_normal():
    torch.manual_seed(0)
    centers = CenterLoss(200, 50).centers
    assert centers.requires_grad
    centers = centers.detach()
    assert abs(float(centers.mean())) < 0.02 and float(centers.std()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("kind, count", [("triplet", 0), ("center", 2), ("triplet_center", 2)])
def test_a_center_loss_for_every_pair_where_the_metric_names_it(kind, count):
    losses = make_center_losses(tiny_cfg("MODEL.METRIC_LOSS_TYPE", kind), 6, WIDTHS)
    assert [tuple(loss.centers.shape) for loss in losses] == [(6, width) for width in WIDTHS[:count]]


@pytest.mark.parametrize("opts", [[], ["MODEL.DIRECT", "0"], ["MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.HEAD", "4"]],
                         ids=str)
def test_a_models_widths_are_those_of_its_training_features(opts):
    cfg, model = tiny_cfg(*CENTER, *opts), tiny_model(*CENTER, *opts)
    images, cameras = random_images(1)
    outputs = model.train()(images, cameras)
    losses = make_center_losses(cfg, model.num_class, list(model.widths.values()))
    assert [tuple(loss.centers.shape) for loss in losses] == [(CLASSES, feature.shape[1]) for feature in outputs[1::2]]
    total_loss(cfg, outputs, torch.tensor([0, 0, 1, 1]), model.pair_weights, losses)[0].backward()
    assert all(loss.centers.grad[:2].abs().sum(1).min() > 0 and loss.centers.grad[2:].eq(0).all() for loss in losses)


@pytest.mark.parametrize("auxiliary", [(), (0,), (torch.tensor(0.75),)], ids=["none", "0", "a tensor"])
@pytest.mark.parametrize("sampler", ["softmax_triplet", "softmax"])
@pytest.mark.parametrize("kind", ["triplet", "center", "triplet_center"])
def test_total_of_every_metric_loss(kind, sampler, auxiliary):
    """The triplet loss needs the batches of identities; the number at the end of the outputs is added as it is."""
    cfg = tiny_cfg("MODEL.METRIC_LOSS_TYPE", kind, "DATALOADER.SAMPLER", sampler, "SOLVER.CENTER_LOSS_WEIGHT", "0.02",
                   "MODEL.ID_LOSS_WEIGHT", "0.25", "MODEL.TRIPLET_LOSS_WEIGHT", "3")
    torch.manual_seed(2)
    losses = make_center_losses(cfg, 6, WIDTHS)
    outputs, labels = draw_pairs()
    expected = float(sum(auxiliary))
    for index, weight in enumerate(PAIRS.values()):
        logits, features = (part.double() for part in outputs[2 * index:2 * index + 2])
        pair = 0.25 * float(reference.label_smoothed_cross_entropy(logits, labels, 0.1))
        if "triplet" in kind and sampler == "softmax_triplet":
            pair += 3 * float(reference.batch_hard_triplet_loss(features, labels))
        if "center" in kind:
            pair += 0.02 * float(reference.center_loss(features, labels, losses[index].centers.detach().double()))
        expected += weight * pair
    found, _ = total_loss(cfg, (*outputs, *auxiliary), labels, PAIRS, losses)
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)


def test_parts_are_the_losses_of_the_heads_and_sum_to_the_total():
    cfg = tiny_cfg(*CENTER, "MODEL.TRIPLET_LOSS_WEIGHT", "3")
    torch.manual_seed(2)
    losses = make_center_losses(cfg, 6, WIDTHS)
    outputs, labels = draw_pairs()
    total, parts = total_loss(cfg, [part.requires_grad_() for part in (*outputs, torch.tensor(0.5))], labels, PAIRS, losses)
    assert list(parts) == ["auxiliary", *(f"{kind}/{head}" for head in PAIRS for kind in ("id", "triplet", "center"))]
    assert not any(part.requires_grad for part in parts.values()) and total.requires_grad
    assert float(total.detach()) == pytest.approx(float(sum(parts.values())), rel=1e-6)
    assert float(parts["auxiliary"]) == 0.5
    with torch.no_grad():
        assert float(parts["triplet/original"]) == pytest.approx(2 * 3 * float(batch_hard_triplet_loss(outputs[3], labels)))
        assert float(parts["center/sdtps"]) == pytest.approx(0.3 * 0.0005 * float(losses[0](outputs[1], labels)))


def test_a_new_loss_is_a_function_and_a_line(monkeypatch):
    monkeypatch.setitem(LOSSES, "length", lambda cfg, head: 0.1 * head.features.norm(dim=1).mean())
    outputs, labels = draw_pairs()
    total, parts = total_loss(tiny_cfg(), outputs, labels, PAIRS)
    monkeypatch.undo()
    without, _ = total_loss(tiny_cfg(), outputs, labels, PAIRS)
    expected = {head: 0.1 * weight * float(features.norm(dim=1).mean())
                for (head, weight), features in zip(PAIRS.items(), outputs[1::2], strict=True)}
    assert {head: float(parts[f"length/{head}"]) for head in PAIRS} == pytest.approx(expected)
    assert float(total - without) == pytest.approx(sum(expected.values()), rel=1e-4)


def test_center_is_computed_in_float32_under_autocast():
    outputs, labels = draw_pairs()
    half = [part.bfloat16() for part in outputs]
    cfg = tiny_cfg(*CENTER, "SOLVER.CENTER_LOSS_WEIGHT", "1")
    losses = make_center_losses(cfg, 6, WIDTHS)
    expected, _ = total_loss(cfg, [part.float() for part in half], labels, PAIRS, losses)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = total_loss(cfg, half, labels, PAIRS, losses)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
