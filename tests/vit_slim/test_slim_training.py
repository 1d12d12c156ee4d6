"""Training of models that demo_sdtps.slim slimmed: recomputation, half precision, compiler, processes."""

import copy
import shutil
import weakref
from functools import partial

import pytest
import torch
import two_slim_processes
from forked import run_two
from numeric import assert_close, generator, shift_seed
from sdtps_cases import assert_gradients_equal
from slim_host import WAYS, Host, Tower, call_host, host_case, make_case
from slim_models import CASES, DEPTH, HEADS, PATH, WIDTH, slim_both
from tiny import sums_of_a_block
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import demo_sdtps
from demo_sdtps.config import UserError

STAGES = (1, 2), (0.6, 0.5)
BACK = (*PATH, *PATH)
RECOMPUTED = "blocks", "segments", "whole"
HAS_COMPILER = pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")


def step(call, model, images, forwards=1):
    """Gradients of the model and of images after as many forwards, whose losses are added; → (outputs, gradients)."""
    model.zero_grad()
    torch.manual_seed(shift_seed(3))
    images = [image.clone().requires_grad_() for image in images.chunk(forwards)]
    outputs = [call(model, image) for image in images]
    draws = generator(5)
    sum(
        (output * torch.randn(output.shape, generator=draws, dtype=output.dtype)).sum()
        for output in outputs
    ).backward()
    named = {name: parameter.grad for name, parameter in model.named_parameters()}
    return outputs, named | {f"images.{number}": image.grad for number, image in enumerate(images)}


def agree(call, plain, recomputing, images, forwards=1):
    (outputs, actual), (expected, gradients) = (
        step(call, model, images, forwards) for model in (recomputing, plain)
    )
    assert all(torch.equal(one, other) for one, other in zip(outputs, expected, strict=True))
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients.values())
    assert_gradients_equal(actual, gradients, BACK)


def pair(build, score, blocks=STAGES[0], **settings):
    """A slimmed model, and `recomputing(recompute, reentrant)`, which makes copies of it that compute again."""
    plain = make_case(build).model()
    path = "tower.blocks" if hasattr(plain, "tower") else "blocks"
    demo_sdtps.slim(plain.train(), blocks, STAGES[1], score, blocks_at=path, **settings)

    def recomputing(recompute, reentrant=False):
        model = copy.deepcopy(plain)
        tower = getattr(model, "tower", model)
        tower.recompute, tower.reentrant = recompute, reentrant
        return model

    return plain, recomputing


# Recomputation


@pytest.mark.parametrize("kind", [*RECOMPUTED, "stem"])
@pytest.mark.parametrize(
    ("score", "settings"), [("supervised", {}), ("distinctness", {"restore": True})], ids=str
)
def test_recomputation_gives_the_same_gradients(kind, score, settings):
    """Of what is computed again, with numbers drawn in blocks and by the score; of the stem to its end."""
    plain, recomputing = pair(partial(Tower, dropout=0.2), score, **settings)
    with set_checkpoint_early_stop(kind != "stem"):
        agree(Tower.__call__, plain, recomputing(kind), make_case(Tower).draw(4))


@pytest.mark.parametrize("kind", RECOMPUTED)
@pytest.mark.parametrize("way", WAYS)
def test_recomputation_of_several_images_of_a_forward(kind, way):
    """Also where the loss is of some of them."""
    plain, recomputing = pair(partial(Host, way), "distinctness")

    def call(model, images):
        return call_host(model, images)[:, 17:34]

    for each in (call_host, call):
        agree(each, plain, recomputing(kind), host_case().draw(6))


class Student(nn.Module):
    """Its output beside that of other images, which has no gradient and leaves the memory of its tokens to later ones."""

    def __init__(self):
        super().__init__()
        self.tower = Tower()

    def forward(self, images):
        with torch.no_grad():
            target = self.tower(images.flip(0))
        return self.tower(images) - target


