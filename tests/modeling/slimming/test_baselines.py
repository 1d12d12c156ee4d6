"""The baselines of studies/baselines.py against slow versions of them, alone and in the model."""

from dataclasses import replace
from itertools import count as numbers

import pytest
import torch
from numeric import assert_close, generator, tolerance
from tiny import pairs, random_images, tiny_cfg, tiny_model

from demo_sdtps.config import MODALITIES
from demo_sdtps.evaluation.missing import encode_cases
from demo_sdtps.modeling.sdtps import gather_tokens, select
from demo_sdtps.modeling.slimming.scores import make_score
from demo_sdtps.modeling.slimming.scores.base import Context
from demo_sdtps.modeling.slimming.tokens import Tokens
from studies.baselines import haar_energy
from tests.reference import patch_scores as reference_scores
from tests.reference import slim_scores as reference

WIDTH, GRID, HEADS, PATCHES, ROWS = 7, (5, 3), 3, 15, 9
SUMS = (HEADS, PATCHES, PATCHES, 3)
"""Lengths of the sums in means of patches: attention, weights, patches, products of the weights."""
PLACE = "studies.baselines:"
SLIM = ("MODEL.SLIM_BLOCKS", "[1,3]", "MODEL.SLIM_KEEP", "[0.75,0.5]", "MODEL.SLIM_SHARED", "False")
LEFT = (32, 24, 12)
"""Patches of the tiny model at its input, and after each stage."""


def by_modality(rows):
    return dict(zip(MODALITIES, rows.chunk(len(MODALITIES)), strict=True))


def draw(seed, has_sizes):
    """Tokens with a class token before the patches, and the context of their scores, for ROWS images of three modalities."""
    draws = generator(seed)
    values = torch.randn(ROWS, 1 + PATCHES, WIDTH, generator=draws)
    attention = torch.randn(ROWS, HEADS, PATCHES, generator=draws).softmax(dim=-1)
    keys = torch.randn(ROWS, PATCHES, WIDTH, generator=draws)
    most = 5 if has_sizes else 2
    sizes = torch.randint(1, most, (ROWS, 1 + PATCHES), generator=draws).float()
    tokens = Tokens(values.requires_grad_(), sizes=sizes if has_sizes else None)
    context = Context(
        by_modality(values[:, 1:]),
        by_modality(values[:, 0]),
        GRID,
        attention=by_modality(attention),
        keys=by_modality(keys),
        sizes=by_modality(sizes[:, 1:]),
    )
    return tokens, context


def join(parts):
    return torch.cat(list(parts.values())).detach().double()


def exactly(context):
    """Keys, attention and sizes of all rows in float64."""
    attention = torch.stack(
        [torch.stack(reference_scores.mean_attention(row)) for row in join(context.attention)]
    )
    return join(context.keys), attention, join(context.sizes)


def are_apart(values, *lengths):
    """Whether values (…, n) are so far from each other that roundings decide nothing."""
    return float(values.sort(dim=-1).values.diff(dim=-1).min()) > 2 * tolerance(*lengths) * float(
        values.abs().max()
    )


def cosines(tokens):
    """Of each patch with each of the others, (B, n, n - 1)."""
    unit = torch.nn.functional.normalize(tokens, dim=-1)
    others = ~torch.eye(PATCHES, dtype=torch.bool)
    return (unit @ unit.mT)[:, others].unflatten(1, (PATCHES, PATCHES - 1))


def clear(has_sizes):
    """The first draw in which ToMe decides nothing by roundings."""
    for seed in numbers(1):
        tokens, context = draw(seed, has_sizes)
        if are_apart(cosines(exactly(context)[0]), WIDTH, WIDTH):
            return tokens, context


def merge(name, tokens, context, count):
    """What a baseline makes of the patches when it keeps `count`, and the places of these."""
    score = make_score(PLACE + name, tiny_cfg(), WIDTH, GRID)
    scores = torch.cat(list(score(context).values()))
    kept, decision = select(scores, count)
    kept = kept.sort(dim=1).values
    rows = [tokens.values[:, :1], gather_tokens(tokens.values, 1 + kept)]
    slimmed = Tokens(torch.cat(rows, dim=1), kept)
    return score.merge(tokens, slimmed, scores, decision, context), kept


@pytest.mark.parametrize(
    "has_sizes", [False, True], ids=["first stage", "patches that stand for several"]
)
@pytest.mark.parametrize("count", [8, 11])
def test_merging_against_its_description(count, has_sizes):
    """What is kept, the means, sizes and gradients, in float32 also under autocast."""
    tokens, context = clear(has_sizes)
    with torch.autocast("cpu", torch.bfloat16):
        merged, kept = merge("ToMe", tokens, context, count)
    keys, _, sizes = exactly(context)
    values, expected = tokens.values.detach().double().requires_grad_(), []
    for row in range(ROWS):
        groups = reference.tome(keys[row], count)
        expected.append(
            torch.cat([values[row, :1], reference.means(values[row, 1:], sizes[row], groups)])
        )
        assert kept[row].tolist() == sorted(group[0] for group in groups)
        assert merged.sizes[row].tolist() == [1, *reference.totals(sizes[row], groups)]
    assert torch.equal(merged.positions, kept) and merged.extra == 0
    assert_close(merged.values, torch.stack(expected), *SUMS)
    probe = torch.randn(merged.values.shape, generator=generator(2))
    (merged.values * probe).sum().backward()
    (torch.stack(expected) * probe).sum().backward()
    assert_close(tokens.values.grad, values.grad, *SUMS)


