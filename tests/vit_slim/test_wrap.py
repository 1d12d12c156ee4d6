"""How wrapped blocks follow images through a model: several images, masks, copies, errors, containers, hooks of others."""

import copy
import pickle
import weakref
from collections import UserDict
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import pytest
import timm
import torch
from learned import Learned
from numeric import assert_close, assert_order, generator, tolerance
from slim_models import (
    CASES,
    COLUMNS,
    DEPTH,
    PATH,
    ROWS,
    WAYS,
    WIDTH,
    Called,
    Ensemble,
    Tower,
    by_saliency,
    compare,
    host_case,
    learned,
    make_case,
    saliency,
    slim_both,
    timm_model,
)
from tiny import make_replicas
from torch import nn
from torch.func import functional_call, grad, vmap

import demo_sdtps
from demo_sdtps.config import UserError

STAGES = (1, 2), (0.6, 0.5)
PATCHES = ROWS * COLUMNS


# Several images of a forward


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shared", [True, False])
def test_images_of_a_forward_by_saliency(way, shared):
    """With `shared` that of all images together, or else of each."""
    case = host_case(way, shared)

    def score(model, images):
        parts = images.chunk(3)
        return saliency(
            lambda call: parts if shared else [images if way == "stacked" else parts[call]], case
        )

    compare(case, "saliency", *STAGES, score, case.draw(6))


@pytest.mark.parametrize("way", WAYS[:2])
def test_images_of_a_forward_by_their_tokens(way):
    """A score that reads tokens is each image's own."""
    case = host_case(way)
    score = lambda model, images: learned(model.slimming)  # noqa: E731
    compare(case, Learned, *STAGES, score, case.draw(6))


class Batches(nn.Module):
    """Several batches of images, normalised on the way to the tower."""

    def __init__(self):
        super().__init__()
        self.tower = Tower()

    def forward(self, *batches):
        return [self.tower((images - 0.5) / 0.2) for images in batches]


@pytest.mark.parametrize(
    ("sizes", "together"),
    [((2, 3, 2), ([0, 2], [1], [0, 2])), ((2, 2, 3, 3), ([0, 1], [0, 1], [2, 3], [2, 3]))],
)
def test_batches_of_several_sizes(sizes, together):
    """Those of one size are chosen for together."""
    case = make_case(Batches, blocks_at="tower.blocks")
    _, model, steps = slim_both(case, (1,), (0.5,))
    images = [case.draw(batch, seed) for seed, batch in enumerate(sizes)]
    with torch.no_grad():
        assert [len(each) for each in model(*images)] == [*sizes]
    kept = [step.kept for step in steps[0]]
    for number, voters in enumerate(together):
        score = saliency(lambda call, voters=voters: [images[voter] for voter in voters], case)
        for row, places in enumerate(kept[number]):
            whole = [SimpleNamespace(patches=range(PATCHES))] * len(kept[number])
            values = torch.tensor(score(0, row, 1, None, whole))
            ranked = places[values[places].argsort(descending=True)]
            assert_order(ranked, -values, tolerance(192, 16, 16, 16))


def test_images_of_the_caller_stay_as_they_are():
    """Their type, their result by a method, and in a slimmed model of another grid; gradients arrive at them. None is kept."""
    (_, model, _), case = slim_both(host_case(), *STAGES), host_case()
    images = [image.clone().requires_grad_() for image in case.draw(6).chunk(3)]
    alone = model.tower(images[0])
    for container in (dict, UserDict):
        model(container(enumerate(images))).sum().backward()
    assert all(type(image) is torch.Tensor and image.grad.any() for image in images)
    assert torch.equal(model.tower(images[0]), alone)
    kept = weakref.ref(image := images[0].detach().clone())
    model({"image": image})
    del image
    assert kept() is None
    other = demo_sdtps.slim(timm.create_model("test_vit", img_size=32).double(), (1,), (0.5,))
    assert other.forward_features(images[0]).shape[1] == 1 + 2


# What the blocks take and return


@pytest.mark.parametrize("settings", [{}, {"merge": False}], ids=str)
def test_blocks_that_return_more(settings):
    case = make_case(partial(Tower, True), blocks_at="blocks", prefix=1, **settings)
    compare(case, "saliency", *STAGES, by_saliency(case))


@pytest.mark.filterwarnings("ignore")  # of torch.jit.trace
@pytest.mark.parametrize("kind", ["added", "boolean", "4-D", "of the patches"])
def test_masks(kind):
    """Between all tokens, and of the patches, as STMI gives its blocks."""
    import_module("demo_sdtps.plug_in.slim")
    length, name = 1 + PATCHES, "attn_mask"
    size = (2, 1, length, length) if kind == "4-D" else (length, length)
    mask = torch.randn(*size, generator=generator(3), dtype=torch.double)
    if kind == "boolean":
        mask = (mask > -0.5) | torch.eye(length, dtype=torch.bool)
    elif kind == "of the patches":
        name, mask = "use_mask", mask[1:3, 1:].sigmoid().unflatten(1, (ROWS, COLUMNS))
    call = lambda model, images: model(images, **{name: mask})  # noqa: E731
    case = make_case(Tower, call, blocks_at="blocks")
    for stages in (STAGES, ((0, 2), (0.6, 0.5))):
        compare(case, "saliency", *stages, by_saliency(case))
    model, images = demo_sdtps.slim(case.model(), *STAGES, blocks_at="blocks"), case.draw()
    assert_close(
        torch.jit.trace(Called(case, model), images)(images), case.call(model, images), *PATH
    )