@pytest.mark.parametrize("kind", RECOMPUTED)
def test_recomputation_beside_a_call_without_gradient(kind):
    plain, recomputing = pair(Student, "distinctness", shared=False)
    for count in (1, 4):
        agree(Student.__call__, plain, recomputing(kind), make_case(Tower).draw(count))


class Twice(nn.Module):
    """Encodes the same tensor twice, with other dropout (R-Drop); `together` computes both again at once."""

    def __init__(self, together=False):
        super().__init__()
        self.tower, self.together = Tower(dropout=0.5), together

    def both(self, images):
        return torch.cat([self.tower(images), 2 * self.tower(images)], dim=1)

    def forward(self, images):
        return (
            checkpoint(self.both, images, use_reentrant=False)
            if self.together
            else self.both(images)
        )


@pytest.mark.parametrize("kind", RECOMPUTED)
def test_recomputation_of_one_tensor_that_is_encoded_twice(kind):
    """Where both are computed again together it is refused, as is an earlier forward of the same tensor."""
    plain, recomputing = pair(Twice, "distinctness", shared=False)
    images = make_case(Tower).draw(4)
    agree(Twice.__call__, plain, recomputing(kind), images)
    together, _ = pair(partial(Twice, together=True), "distinctness", shared=False)
    with pytest.raises(UserError, match=r"encodes the same tensor twice; .* by itself\.$"):
        step(Twice.__call__, together, images)
    _, recomputing = pair(partial(Tower, dropout=0.5), "distinctness")
    model, image = recomputing(kind), images.requires_grad_()
    with pytest.raises(UserError, match="call backward after each forward"):
        (model(image) + 2 * model(image)).sum().backward()


@pytest.mark.parametrize("way", WAYS[:2])
def test_recomputation_of_a_function_that_encodes_several_images(way):
    """In one region, whose blocks go from one image to the next."""
    plain, _ = pair(partial(Host, way), "distinctness")
    call = lambda model, images: checkpoint(call_host, model, images, use_reentrant=False)  # noqa: E731
    (outputs, actual), (expected, gradients) = (
        step(each, plain, host_case().draw(6)) for each in (call, call_host)
    )
    assert torch.equal(outputs[0], expected[0])
    assert_gradients_equal(actual, gradients, BACK)


def test_what_backward_does_not_need_is_not_kept():
    """The tokens of the grid, without checkpointing; images that a score may read go too."""
    plain, recomputing = pair(Tower, "saliency", restore=True)
    for model, is_kept in ((plain, False), (recomputing("blocks"), True)):
        images, states = make_case(Tower).draw(4), []
        handle = model.slimming.register_forward_hook(
            lambda module, args, step, states=states: states.append(weakref.ref(args[2]))
        )
        output = model(images)
        assert [state() is not None for state in states] == [is_kept, is_kept]
        handle.remove()
        output.sum().backward()


def test_recomputation_of_an_earlier_forward_is_refused():
    """Without recomputation several forwards before a backward work."""
    plain, recomputing = pair(Tower, "saliency")
    images = make_case(Tower).draw(4)
    outputs, gradients = step(Tower.__call__, plain, images, 2)
    alone, expected = step(Tower.__call__, plain, images[:2])
    assert torch.equal(outputs[0], alone[0])
    assert torch.equal(gradients["images.0"], expected["images.0"])
    for kind in RECOMPUTED:
        with pytest.raises(UserError, match="call backward after each forward"):
            step(Tower.__call__, recomputing(kind), images, 2)


@pytest.mark.parametrize("name", ["timm, rotary by block", "ViT", "open_clip"])
def test_recomputation_by_the_libraries(name):
    case = CASES[name]
    _, plain, _ = slim_both(case, *STAGES)
    model = copy.deepcopy(plain.train())
    if name == "ViT":
        enable = (
            getattr(model, "activation_checkpointing_enable", None)
            or model.gradient_checkpointing_enable
        )
        enable({"use_reentrant": False})
    else:
        model.set_grad_checkpointing(True)
    agree(case.call, plain, model, case.draw(4))


