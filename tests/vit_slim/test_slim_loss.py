"""demo_sdtps.slim_loss: the loss of a score with weights against masks of the foreground."""

import copy
import gc
import re
import weakref
from functools import partial

import pytest
import timm
import torch
from numeric import assert_close, generator, shift_seed
from slim_host import Host, host_case, make_case
from slim_models import PATH, cross_entropy, slim_both

import demo_sdtps
from demo_sdtps.config import UserError

STAGES = (1, 2), (0.6, 0.5)


def slim_with_masks(score="supervised", **settings):
    _, model, steps = slim_both(host_case(**settings), *STAGES, score)
    images, masks = (
        host_case().draw(6),
        torch.rand(2, 1, 32, 32, generator=generator(2), dtype=torch.double),
    )
    return model.train(), dict(zip(("RGB", "NI", "TI"), images.chunk(3), strict=True)), masks, steps


@pytest.mark.parametrize("way", ["image by image", "stacked"])
def test_the_loss_is_that_of_the_formula(way):
    """Cross-entropy written out, its mean over patches, images and stages, times its weight once."""
    model, images, masks, steps = slim_with_masks(way=way)
    output = model(images, foreground=masks)
    loss = demo_sdtps.slim_loss(model)
    assert loss.shape == () and loss.requires_grad
    shares = masks[:, 0].unflatten(1, (4, 8)).unflatten(3, (4, 8)).mean(dim=(2, 4)).flatten(1)
    terms = [
        cross_entropy(score, shares[row % 2, places])
        for stages in steps.values()
        for stage in stages
        for row, (score, places) in enumerate(
            zip(stage.score["image"], stage.scored["image"], strict=True)
        )
    ]
    weight = model.slimming.scores[0].loss_weight
    expected = weight * sum(sum(row_terms) / len(row_terms) for row_terms in terms) / len(terms)
    assert_close(loss, expected, 2, 64, 64, 3, 16, 2)
    reached = torch.autograd.grad(
        loss, [*model.slimming.parameters(), model.tower.stem.weight], retain_graph=True
    )
    assert all(gradient.abs().max() > 0 for gradient in reached)
    assert torch.equal(output, model(images)), "masks change the loss alone"


def test_a_forward_without_masks_has_no_loss():
    model, images, masks, _ = slim_with_masks()
    sentence = "^The last forward had no loss of a score; call the model in training mode, with foreground=masks"
    with pytest.raises(UserError, match=sentence):
        demo_sdtps.slim_loss(model)
    model(images, foreground=masks)
    demo_sdtps.slim_loss(model)
    for forward in (lambda: model(images), lambda: model.eval()(images, foreground=masks)):
        forward()
        with pytest.raises(UserError, match=sentence):
            demo_sdtps.slim_loss(model)
    other, images, masks, _ = slim_with_masks("saliency")
    other(images, foreground=masks)
    with pytest.raises(UserError, match=sentence):
        demo_sdtps.slim_loss(other)
    with pytest.raises(
        UserError, match=re.escape("Host is not slimmed; call demo_sdtps.slim(model) before.")
    ):
        demo_sdtps.slim_loss(demo_sdtps.unslim(other))


@pytest.mark.parametrize(
    "kind",
    ["", "blocks", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("segments", "whole"))],
)
def test_training_steps_learn_the_masks(kind):
    """The loss falls, with recomputation as without; copies of the trained model have no part of its graph."""
    losses = []
    for way in {"", kind}:
        torch.manual_seed(shift_seed(3))
        model = make_case(partial(Host, recompute=way)).model()
        demo_sdtps.slim(model, *STAGES, "supervised", blocks_at="tower.blocks").train()
        _, images, masks, _ = slim_with_masks()
        optimizer, values = torch.optim.SGD(model.parameters(), lr=1e-3), []
        for _ in range(4):
            output = model(images, foreground=masks)
            loss = demo_sdtps.slim_loss(model) + 1e-3 * output.square().mean()
            values.append(float(loss.detach()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        other = copy.deepcopy(model)
        assert torch.equal(other.eval()(images), model.eval()(images)) and values[-1] < values[0]
        losses.append(values)
    assert_close(losses[-1], losses[0], *8 * PATH)


def test_a_model_goes_with_its_last_reference():
    model = demo_sdtps.slim(timm.create_model("test_vit", img_size=32), (0, 1), restore=True)
    for call in (model, model.forward_features):
        call(torch.randn(2, 3, 32, 32))
    gone = weakref.ref(model.slimming)
    del model, call
    gc.collect()
    assert gone() is None


def test_masks_of_another_type_count_as_numbers_and_of_another_shape_are_refused():
    vit = timm.create_model("test_vit", img_size=32)
    model = demo_sdtps.slim(vit, (1,), (0.5,), "supervised").train()
    images, losses, masks = torch.randn(2, 3, 32, 32), [], torch.ones(2, 1, 32, 32) > 0
    for each in (masks, masks.float()):
        model(images, foreground=each)
        losses.append(demo_sdtps.slim_loss(model))
    assert torch.equal(*losses)
    with pytest.raises(
        UserError,
        match=r"^foreground is \(2, 32, 32\) for images \(2, 3, 32, 32\); give masks \(B, 1, H, W\)",
    ):
        model(images, foreground=masks[:, 0])
