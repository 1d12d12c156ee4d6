"""How the hooks of demo_sdtps.slim follow images through a host: layouts, masks, several images, copies, threads, errors."""

import copy
import pickle
from functools import partial

import pytest
import torch
from numeric import assert_close, generator
from slim_host import COLUMNS, DEPTH, ROWS, Segmenter, Tower, host_case, make_case
from slim_models import (
    CASES,
    PATH,
    WIDTH,
    by_saliency,
    compare,
    slim_both,
    timm_model,
    transformers_model,
)
from torch import nn
from torch.func import functional_call, grad, vmap

import demo_sdtps
from demo_sdtps.config import UserError

STAGES = (1, 2), (0.6, 0.5)
PATCHES = ROWS * COLUMNS


# What stands around the patches, what the blocks return, what needs the whole grid


@pytest.mark.parametrize("settings", [{}, {"restore": True}, {"merge": False}], ids=str)
def test_tokens_after_the_patches_and_blocks_that_return_more(settings):
    case = make_case(partial(Tower, 2, True), blocks_at="blocks", prefix=1, suffix=2, **settings)
    compare(case, "saliency", *STAGES, by_saliency(case))


def test_a_head_of_the_grid():
    case = make_case(Segmenter, blocks_at="tower.blocks", restore=True)
    compare(case, "saliency", *STAGES, by_saliency(case))


def test_restored_places_hold_their_tokens_as_they_were_when_dropped():
    case = make_case(Tower, blocks_at="blocks")
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
                assert torch.equal(output[row, 1 + place], inputs[1][row, 1 + place])
    assert torch.equal(inputs[0], dense.blocks[0](dense.embed(images)))


def test_feature_maps_of_several_blocks():
    """With `restore` the whole grid, in which the kept patches are those that blocks give each other without; else refused."""
    case = CASES["timm, DINOv3"]
    dense, plain, steps = slim_both(case, *STAGES)
    restored = demo_sdtps.slim(copy.deepcopy(dense), *STAGES, restore=True)
    images, outputs, places = case.draw(), [], torch.arange(8).expand(2, -1)
    for block in plain.blocks:
        block.register_forward_hook(lambda block, args, output: outputs.append(output[:, 5:]))
    case.call(plain, images)
    kept = places, *(steps[number][0].kept["image"] for number in (0, 1))
    last, maps = restored.forward_intermediates(images, output_fmt="NLC")
    for tokens, expected, where in zip(maps, outputs, kept, strict=True):
        index = where[..., None].expand(-1, -1, WIDTH)
        assert torch.equal(tokens.gather(1, index), expected[:, : where.shape[1]])
    assert torch.equal(last, restored.forward_features(images))
    getter = timm_model("test_vit", features_only=True, out_indices=(0, 1, 2), num_classes=None)
    expected = getter(images.float())
    actual = demo_sdtps.slim(copy.deepcopy(getter), (2,), (0.5,), restore=True)(images.float())
    same = [torch.equal(one, other) for one, other in zip(actual, expected, strict=True)]
    assert same == [True, True, False] and actual[2].shape == expected[2].shape
    demo_sdtps.slim(model := timm_model("test_vit"), *STAGES)
    intermediates = model.get_intermediate_layers, copy.deepcopy(plain).forward_intermediates
    for call in (lambda _: demo_sdtps.slim(getter, *STAGES), *intermediates):
        with pytest.raises(
            UserError, match=r"^features_only, .*; slim the model with restore=True\.$"
        ):
            call(images)
    assert len(demo_sdtps.unslim(model).get_intermediate_layers(images.float(), 3)) == 3


class Stopping(nn.Module):
    """Stops after a block, or embeds images beside those that it encodes."""

    def __init__(self):
        super().__init__()
        self.tower = timm_model("test_vit")

    def forward(self, images, is_early):
        if is_early:
            early = {"indices": [1], "stop_early": True, "intermediates_only": True}
            return self.tower.forward_intermediates(images, **early)[0]
        return self.tower(images), self.tower.patch_embed(images)


def test_a_model_that_stops_early_or_embeds_images_alone():
    model = Stopping().eval()
    images = torch.randn(2, 3, 64, 32, generator=generator(1))
    dense = model.tower.patch_embed(images)
    demo_sdtps.slim(model, (1,), (0.5,), restore=True)
    assert model(images, True).shape == (2, WIDTH, 4, 2)
    output, embedded = model(images, False)
    assert torch.equal(embedded, dense) and torch.equal(output, model.tower(images))