@pytest.mark.parametrize("kind", RECOMPUTED)
def test_reentrant_checkpointing_is_refused(kind):
    """By the backward pass, as the forward is that of evaluation; `unslim` works after it."""
    _, recomputing = pair(Tower, "saliency", (0, 2))
    model, images = recomputing(kind, reentrant=True), make_case(Tower).draw().requires_grad_()
    output = model(images).sum()
    with pytest.raises(
        UserError,
        match=r"^A slimmed model is computed again by reentrant .* with use_reentrant=False\.$",
    ):
        output.backward()
    demo_sdtps.unslim(model)(images).sum().backward()


# Precision, compiler, processes


@pytest.mark.parametrize(
    ("name", "score"), [("timm, rotary", "saliency"), ("open_clip", "supervised")]
)
def test_half_precision_runs_and_is_near(name, score):
    _, model, _ = slim_both(CASES[name], (1,), (0.6,), score)
    model, images = model.float().train(), CASES[name].draw().float()
    with torch.autocast("cpu", torch.bfloat16):
        output = CASES[name].call(model, images)
    output.float().square().sum().backward()
    assert output.isfinite().all()
    assert all(
        parameter.grad is None or parameter.grad.isfinite().all()
        for parameter in model.parameters()
    )
    if score == "saliency":  # keeps the same patches in any precision
        lengths = (3 * 16 * 16, *DEPTH * sums_of_a_block(WIDTH, HEADS, 24), WIDTH, WIDTH, WIDTH)
        assert_close(output, CASES[name].call(model, images), *lengths, dtype=torch.bfloat16)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "score", "settings", "backend"),
    [
        ("timm", "self_supervised", {}, "eager"),
        *(
            pytest.param(*case, "aot_eager", marks=pytest.mark.soak)
            for case in [
                ("timm", "self_supervised", {}),
                ("timm, rotary", "saliency", {}),
                ("timm", "distinctness", {"restore": True}),
                ("open_clip", "saliency", {}),
                ("torchvision", "saliency", {}),
                ("CLIP", "saliency", {}),  # transformers'
                ("DINOv3", "saliency", {}),  # of random rotary positions in training
            ]
        ),
        pytest.param("timm", "saliency", {}, "inductor", marks=[pytest.mark.soak, HAS_COMPILER]),
    ],
)
def test_a_compiled_model_is_one_graph_and_computes_the_same(name, score, settings, backend):
    """In evaluation and in training, and again with another batch."""
    case = CASES[name]
    _, model, _ = slim_both(case, *STAGES, score, **settings)
    plain = copy.deepcopy(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for batch in (2, 3):
        images = case.draw(batch)
        with torch.no_grad():
            output = case.call(compiled.eval(), images)
            assert_close(output, case.call(plain.eval(), images), *PATH)
        call = lambda _, images: case.call(compiled, images)  # noqa: E731
        actual, ours = step(call, model.train(), images)
        expected, theirs = step(case.call, plain.train(), images)
        assert_close(actual[0], expected[0], *PATH)
        assert_gradients_equal(ours, theirs, BACK)
        if score == "self_supervised":
            case.call(compiled, images)
            losses = [demo_sdtps.slim_loss(each) for each in (compiled, plain)]
            assert_close(*losses, *PATH)


@pytest.mark.slow
@pytest.mark.soak
def test_two_processes_train_like_one(tmp_path):
    """By DistributedDataParallel, each with its half of the images."""
    done = run_two("tests/helpers/two_slim_processes.py", tmp_path)
    assert done.returncode == 0, done.stderr
    alone = two_slim_processes.train(rank=0, world=1)
    for rank in (0, 1):
        shared = torch.load(tmp_path / f"{rank}.pth")
        assert shared.keys() == alone.keys()
        for name, value in alone.items():
            assert_close(shared[name], value, *2 * two_slim_processes.STEPS * BACK)
