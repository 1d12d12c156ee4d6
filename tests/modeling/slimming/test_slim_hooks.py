"""How the hooks of demo_sdtps.slim follow images through a host: layouts, masks, several images, copies, threads, errors."""

import copy
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from numeric import generator
from plug_in_host import replicas_of
from slim_host import COLUMNS, DEPTH, ROWS, Segmenter, Tower, case_of, host_case
from slim_models import CASES, GRID, WIDTH, by_saliency, compare, slim_both
from torch import nn

import demo_sdtps
from demo_sdtps.config import UserError
from studies.baselines import EViT

STAGES = (1, 2), (0.6, 0.5)
PATCHES = ROWS * COLUMNS


# What stands around the patches, what the blocks return, what needs the whole grid


@pytest.mark.parametrize(
    "settings",
    [
        {"prefix": 1},
        {"suffix": 2},
        {"prefix": 1, "suffix": 2, "restore": True},
        {"suffix": 2, "merge": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_tuple", [False, True])
def test_tokens_after_the_patches_and_blocks_that_return_more(settings, is_tuple):
    case = case_of(
        partial(Tower, settings.get("suffix", 0), is_tuple), blocks_at="blocks", **settings
    )
    compare(case, "saliency", *STAGES, by_saliency(case))


def test_the_output_of_the_last_block_is_what_it_was():
    case = case_of(partial(Tower, is_tuple=True), blocks_at="blocks")
    _, model, _ = slim_both(case, *STAGES)
    seen = []
    model.blocks[-1].register_forward_hook(lambda block, args, output: seen.append(output))
    case.call(model, case.draw())
    assert isinstance(seen[0], tuple) and seen[0][0].shape[1] == 1 + 5 and seen[0][1:] == ("more",)


@pytest.mark.parametrize("merge", [True, False])
def test_a_head_of_the_grid(merge):
    case = case_of(Segmenter, blocks_at="tower.blocks")
    compare(case, "saliency", *STAGES, by_saliency(case), restore=True, merge=merge)


def test_restored_places_hold_their_tokens_as_they_were_when_dropped():
    case = case_of(Tower, blocks_at="blocks")
    dense, model, steps = slim_both(case, *STAGES, restore=True)
    inputs = []
    for index in (1, 2):
        model.blocks[index].register_forward_pre_hook(
            lambda block, args: inputs.append(args[0]), prepend=True
        )
    images = case.draw(3)
    output = case.call(model, images)
    first, second = (step.kept["image"].tolist() for step in (steps[0][0], steps[1][0]))
    for row in range(3):
        for place in range(PATCHES):
            if place not in first[row]:
                assert torch.equal(output[row, 1 + place], inputs[0][row, 1 + place])
            elif place not in second[row]:
                assert torch.equal(
                    output[row, 1 + place], inputs[1][row, 1 + first[row].index(place)]
                )
    assert torch.equal(inputs[0], dense.blocks[0](dense.embed(images)))


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({"prefix": 2}, "prefix=2 and suffix=0"),
        ({"suffix": 3}, "prefix=None and suffix=3"),
        ({"prefix": 1, "suffix": 1}, "prefix=1 and suffix=1"),
    ],
)
def test_wrong_numbers_of_tokens_are_refused(settings, counts):
    case = case_of(Tower, blocks_at="blocks", **settings)
    _, model, _ = slim_both(case, *STAGES)
    with pytest.raises(
        UserError,
        match=f"^Block gets 17 tokens where the grid has 16 patches, but {counts} were expected",
    ):
        case.call(model, case.draw())


# What goes with the tokens position by position


def mask_between(kind, length, batch=2):
    values = torch.randn(
        *(length, length) if kind != "4-D" else (batch, 1, length, length),
        generator=generator(3),
        dtype=torch.double,
    )
    return (values > -0.5) | torch.eye(length, dtype=torch.bool) if kind == "boolean" else values


@pytest.mark.parametrize("kind", ["added", "boolean", "4-D"])
@pytest.mark.parametrize("where", ["timm", "own"])
def test_masks_between_all_tokens(where, kind):
    """timm's are given to a method of the model."""
    if where == "timm":
        mask = mask_between(kind, 9)
        case = CASES["timm"]._replace(
            call=lambda model, images: model.forward_features(images, attn_mask=mask)
        )
    else:
        mask = mask_between(kind, 19)
        case = case_of(
            partial(Tower, 2),
            lambda model, images: model(images, attn_mask=mask),
            blocks_at="blocks",
            suffix=2,
        )
    compare(case, "saliency", *STAGES, by_saliency(case))


def test_masks_of_the_patches():
    mask = torch.rand(2, ROWS, COLUMNS, generator=generator(3), dtype=torch.double)
    case = case_of(Tower, lambda model, images: model(images, use_mask=mask), blocks_at="blocks")
    compare(case, "saliency", (0, 2), (0.6, 0.5), by_saliency(case))


# Methods of a model in place of its forward, and blocks alone


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("timm", lambda model, images: model.forward_features(images)),
        ("timm, rotary", lambda model, images: model.forward_features(images)),
        ("open_clip", lambda model, images: model.encode_image(images)),
        ("CLIP", lambda model, images: model.get_image_features(pixel_values=images).pooler_output),
    ],
    ids=["timm", "timm, rotary", "open_clip", "CLIP"],
)
def test_methods_of_a_model(name, call):
    case = CASES[name]._replace(call=call)
    compare(case, "saliency", *STAGES, by_saliency(case))