def test_slimming_is_in_place_of_the_masking_of_vit_mae():
    case = CASES["ViTMAE"]
    masks = transformers_model("ViTMAEModel", mask_ratio=0.75).double().eval()
    dense, model, _ = slim_both(case, *STAGES)
    masks.load_state_dict(dense.state_dict())
    output = demo_sdtps.slim(masks, *STAGES)(case.draw())
    assert torch.equal(output.last_hidden_state, case.call(model, case.draw()))
    assert not output.mask.any() and output.ids_restore.tolist() == 2 * [[*range(16)]]
    assert demo_sdtps.unslim(masks)(case.draw()).last_hidden_state.shape[1] == 1 + 4


# What goes with the tokens position by position


@pytest.mark.parametrize("kind", ["added", "boolean", "4-D"])
def test_masks_between_all_tokens(kind):
    length = 1 + PATCHES + 2
    size = (2, 1, length, length) if kind == "4-D" else (length, length)
    mask = torch.randn(*size, generator=generator(3), dtype=torch.double)
    if kind == "boolean":
        mask = (mask > -0.5) | torch.eye(length, dtype=torch.bool)
    call = lambda model, images: model(images, attn_mask=mask)  # noqa: E731
    case = make_case(partial(Tower, 2), call, blocks_at="blocks", suffix=2)
    compare(case, "saliency", *STAGES, by_saliency(case))


def test_masks_of_the_patches():
    mask = torch.rand(2, ROWS, COLUMNS, generator=generator(3), dtype=torch.double)
    case = make_case(Tower, lambda model, images: model(images, use_mask=mask), blocks_at="blocks")
    compare(case, "saliency", (0, 2), (0.6, 0.5), by_saliency(case))


# Methods of a model in place of its forward, and blocks alone


