"""Tiny Vision Transformers of every library with random weights, and a host of three images, for the tests of slimming."""

import copy
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from numeric import assert_close, generator, random_sum, shift_seed, tolerance
from sdtps_cases import assert_gradients_equal
from tiny import DINOV3, EVA02, MIXED, REGISTERS, disturb, equal, sums_of_a_block
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import demo_sdtps
from tests.reference import patch_scores
from tests.reference import slim as reference
from tests.reference.demo import ClipBackbone

WIDTH, HEADS, DEPTH, GRID = 32, 2, 3, (4, 2)
SMALL = {"embed_dim": WIDTH, "num_heads": HEADS, "depth": DEPTH, "num_classes": 5}
WORDS = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 49]])
BLOCKS = DEPTH * sums_of_a_block(WIDTH, HEADS, 24)
PATH = (3 * 16 * 16, 3, 16, WIDTH, 16, 16, *BLOCKS, WIDTH, WIDTH, WIDTH)
"""Lengths of the sums (tests/helpers/numeric.py) from scores and means of dropped patches, which are float32, to outputs."""
BACK = (*PATH, *PATH)


def timm_model(name, **changes):
    import timm

    side = 14 if "patch14" in name else 16
    return timm.create_model(name, img_size=(side * GRID[0], side * GRID[1]), **SMALL | changes)


def open_clip_model():
    from open_clip.model import CLIP

    sizes = {"layers": DEPTH, "width": WIDTH, "head_width": WIDTH // HEADS}
    text = {"width": 32, "heads": 2, "layers": 2, "vocab_size": 50, "context_length": 8}
    return CLIP(WIDTH, sizes | {"patch_size": 16, "image_size": (64, 32)}, text)


def torchvision_model():
    from torchvision.models import VisionTransformer

    return VisionTransformer(64, 16, DEPTH, HEADS, WIDTH, 64, num_classes=5)


def transformers_model(name, head="", **changes):
    import transformers

    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "intermediate_size": 64,
    }
    vision = sizes | {"image_size": 64, "patch_size": 16} | changes
    if name == "CLIPModel":
        text = sizes | {"vocab_size": 50, "max_position_embeddings": 8, "eos_token_id": 49}
        return transformers.CLIPModel(
            transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH)
        )
    return getattr(transformers, head or name)(
        getattr(transformers, name.replace("Model", "Config"))(**vision)
    )


def openai_clip():
    """The reference model's, whose blocks see (tokens, batch, width)."""
    return ClipBackbone((64, 32), WIDTH, WIDTH, DEPTH, HEADS)


class Case(NamedTuple):
    """A model, and what slimming has to find out of it."""

    build: Callable[[], nn.Module]
    blocks: str
    prefix: int = 1
    tokens_first: bool = False
    patch: int = 16
    grid: tuple[int, int] = GRID
    call: Callable[..., Any] = lambda model, images: model(images)
    settings: dict = {}  # noqa: RUF012 (never changed)

    def model(self):
        torch.manual_seed(shift_seed())
        return disturb(self.build()).double().eval().requires_grad_()

    def draw(self, batch=2, seed=0):
        size = (self.patch * side for side in self.grid)
        return torch.randn(batch, 3, *size, generator=generator(seed), dtype=torch.double)


class Called(nn.Module):
    """A model as its case calls it."""

    def __init__(self, case, model):
        super().__init__()
        self.call, self.model = case.call, model

    def forward(self, images):
        return self.call(self.model, images)


def encode_tokens(model, images):
    output = model(images)
    return torch.cat([output.last_hidden_state, output.pooler_output[:, None]], dim=1)


SQUARE = (4, 4)


def of_transformers(name, blocks, prefix=1, call=encode_tokens, **changes):
    return Case(
        partial(transformers_model, name, **changes), blocks, prefix, grid=SQUARE, call=call
    )


CASES = {
    "timm": Case(partial(timm_model, "test_vit"), "blocks"),
    "timm, registers": Case(partial(timm_model, REGISTERS), "blocks", 5, patch=14),
    "timm, rotary": Case(partial(timm_model, EVA02), "blocks", patch=14),
    "timm, rotary by block": Case(partial(timm_model, MIXED), "blocks"),
    "timm, DINOv3": Case(partial(timm_model, DINOV3), "blocks", 5),
    "OpenAI's CLIP": Case(openai_clip, "transformer.resblocks", tokens_first=True),
    "open_clip": Case(
        open_clip_model,
        "visual.transformer.resblocks",
        call=lambda model, images: torch.cat(model(images, WORDS)[:2]),
    ),
    "torchvision": Case(torchvision_model, "encoder.layers", grid=SQUARE),
    "ViT": of_transformers("ViTModel", "layers"),
    "CLIP's vision": of_transformers("CLIPVisionModel", "encoder.layers"),
    "CLIP": of_transformers(
        "CLIPModel",
        "vision_model.encoder.layers",
        call=lambda model, images: model(WORDS, images).logits_per_image,
    ),
    "DINOv2": of_transformers("Dinov2Model", "encoder.layer"),
    "DINOv2, registers": of_transformers("Dinov2WithRegistersModel", "encoder.layer", 5),
    "DeiT": of_transformers("DeiTModel", "layers", 2),
    "SigLIP": of_transformers("SiglipVisionModel", "encoder.layers", 0),
    "DINOv3": of_transformers("DINOv3ViTModel", "model.layer", 5, num_register_tokens=4),
}


