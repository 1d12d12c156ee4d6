"""Training of models that demo_sdtps.slim slimmed: checkpointing, the loss of a score, half precision, compiler, processes."""

import copy
import shutil
from functools import partial

import pytest
import torch
import torch.distributed as dist
from learned import Learned
from numeric import assert_close
from processes import results_of_two
from sdtps_cases import assert_gradients_equal
from slim_models import (
    BACK,
    CASES,
    DEPTH,
    HEADS,
    PATH,
    WAYS,
    WIDTH,
    Host,
    Tower,
    agree,
    call_host,
    host_case,
    make_case,
    slim_both,
    step,
)
from tiny import sums_of_a_block
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import demo_sdtps
from demo_sdtps.config import UserError

STAGES = (1, 2), (0.6, 0.5)
RECOMPUTED = "blocks", "segments", "whole"
HAS_COMPILER = pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")


def pair(build, score="saliency", **settings):
    """A slimmed model, and `recomputing(recompute, reentrant)`, which makes copies of it that compute again."""
    plain = make_case(build).model()
    path = "tower.blocks" if hasattr(plain, "tower") else "blocks"
    score = score(WIDTH) if isinstance(score, type) else score
    demo_sdtps.slim(plain.train(), *STAGES, score, blocks_at=path, **settings)

    def recomputing(recompute, reentrant=False):
        model = copy.deepcopy(plain)
        tower = getattr(model, "tower", model)
        tower.recompute, tower.reentrant = recompute, reentrant
        return model

    return plain, recomputing


# Checkpointing


EACH_WAY = pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
EACH_KIND = pytest.mark.parametrize("kind", [*RECOMPUTED, "stem"])


@EACH_WAY
@EACH_KIND
@pytest.mark.parametrize("score", ["saliency", Learned])
def test_recomputation_gives_the_same_gradients(score, kind, reentrant):
    """Of what is computed again, with numbers drawn in blocks, and several forwards before the backward pass."""
    plain, recomputing = pair(partial(Tower, dropout=0.2), score)
    for forwards in (1, 2):
        images = make_case(Tower).draw(4)
        agree(Tower.__call__, plain, recomputing(kind, reentrant), images, forwards)


@EACH_WAY
@EACH_KIND
@pytest.mark.parametrize("way", WAYS)
def test_recomputation_of_several_images_of_a_forward(kind, way, reentrant):
    """Which keep one set; also where the loss is of some of them."""
    plain, recomputing = pair(partial(Host, way))

    def call(model, images):
        return call_host(model, images)[:, 17:34]

    for each in (call_host, call):
        agree(each, plain, recomputing(kind, reentrant), host_case().draw(6), 2)


class Twice(nn.Module):
    """Encodes the same tensor twice, with other dropout (R-Drop), beside a call without gradient."""

    def __init__(self):
        super().__init__()
        self.tower = Tower(dropout=0.5)

    def forward(self, images):
        with torch.no_grad():
            target = self.tower(images.flip(0))
        return torch.cat([self.tower(images), 2 * self.tower(images) - target], dim=1)


@pytest.mark.parametrize("kind", RECOMPUTED)
def test_recomputation_of_one_tensor_that_is_encoded_twice(kind):
    plain, recomputing = pair(Twice, shared=False)
    agree(Twice.__call__, plain, recomputing(kind), make_case(Tower).draw(4))


def test_tokens_that_checkpointing_knows_are_tensors_for_everybody_else(tmp_path):
    """They are saved as such."""
    model, inputs = demo_sdtps.slim(Tower(), (1,), (0.5,), blocks_at="blocks"), []
    model.blocks[1].register_forward_hook(lambda block, args, output: inputs.append(args[0]))
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    torch.save(inputs[0].detach(), tmp_path / "tokens.pth")
    tokens = torch.load(tmp_path / "tokens.pth")
    assert type(tokens) is torch.Tensor and tokens.equal(inputs[0])
    assert type(inputs[0] + 1) is torch.Tensor


# The loss of a score


@pytest.mark.parametrize("way", ["image by image", "stacked"])
def test_the_loss_is_the_mean_over_images_and_stages(way):
    _, model, _ = slim_both(host_case(way, shared=False), *STAGES, Learned)
    call_host(model.train(), host_case().draw(6, seed=1))
    losses = []  # of the next forward alone
    model.slimming.register_forward_hook(lambda module, args, step: losses.append(step.loss))
    call_host(model, host_case().draw(6))
    loss = demo_sdtps.slim_loss(model)
    assert len(losses) == (2 if way == "stacked" else 6)
    assert_close(loss, sum(losses) / len(losses), len(losses))
    reached = torch.autograd.grad(loss, [*model.slimming.parameters(), model.tower.stem.weight])
    assert all(gradient.abs().max() > 0 for gradient in reached)