def test_a_block_alone_is_as_it_was():
    case = host_case()
    dense, model, _ = slim_both(case, *STAGES)
    tokens, images = (
        torch.randn(2, 17, 32, dtype=torch.double, generator=generator(1)),
        case.draw(6),
    )
    expected = case.call(model, images)
    for index in range(DEPTH):
        assert torch.equal(model.tower.blocks[index](tokens), dense.tower.blocks[index](tokens))
    assert torch.equal(case.call(model, images), expected)
    # A tower that gives up after its stem leaves its images unfinished.
    model.tower.embed(images)
    assert torch.equal(case.call(model, images), expected)


# Errors, copies and threads


def test_an_error_leaves_nothing_behind():
    case = host_case()
    _, model, _ = slim_both(case, *STAGES)
    images, failing = case.draw(6), []

    def fail(module, args):
        if len(failing) == 1:
            raise RuntimeError("in the middle")
        failing.append(module)

    expected, alone = case.call(model, images), model.tower(images[:2])
    for place in ("tower.stem", "tower.blocks.0", "tower.blocks.2", "head"):
        failing[:] = [None] if place == "head" else []
        handle = model.get_submodule(place).register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            case.call(model, case.draw(6, seed=1))
        handle.remove()
        assert torch.equal(model.tower(images[:2]), alone)
        assert torch.equal(case.call(model, images), expected)


@pytest.mark.parametrize("score", ["saliency", "supervised"])
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
def test_copies_compute_by_their_own_weights(score, copied):
    case = CASES["timm"]
    model, images = demo_sdtps.slim(case.model(), *STAGES, score), case.draw()
    expected = case.call(model, images)
    other = copied(model)
    assert torch.equal(case.call(other, images), expected)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    assert not torch.equal(case.call(other, images), expected) and torch.equal(
        case.call(model, images), expected
    )
    demo_sdtps.unslim(other)
    assert torch.equal(case.call(model, images), expected)


def test_weights_of_scores_are_in_the_state_dict():
    case = CASES["timm"]
    names = list(case.model().state_dict())
    for score, added in (("saliency", set()), ("supervised", {"0", "1"})):
        _, model, _ = slim_both(case, *STAGES, score)
        actual = [name for name in model.state_dict() if name not in names]
        assert {re.match(r"slimming\.scores\.(\d+)\.", name)[1] for name in actual} == added
        other = demo_sdtps.slim(case.model(), *STAGES, score)
        other.load_state_dict(model.state_dict())
        assert torch.equal(case.call(other, case.draw()), case.call(model, case.draw()))


@pytest.mark.parametrize("kind", ["one model", "replicas"])
@pytest.mark.parametrize("has_gradients", [False, True])
def test_threads_do_not_mix(kind, has_gradients):
    """Two stop before each call of the second block, so that each is in the middle of its forward."""
    case = host_case()
    _, model, _ = slim_both(case, *STAGES, "supervised")
    given = [case.draw(6, seed) for seed in (1, 2)]
    expected = [case.call(model, images) for images in given]
    together = threading.Barrier(2, timeout=20)

    def stop(module, args):
        together.wait()

    handle = model.tower.blocks[1].register_forward_pre_hook(stop)

    def encode(each, images):
        with torch.set_grad_enabled(has_gradients):
            return case.call(each, images)

    with ThreadPoolExecutor(2) as pool:
        actual = list(
            pool.map(
                encode, [model, model] if kind == "one model" else replicas_of(model, 2), given
            )
        )
    handle.remove()
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))


@pytest.mark.parametrize("name", ["timm", "ViT"])
def test_two_towers_of_one_model(name):
    """Each in its own layout; by attention each reads its own."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = CASES[name].build(), CASES["timm, DINOv3"].build()

        def forward(self, images, small):
            return CASES[name].call(self.one, images), self.other(small)

    both, images, small = Both().double().eval(), CASES[name].draw(), CASES["timm, DINOv3"].draw()
    parts = copy.deepcopy(both)
    demo_sdtps.slim(both, *STAGES, EViT(WIDTH, GRID))
    one, other = both(images, small)
    for actual, part, case, given in (
        (one, parts.one, CASES[name], images),
        (other, parts.other, CASES["timm, DINOv3"], small),
    ):
        demo_sdtps.slim(part, *STAGES, EViT(WIDTH, GRID))
        assert torch.equal(actual, case.call(part, given))