def slim_both(case, blocks, keep, score="saliency", **settings):
    """A dense model, and a copy that is slimmed; → (dense, slimmed, steps by stage as `record` gives them)."""
    dense = case.model()
    model = demo_sdtps.slim(copy.deepcopy(dense), blocks, keep, score, **case.settings | settings)
    disturb(model.slimming)
    return dense, model, record(model)


class Kept(NamedTuple):
    """What a stage scored and kept."""

    scored: torch.Tensor  # (B, n) indices on the grid
    score: torch.Tensor
    kept: torch.Tensor  # (B, K) indices on the grid


def record(model):
    """What the stages of the forwards to come score and keep, by the number of the stage, in the order of the calls."""
    steps = defaultdict(list)

    def note(module, args, step):
        number, values, state = args[:3]
        kept = step.state.places(step.values)
        steps[number].append(Kept(state.places(values), step.score, kept))

    model.slimming.register_forward_hook(note)
    return steps


def saliency(voters, case):
    """Slow score of `reference.run`: the sum over those images of a forward, `voters(call)`, that keep one set."""
    size = (case.patch, case.patch)

    def score(call, row, index, layer, images):
        rows = [each[row % len(each)].detach() for each in voters(call)]
        scores = [patch_scores.saliency(each, case.grid, size, size) for each in rows]
        return [float(sum(values[place] for values in scores)) for place in images[row].patches]

    return score


def by_saliency(case):
    """Each image by itself, for `compare`."""
    return lambda model, images: saliency(lambda call: [images], case)