def test_a_forward_without_a_loss_is_told():
    """In evaluation, the mode in which the model is slimmed, by a score that does not learn, and without a gradient, which
    reentrant checkpointing computes later."""
    (dense, model, _), images = slim_both(host_case(), *STAGES, Learned), host_case().draw(6)
    call_host(model, images)
    with pytest.raises(UserError, match="no loss of a score"):
        demo_sdtps.slim_loss(model)
    demo_sdtps.slim(dense.train(), *STAGES, Learned(WIDTH).eval(), blocks_at="tower.blocks")
    call_host(dense, images)
    assert demo_sdtps.slim_loss(dense).requires_grad
    _, other, _ = slim_both(host_case(), *STAGES)
    call_host(other.train(), images)
    with pytest.raises(UserError, match="no loss of a score"):
        demo_sdtps.slim_loss(other)
    with torch.no_grad():
        call_host(model.train(), images)
        assert demo_sdtps.slim_loss(model).isfinite()
    with pytest.raises(UserError, match="use_reentrant=False"):
        demo_sdtps.slim_loss(model)


# Precision, compiler, processes


@pytest.mark.parametrize(("name", "score"), [("timm, rotary", "saliency"), ("open_clip", Learned)])
def test_half_precision_runs_and_is_near(name, score):
    _, model, _ = slim_both(CASES[name], (1,), (0.6,), score)
    model, images = model.float().train(), CASES[name].draw().float()
    with torch.autocast("cpu", torch.bfloat16):
        output = CASES[name].call(model, images)
    output.float().square().sum().backward()
    assert output.isfinite().all()
    gradients = (weight.grad for weight in model.parameters() if weight.grad is not None)
    assert all(gradient.isfinite().all() for gradient in gradients)
    if score == "saliency":  # keeps the same patches in any precision
        lengths = (3 * 16 * 16, *DEPTH * sums_of_a_block(WIDTH, HEADS, 24), WIDTH, WIDTH, WIDTH)
        assert_close(output, CASES[name].call(model, images), *lengths, dtype=torch.bfloat16)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "score", "backend"),
    [
        ("timm", Learned, "eager"),
        *(
            pytest.param(*case, "aot_eager", marks=pytest.mark.soak)
            for case in [
                ("timm", Learned),
                ("timm, rotary", "saliency"),
                ("open_clip", "saliency"),
                ("torchvision", "saliency"),
                ("CLIP", "saliency"),  # transformers'
                ("DINOv3", "saliency"),  # of random rotary positions in training
            ]
        ),
        pytest.param("timm", "saliency", "inductor", marks=[pytest.mark.soak, HAS_COMPILER]),
    ],
)
def test_a_compiled_model_is_one_graph_and_computes_the_same(name, score, backend):
    """In evaluation and training, with another batch, after the dense model; `unslim` and compile gives the dense output."""
    case = CASES[name]
    dense, model, _ = slim_both(case, *STAGES, score)
    plain, images = copy.deepcopy(model), case.draw()
    torch._dynamo.reset()
    compiled_dense = torch.compile(dense, backend=backend, fullgraph=True)
    with torch.no_grad():
        whole = case.call(compiled_dense.eval(), images)
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
        if score is Learned:
            case.call(compiled, images)
            losses = [demo_sdtps.slim_loss(each) for each in (compiled, plain)]
            assert_close(*losses, *PATH)
    again = torch.compile(demo_sdtps.unslim(model).eval(), backend=backend, fullgraph=True)
    with torch.no_grad():
        assert_close(case.call(again, case.draw()), whole, *PATH)


DDP_STEPS = 3


def train_share():
    """The weights after some steps, each process with its part of the images."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    case = CASES["timm"]
    model = demo_sdtps.slim(case.model(), *STAGES, Learned(WIDTH)).train()
    network = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(DDP_STEPS):
        output = network(case.draw(4, number).chunk(world)[rank])
        optimizer.zero_grad()
        (output.square().mean() + demo_sdtps.slim_loss(model)).backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.slow
@pytest.mark.soak
def test_two_processes_train_like_one(tmp_path):
    """By DistributedDataParallel, each with its half of the images."""
    alone = train_share()
    for shared in results_of_two(tmp_path, __file__, "train_share"):
        assert shared.keys() == alone.keys()
        for name, value in alone.items():
            assert_close(shared[name], value, *2 * DDP_STEPS * BACK)