METHODS = {
    "timm, rotary": lambda model, images: model.forward_features(images),
    "open_clip": lambda model, images: model.encode_image(images),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_a_model(name):
    case = CASES[name]._replace(call=METHODS[name])
    compare(case, "saliency", *STAGES, by_saliency(case))


# Errors


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_after_an_error_the_next_forward_begins_anew(error):
    """Of the model, of a part of it, and of a method."""
    case = host_case()
    _, model, _ = slim_both(case, *STAGES)
    images, failing = case.draw(6), []

    def fail(module, args):
        if len(failing) == 1:
            raise error("in the middle")
        failing.append(module)

    expected, alone = case.call(model, images), model.tower(images[:2])
    for place in ("tower.stem", "tower.blocks.0", "tower.blocks.2", "head"):
        failing[:] = [None] if place == "head" else []
        handle = model.get_submodule(place).register_forward_pre_hook(fail)
        with pytest.raises(error, match="in the middle"):
            case.call(model, case.draw(6, seed=1))
        handle.remove()
        for method in (model.tower.encode, model.tower):
            model.tower.embed(case.draw(2, seed=1))  # gives up after its stem
            assert torch.equal(method(images[:2]), alone)
        model.tower.embed(case.draw(2, seed=1))
        assert torch.equal(case.call(model, images), expected)


# Copies, containers, other ways to call a model


@pytest.mark.parametrize(
    "copy_of", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_copies_compute_by_their_own_weights(copy_of):
    """Also one between a forward and its backward pass, which has no loss of that forward; its graph cannot be copied."""
    case = CASES["timm"]
    model, images = demo_sdtps.slim(case.model(), *STAGES, Learned(WIDTH)), case.draw()
    expected = case.call(model, images)
    case.call(model.train(), images)
    other = copy_of(model)
    demo_sdtps.slim_loss(model).backward()
    with pytest.raises(UserError, match="no loss"):
        demo_sdtps.slim_loss(other)
    assert torch.equal(case.call(other.eval(), images), expected)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    assert not torch.equal(case.call(other, images), expected)
    demo_sdtps.unslim(other)
    assert torch.equal(case.call(model.eval(), images), expected)


def test_weights_of_scores_are_in_the_state_dict():
    case = CASES["timm"]
    dense, model, _ = slim_both(case, *STAGES, Learned)
    names = model.state_dict().keys()
    assert names >= dense.state_dict().keys()
    added = {name.rpartition(".heads.")[0] for name in names - dense.state_dict().keys()}
    assert added == {"slimming.scores.0", "slimming.scores.1"}
    other = demo_sdtps.slim(case.model(), *STAGES, Learned(WIDTH))
    other.load_state_dict(model.state_dict())
    assert torch.equal(case.call(other, case.draw()), case.call(model, case.draw()))


class Each(nn.Module):
    """Goes over its children."""

    def __init__(self):
        super().__init__()
        self.stem, self.flat = nn.Conv2d(3, WIDTH, 8, 8), nn.Flatten(2)
        self.blocks = nn.Sequential(*(Tower().blocks[index] for index in range(DEPTH)))

    def forward(self, images):
        for part in self.children():
            images = part(images)
            images = images.transpose(1, 2) if part is self.flat else images
        return images


@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (lambda: nn.Sequential(timm_model("test_vit"), nn.Linear(5, 2)), {}),
        (lambda: Ensemble({name: timm_model("test_vit") for name in "ab"}), {}),
        (Each, {"blocks_at": "blocks"}),
    ],
    ids=["sequential", "several towers", "children"],
)
def test_slimming_is_no_layer_of_a_container(build, settings):
    model, images = build(), torch.randn(2, 3, 64, 32, generator=generator(1))
    children = [name for name, _ in model.named_children()]
    expected = model(images)
    demo_sdtps.slim(model, (1,), (1.0,), Learned(WIDTH), **settings)
    assert torch.equal(model(images), expected)
    assert [name for name, _ in model.named_children()] == children
    assert model.slimming.counts(8) == (8,)
    demo_sdtps.slim(demo_sdtps.unslim(model), (1,), (0.5,), **settings)
    assert not torch.equal(model(images), expected)


def test_replicas_are_refused():
    """nn.DataParallel makes them of every module before it runs them in threads."""
    model = demo_sdtps.slim(host_case().model(), *STAGES, blocks_at="tower.blocks")
    with pytest.raises(UserError, match="DistributedDataParallel"):
        make_replicas(model, 2)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_functional_calls_and_the_meta_device():
    model = demo_sdtps.slim(timm_model("test_vit"), (0, 1)).eval()
    weights, images = dict(model.named_parameters()), torch.randn(2, 3, 64, 32)
    loss = lambda weights, image: functional_call(model, weights, (image[None],)).sum()  # noqa: E731
    with torch.no_grad():
        alone = [grad(loss)(weights, image) for image in images]
        together = vmap(grad(loss), (None, 0))(weights, images)
    for name, rows in together.items():
        for row, expected in zip(rows, alone, strict=True):
            assert_close(row, expected[name].double(), *4 * PATH)
    model.to("meta")
    assert model(images.to("meta")).shape == (2, 5)