def learned(slimming, names=("image",)):
    """Slow score by the weights of a slimmed model, which encodes as many rows of each modality."""

    def score(call, row, index, layer, images):
        heads = slimming.scores[slimming.blocks.index(index)].heads
        head = heads[names[row * len(names) // len(images)]]
        return [head(patch).squeeze() for patch in images[row].patches.values()]

    return score


def nudge(kept, scores, place):
    """What `reference.run` adds to a score, so that of scores that are equal but for roundings it takes those `kept`."""
    return tolerance(*PATH) * float(scores.detach().abs().max()) * (place in kept)


def slow(case, dense, images, steps, blocks, keep, score, merge=True, **settings):
    """The output of the slow version."""

    def bump(call, row, index, place):
        stage = steps[blocks.index(index)][call]
        return nudge(stage.kept[row], stage.score[row], place)

    stages = {index: (share, score) for index, share in zip(blocks, keep, strict=True)}
    forward, first = partial(case.call, images=images), case.tokens_first
    return reference.run(dense, case.blocks, forward, stages, case.prefix, first, merge, bump)


def compare(case, score, blocks, keep, slow_score, images=None, **settings):
    """Values and gradients of `slim` and the slow version, by `slow_score(model)`; → whether a gradient reaches the score."""
    settings = case.settings | settings
    dense, model, steps = slim_both(case, blocks, keep, score, **settings)
    images = (case.draw() if images is None else images).requires_grad_()
    actual = case.call(model, images)
    expected = slow(case, dense, images, steps, blocks, keep, slow_score(model, images), **settings)
    assert_close(actual, expected, *PATH)
    added = {f"slimming.{name}": parameter for name, parameter in model.slimming.named_parameters()}
    more = added | {"images": images}
    ours = probe_gradients(actual, dict(model.named_parameters()) | more)
    assert_gradients_equal(
        ours, probe_gradients(expected, dict(dense.named_parameters()) | more), (*PATH, *PATH)
    )
    return any(ours[name] is not None and ours[name].abs().max() > 0 for name in added)


def probe_gradients(output, named):
    """By name, of a random sum of an output."""
    total = random_sum(7, [output])
    gradients = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return dict(zip(named, gradients, strict=True))


def step(call, model, images, forwards=1):
    """Gradients of the model and of images after as many forwards, whose losses are added; → (outputs, gradients)."""
    model.zero_grad()
    torch.manual_seed(shift_seed(3))
    images = [image.clone().requires_grad_() for image in images.chunk(forwards)]
    outputs = [call(model, image) for image in images]
    random_sum(5, outputs).backward()
    named = {name: parameter.grad for name, parameter in model.named_parameters()}
    return outputs, named | {f"images.{number}": image.grad for number, image in enumerate(images)}


def agree(call, plain, recomputing, images, forwards=1):
    (outputs, actual), (expected, gradients) = (
        step(call, model, images, forwards) for model in (recomputing, plain)
    )
    assert equal(outputs, expected)
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients.values())
    assert_gradients_equal(actual, gradients, BACK)


NAMES = ("RGB", "NI", "TI")
SIDE, ROWS, COLUMNS = 8, 4, 4
WAYS = ("image by image", "block by block", "half by half", "stacked")


class Block(nn.Module):
    """Takes a share of every patch in attention, (B, rows, columns), and a mask between all tokens."""

    def __init__(self, is_tuple=False, dropout=0.0):
        super().__init__()
        self.norm, self.is_tuple, self.dropout = nn.LayerNorm(WIDTH), is_tuple, nn.Dropout(dropout)
        self.attn, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, use_mask=None, attn_mask=None):
        if use_mask is not None:
            share = use_mask.flatten(1)
            share = F.pad(share, (x.shape[1] - share.shape[1], 0), value=1.0)
            attn_mask = share.log()[:, None, None]
        heads = self.attn(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        rows = F.scaled_dot_product_attention(*heads, attn_mask).transpose(1, 2).flatten(2)
        x = x + self.out(rows)
        x = x + self.dropout(torch.tanh(self.mlp(x)))
        return (x, "more") if self.is_tuple else x


class Tower(nn.Module):
    """A code base's own Vision Transformer. `recompute`: none, or checkpointing of the stem, blocks, segments or the whole."""

    def __init__(self, is_tuple=False, recompute="", dropout=0.0):
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, SIDE, SIDE)
        self.class_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.position = nn.Parameter(torch.randn(1, ROWS * COLUMNS, WIDTH))
        self.blocks = nn.ModuleList(Block(is_tuple, dropout) for _ in range(DEPTH))
        self.recompute, self.reentrant = recompute, False

    def checkpoint(self, function, *inputs):
        return checkpoint(function, *inputs, use_reentrant=self.reentrant)

    def embed(self, images):
        patches = self.stem(images).flatten(2).transpose(1, 2) + self.position
        return torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1)

    def step(self, index, x, **masks):
        output = self.blocks[index](x, **masks)
        return output[0] if self.blocks[index].is_tuple else output

    def encode(self, images, **masks):
        is_apart = self.recompute == "stem"
        x = self.checkpoint(self.embed, images) if is_apart else self.embed(images)
        if self.recompute == "segments":
            return checkpoint_sequential(list(self.blocks), 2, x, use_reentrant=self.reentrant)
        return self.steps(range(DEPTH), x, **masks)

    def steps(self, indices, x, **masks):
        step = partial(self.checkpoint, self.step) if self.recompute == "blocks" else self.step
        for index in indices:
            x = step(index, x, **masks)
        return x

    def forward(self, images, **masks):
        if self.recompute == "whole":
            return self.checkpoint(self.encode, images)
        return self.encode(images, **masks)


class Ensemble(nn.ModuleDict):
    def forward(self, images):
        return torch.stack([model(images) for model in self.values()])


class Host(nn.Module):
    """{name: images (B, 3, H, W)} → tokens (B, L, C) of the three images, one after the other, and a head's product."""

    def __init__(self, way="image by image", **settings):
        super().__init__()
        self.way, self.tower, self.head = way, Tower(**settings), nn.Linear(WIDTH, WIDTH)

    def forward(self, images):
        images = list(images.values())
        if self.way == "image by image":
            outputs = [self.tower(image) for image in images]
        elif self.way != "stacked":
            half = 2 if self.way == "half by half" else 0
            outputs = [self.tower.steps(range(half), self.tower.embed(image)) for image in images]
            for index in range(half, DEPTH):
                outputs = [self.tower.step(index, x) for x in outputs]
        else:
            outputs = self.tower(torch.cat(images)).chunk(len(images))
        return self.head(torch.cat(outputs, dim=1))


def make_case(build, call=lambda model, images: model(images), **settings):
    """`settings` are those of slim."""
    path = "blocks" if getattr(build, "func", build) is Tower else "tower.blocks"
    return Case(build, path, patch=SIDE, grid=(ROWS, COLUMNS), call=call, settings=settings)


def host_case(way="image by image", shared=True, **settings):
    build = partial(Host, way, **settings)
    return make_case(build, call_host, blocks_at="tower.blocks", shared=shared)


def call_host(model, images):
    """Images (3B, 3, H, W), of one modality after the other."""
    return model(dict(zip(NAMES, images.chunk(3), strict=True)))