METHODS = {
    "timm, rotary": lambda model, images: model.forward_features(images),
    "open_clip": lambda model, images: model.encode_image(images),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_a_model(name):
    case = CASES[name]._replace(call=METHODS[name])
    compare(case, "saliency", *STAGES, by_saliency(case))


def test_a_block_alone_is_as_it_was():
    case = host_case()
    dense, model, _ = slim_both(case, *STAGES)
    tokens = torch.randn(2, 17, 32, dtype=torch.double, generator=generator(1))
    images = case.draw(6)
    expected = case.call(model, images)
    for index in range(DEPTH):
        assert torch.equal(model.tower.blocks[index](tokens), dense.tower.blocks[index](tokens))
    assert torch.equal(case.call(model, images), expected)
    # A tower that gives up after its stem leaves its images unfinished.
    model.tower.embed(images)
    assert torch.equal(case.call(model, images), expected)


# Errors, copies and threads


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_leaves_nothing_behind(error):
    """Also one of which torch tells no hook, with the next forward of the model."""
    case = host_case()
    dense, model, _ = slim_both(case, *STAGES)
    images, failing = case.draw(6), []
    tokens = torch.randn(2, 17, 32, dtype=torch.double, generator=generator(1))

    def fail(module, args):
        if len(failing) == 1:
            raise error("in the middle")
        failing.append(module)

    expected, alone = case.call(model, images), model.tower(images[:2])
    method = model.tower.encode(images[:2])
    for place in ("tower.stem", "tower.blocks.0", "first", "tower.blocks.2", "head"):
        failing[:] = [None] if place == "head" else []
        module = model.get_submodule("tower.blocks.0" if place == "first" else place)
        # Before the hooks of slimming: the batch waits for its first block.
        handle = module.register_forward_pre_hook(fail, prepend=place == "first")
        with pytest.raises(error, match="in the middle"):
            case.call(model, case.draw(6, seed=1))
        handle.remove()
        if error is RuntimeError:
            for index in range(DEPTH):
                expected_alone = dense.tower.blocks[index](tokens)
                assert torch.equal(model.tower.blocks[index](tokens), expected_alone)
        assert torch.equal(model.tower.encode(images[:2]), method)
        assert torch.equal(model.tower(images[:2]), alone)
        assert torch.equal(case.call(model, images), expected)


@pytest.mark.parametrize(
    "copy_of",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
def test_copies_compute_by_their_own_weights(copy_of):
    case = CASES["timm"]
    model, images = demo_sdtps.slim(case.model(), *STAGES, "supervised"), case.draw()
    expected = case.call(model, images)
    other = copy_of(model)
    assert torch.equal(case.call(other, images), expected)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    assert not torch.equal(case.call(other, images), expected)
    demo_sdtps.unslim(other)
    assert torch.equal(case.call(model, images), expected)


def test_a_model_is_copied_between_its_forward_and_its_backward_pass():
    """The copy has no forward under way, of whose graph torch copies nothing."""
    case = CASES["timm"]
    model = demo_sdtps.slim(case.model(), *STAGES, "self_supervised").train()
    case.call(model, case.draw())
    other = copy.deepcopy(model)
    demo_sdtps.slim_loss(model).backward()
    with pytest.raises(UserError, match="had no loss"):
        demo_sdtps.slim_loss(other)


@pytest.mark.parametrize("restore", [False, True])
def test_hooks_of_others_get_the_tokens_without_extra_ones(restore):
    """Also those that were there before, as libraries collect outputs."""
    case, lengths = CASES["timm"], []
    model = case.model()
    model.blocks[-1].register_forward_hook(lambda *at: lengths.append(at[2].shape[1]))
    demo_sdtps.slim(model, *STAGES, restore=restore)
    case.call(model, case.draw())
    patches = case.grid[0] * case.grid[1]
    assert lengths == [1 + (patches if restore else model.slimming.counts(patches)[-1])]


def test_weights_of_scores_are_in_the_state_dict():
    case = CASES["timm"]
    dense, model, _ = slim_both(case, *STAGES, "supervised")
    added = model.state_dict().keys() - dense.state_dict().keys()
    assert {name.rpartition(".heads.")[0] for name in added} == {
        "slimming.scores.0",
        "slimming.scores.1",
    }
    other = demo_sdtps.slim(case.model(), *STAGES, "supervised")
    other.load_state_dict(model.state_dict())
    assert torch.equal(case.call(other, case.draw()), case.call(model, case.draw()))


def test_scores_of_a_checkpoint_that_has_them_at_the_model():
    """As files of before have them; of a model whose blocks are named they are in the patch convolution."""
    model = demo_sdtps.slim(host_case().model(), *STAGES, "supervised", blocks_at="tower.blocks")
    weights = {
        name.replace("tower.stem.slimming.", "slimming."): weight + 1
        for name, weight in model.state_dict().items()
    }
    assert "slimming.scores.1.heads.image.3.weight" in weights
    wrapper = nn.ModuleDict({"host": model})
    wrapper.load_state_dict({f"host.{name}": weight for name, weight in weights.items()})
    model.load_state_dict(weights)
    for (name, weight), expected in zip(model.state_dict().items(), weights.values(), strict=True):
        assert torch.equal(weight, expected), name


class Each(nn.Module):
    """Goes over its children; so may a list of blocks, and a dict of models."""

    def __init__(self):
        super().__init__()
        self.stem, self.flat = nn.Conv2d(3, WIDTH, 8, 8), nn.Flatten(2)
        self.blocks = nn.Sequential(*(Tower().blocks[index] for index in range(DEPTH)))

    def forward(self, images):
        for part in self.children():
            images = part(images)
            images = images.transpose(1, 2) if part is self.flat else images
        return images


class Ensemble(nn.ModuleDict):
    def forward(self, images):
        return torch.stack([model(images) for model in self.values()])


@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (lambda: nn.Sequential(timm_model("test_vit"), nn.Linear(5, 2)), {}),
        (lambda: Ensemble({name: timm_model("test_vit") for name in "ab"}), {}),
        (Each, {"blocks_at": "blocks"}),
    ],
    ids=["sequential", "dict", "children"],
)
def test_slimming_is_no_layer_of_a_container(build, settings):
    model, images = build(), torch.randn(2, 3, 64, 32, generator=generator(1))
    children = [name for name, _ in model.named_children()]
    expected = model(images)
    demo_sdtps.slim(model, (1,), (1.0,), "distinctness", **settings)
    assert torch.equal(model(images), expected)
    assert [name for name, _ in model.named_children()] == children
    assert model.slimming.counts(8) == (8,)


def test_a_tower_is_unslimmed_without_what_wraps_it():
    model, images = nn.Sequential(timm_model("test_vit")), torch.randn(2, 3, 64, 32)
    expected = model(images)
    demo_sdtps.unslim(demo_sdtps.slim(model, *STAGES)[0])
    assert torch.equal(model(images), expected)
    assert demo_sdtps.slim(model, (1,), (0.5,)).slimming.counts(8) == (4,)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("settings", [{}, {"restore": True}], ids=str)
def test_functional_calls_and_the_meta_device(settings):
    model = demo_sdtps.slim(timm_model("test_vit"), (0, 1), score="distinctness", **settings).eval()
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