def test_evit_scores_by_the_mean_over_the_heads():
    _, context = draw(3, has_sizes=False)
    score = make_score(PLACE + "EViT", tiny_cfg(), WIDTH, GRID)
    _, attention, _ = exactly(context)
    assert_close(torch.cat(list(score(context).values())), attention, HEADS)


def test_evit_sums_what_it_drops():
    """Weighted by their attention, value and gradient."""
    tokens, context = draw(4, has_sizes=False)
    merged, kept = merge("EViT", tokens, context, 8)
    extra = merged.values[:, -1]
    values, (_, attention, _) = tokens.values.detach().double().requires_grad_(), exactly(context)
    expected = torch.stack(
        [
            sum(
                attention[row, patch] * values[row, 1 + patch]
                for patch in range(PATCHES)
                if patch not in kept[row].tolist()
            )
            for row in range(ROWS)
        ]
    )
    assert_close(extra, expected, HEADS, PATCHES)
    actual, slow = (
        torch.autograd.grad(output.square().sum(), inputs)[0]
        for output, inputs in ((extra, tokens.values), (expected, values))
    )
    assert_close(actual, slow, HEADS, PATCHES, PATCHES)


def with_inputs(*opts):
    """A model, and the tokens that its backbone's blocks are run on."""
    model, inputs = tiny_model(*opts), []
    run = model.backbone.run_blocks
    model.backbone.run_blocks = lambda tokens, *span: inputs.append(tokens) or run(tokens, *span)
    return model, inputs


@pytest.mark.parametrize("name", ["EViT", "ToMe", "Editor"])
def test_a_baseline_in_the_model(name):
    """Numbers of tokens and sizes at each stage, in training; gradients reach the patches."""
    model, inputs = with_inputs(*SLIM, "MODEL.SLIM_SCORE", PLACE + name)
    outputs = model.train()(*random_images(4))
    sum(output.square().sum() for output in pairs(outputs)).backward()
    gradient = model.backbone.vit.patch_embed.proj.weight.grad
    assert gradient.isfinite().all() and gradient.norm() > 0
    prefix = model.backbone.vit.num_prefix_tokens
    for number, (tokens, left) in enumerate(zip(inputs, LEFT, strict=True)):
        extra = 0 if name == "ToMe" else number
        assert tokens.values.shape[1] == prefix + left + extra and tokens.extra == extra
        if number == 0 or name != "ToMe":
            assert tokens.sizes is None
            continue
        assert tokens.sizes[:, :prefix].eq(1).all() and tokens.sizes[:, prefix:].min() >= 1
        assert tokens.sizes[:, prefix:].sum(dim=1).eq(32).all()


@pytest.mark.parametrize("size", [(8, 6), (7, 5)], ids=str)
def test_energy_of_the_wavelet(size):
    """The last pixels of odd sides are repeated."""
    images = torch.randn(2, 3, *size, generator=generator(16))
    even = images[..., [min(row, size[0] - 1) for row in range(8)], :][
        ..., [min(column, size[1] - 1) for column in range(6)]
    ]
    expected = torch.stack(
        [sum(reference.haar_energy(channel) for channel in image.double()) for image in even]
    )
    assert_close(haar_energy(images), expected[:, None, : size[0], : size[1]], 4, 9)
    assert haar_energy(torch.full((1, 3, 4, 4), 7.0)).eq(0).all()


@pytest.mark.parametrize(
    "missing",
    [frozenset(), frozenset({"RGB", "TI"})],
    ids=["nothing missing", "RGB and TI missing"],
)
def test_editor_keeps_the_union_of_both_tops(missing):
    """Of overlapping patches, at every stage, by each modality's own attention and the present images' energy.

    Pixels are small whole numbers and attention weights multiples of 2^-16, so that their sums are exact.
    """
    model = tiny_model(
        *SLIM, "MODEL.SLIM_SCORE", "studies.baselines:Editor", "MODEL.STRIDE_SIZE", "[6,5]"
    ).eval()
    contexts = []

    def exact(context):
        return replace(
            context,
            attention={
                name: (2**16 * weights).round() / 2**16
                for name, weights in context.attention.items()
            },
        )

    for score in model.slimming.scores:
        score.scores = lambda context, scores=score.scores: (
            contexts.append(exact(context)) or scores(contexts[-1])
        )
    images, cameras = random_images(17, batch=2)
    images = {name: (4 * image).round() for name, image in images.items()}
    with torch.no_grad():
        stages = encode_cases(model, images, cameras, [missing])[0].stages
    for sample in range(2):
        energy = sum(
            reference.haar_energy(channel)
            for modality in MODALITIES
            if modality not in missing
            for channel in images[modality][sample].double()
        )
        strength = reference.patch_means(energy, (8, 8), (6, 5))
        assert len(strength) == model.backbone.num_patches
        for stage, context, count in zip(
            stages, contexts, model.slimming.counts(model.backbone.num_patches), strict=True
        ):
            for modality in MODALITIES:
                places = stage.scored[modality][sample].tolist()
                attention = reference_scores.mean_attention(context.attention[modality][sample])
                kept = reference.union_of_tops(
                    attention, [strength[place] for place in places], count
                )
                assert stage.kept[modality][sample].tolist() == [places[index] for index in kept]
