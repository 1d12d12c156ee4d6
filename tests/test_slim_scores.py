"""Scores of slimming that learn or merge, and peers' scores, against slow versions of themselves, alone and in the model."""
from dataclasses import replace
from itertools import count as numbers

import pytest
import torch
from golden_cases import relative_error
from numeric import assert_close, generator, seeded, tolerance
from reference import cues as reference_cues
from reference import slim_scores as reference
from tiny import BLOCK, ENCODER, random_images, tiny_cfg, tiny_model

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.evaluation.operations import count_macs
from demo_sdtps.modeling.class_attention import keys
from demo_sdtps.modeling.scores import make_score
from demo_sdtps.modeling.scores.base import Context
from demo_sdtps.modeling.scores.editor import haar_energy
from demo_sdtps.modeling.tokens import Tokens

WIDTH, GRID, HEADS, PATCHES = 24, (5, 3), 3, 15
COSINES, MLP = (PATCHES, WIDTH, WIDTH), (WIDTH, WIDTH // 4)
"""Lengths of the sums in cosines with a mean, and in the MLP of a score."""
SLIM = ("MODEL.SLIM_BLOCKS", "[1,3]", "MODEL.SLIM_KEEP", "[0.75,0.5]")
"""Of the tiny model's 32 patches, 24 are left, then 12."""


def context_of(seed, batch=3, **fields):
    """A random context; `fields` are names and shapes of further ones."""
    draws = generator(seed)
    shapes = {"tokens": (PATCHES, WIDTH), "class_tokens": (WIDTH,), **fields}
    return Context(grid=GRID, **{name: {modality: torch.randn(batch, *shape, generator=draws) for modality in MODALITIES}
                                 for name, shape in shapes.items()})


def score_of(name, *opts, seed=1):
    torch.manual_seed(seeded(seed))
    return make_score(name, tiny_cfg(*opts), WIDTH, GRID)


def one_modality(seed):
    """Images of one modality and their cameras."""
    images, cameras = random_images(seed)
    return images["RGB"], cameras


def are_apart(keys):
    """Whether likenesses of patches are so far from each other that roundings decide nothing."""
    cosines = torch.stack([torch.cosine_similarity(part[:, ::2, None].double(), part[:, None, 1::2].double(), dim=-1)
                           for part in keys.values()]).flatten(2)
    return cosines.sort(dim=-1).values.diff(dim=-1).min() > 2 * tolerance(7, 7)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("count", [8, 12])
def test_tome_against_its_description(count, shared):
    """Merged patches and sizes, of patches that already stand for several, and gradients; with one choice for all modalities
    the partners are still each one's own."""
    given = next(keys for keys in (context_of(seed, keys=(PATCHES, 7)).keys for seed in numbers(9)) if are_apart(keys))
    draws = generator(10)
    values = torch.randn(9, 1 + PATCHES, WIDTH, generator=draws, requires_grad=True)
    sizes = torch.randint(1, 5, (9, 1 + PATCHES), generator=draws).float()
    context = replace(context_of(9), keys=given)
    score = score_of("tome", *SLIM)
    found = score.scores(context)
    scores = torch.cat([sum(found.values())] * 3 if shared else list(found.values()))
    kept = scores.argsort(dim=1, descending=True)[:, :count].sort(dim=1).values
    decision = torch.zeros_like(scores).scatter(1, kept, 1.0)
    rows = torch.arange(9).unsqueeze(1)
    slimmed = Tokens(torch.cat([values[:, :1], values[:, 1:][rows, kept]], dim=1), kept)
    merged = score.merge(Tokens(values, sizes=sizes), slimmed, scores, decision, context)
    exact, all_keys = values.detach().double().requires_grad_(), torch.cat(list(given.values())).double()
    expected = []
    for row in range(9):
        likeness = scores[row].argsort()[:PATCHES - count].tolist() if shared else None
        means, counts, dropped = reference.merged(exact[row, 1:], sizes[row, 1:].double(), all_keys[row], count, likeness)
        assert dropped == set(range(PATCHES)) - set(kept[row].tolist())
        assert torch.equal(merged.sizes[row], torch.cat([torch.ones(1), counts.float()]))
        expected.append(torch.cat([exact[row, :1], means]))
    assert_close(merged.values, torch.stack(expected), PATCHES, 2)
    probe = torch.randn(merged.values.shape, generator=draws)
    (merged.values * probe).sum().backward()
    (torch.stack(expected) * probe).sum().backward()
    assert_close(values.grad, exact.grad, PATCHES, 2)


@pytest.mark.parametrize("options", [(), ("MODEL.SLIM_SHARED", False), ("MODEL.TRANSFORMER_TYPE", "eva02_tiny_patch14_224")],
                         ids=str)
def test_tome_in_the_model(options):
    """The fused kernel and the plain one agree with sizes as weights, and every patch counts once.

    In float64, so that no rounding of theirs changes what is merged.
    """
    model = tiny_model(*SLIM, "MODEL.SLIM_SCORE", "tome", *options).eval().double()
    images, cameras = random_images(11)
    images = {name: image.double() for name, image in images.items()}
    sizes, run = [], model.backbone.run_blocks
    model.backbone.run_blocks = lambda tokens, *blocks: sizes.append(tokens.sizes) or run(tokens, *blocks)
    features = []
    for fused in (True, False):
        model.backbone.fused_attention = fused
        with torch.no_grad():
            features.append(model(images, cameras))
    assert_close(*features, *ENCODER, *ENCODER)
    patches, prefix = model.backbone.num_patches, model.backbone.vit.num_prefix_tokens
    assert [None if part is None else part[:, prefix:].sum(dim=1).unique().tolist() for part in sizes] == 2 * [
        None, [patches], [patches]]


@pytest.mark.parametrize("name", ["test_vit", "eva02_tiny_patch14_224", "vit_small_patch16_dinov3_qkvb"])
def test_keys_are_those_of_the_next_block(name):
    """Before a rotary embedding."""
    backbone = tiny_model("MODEL.TRANSFORMER_TYPE", name, "MODEL.PATCH_SIZE", 8).eval().backbone
    seen, tokens = [], Tokens(backbone.stem(*one_modality(15), 2))
    backbone.vit.blocks[2].attn.k_norm.register_forward_hook(lambda module, arguments, output: seen.append(output))
    found = keys(backbone.vit.blocks[2], tokens.values)
    with torch.no_grad(), backbone.ready(found.device):
        backbone.run_blocks(tokens, 2, 3)
    _, expected = seen
    assert_close(found, expected, *4 * [backbone.vit.embed_dim])  # norm and projection, of keys alone and with the others


@pytest.mark.parametrize(("precision", "limit"), [(None, tolerance(*6 * BLOCK)), (torch.bfloat16, 60 ** 0.5 / 2 ** 8)], ids=str)
def test_a_merged_token_weighs_as_much_as_its_patches(precision, limit):
    """A token of size 8 in attention and eight equal tokens of size 1 give the same other tokens.

    In bfloat16 three blocks round about ten times each, on both ways; the norm of many such errors is √60 units.
    """
    backbone = tiny_model(seed=12).eval().backbone
    backbone.precision = precision
    values = torch.randn(2, 6, 64, generator=generator(13))
    repeated = torch.cat([values, *7 * [values[:, -1:]]], dim=1)
    sizes = torch.ones(2, 6)
    sizes[:, -1] = 8
    for fused in (True, False):
        backbone.fused_attention = fused
        with torch.no_grad(), backbone.ready(values.device):
            plain, merged, apart = (backbone.run_blocks(tokens, 0, 3).values[:, :6] - values
                                    for tokens in (Tokens(values), Tokens(values, sizes=sizes), Tokens(repeated)))
        assert relative_error(merged, apart) < limit and relative_error(plain, apart) > 0.1


def test_tome_without_merging_drops_the_same_patches():
    images, cameras = random_images(14)
    merged, dropped = (tiny_model("MODEL.SLIM_BLOCKS", "[1]", "MODEL.SLIM_KEEP", "[0.5]", "MODEL.SLIM_SCORE", "tome",
                                  "MODEL.SLIM_MERGE", merge).eval().encode(images, cameras) for merge in (True, False))
    assert all(torch.equal(merged.positions[name], dropped.positions[name]) for name in MODALITIES)
    assert not torch.allclose(merged.tokens["RGB"], dropped.tokens["RGB"])


def test_tome_keeps_at_least_half():
    with pytest.raises(UserError, match=r"MODEL.SLIM_KEEP is \[0.4\], but .* 'tome' .* by more MODEL.SLIM_BLOCKS\.$"):
        tiny_model("MODEL.SLIM_BLOCKS", "[1]", "MODEL.SLIM_KEEP", "[0.4]", "MODEL.SLIM_SCORE", "tome")


@pytest.mark.parametrize("size", [(8, 6), (7, 5)], ids=str)
def test_energy_of_the_wavelet(size):
    """The last pixels of odd sides are repeated."""
    images = torch.randn(2, 3, *size, generator=generator(16))
    even = images[..., [min(row, size[0] - 1) for row in range(8)], :][..., [min(column, size[1] - 1) for column in range(6)]]
    expected = torch.stack([sum(reference.haar_energy(channel) for channel in image.double()) for image in even])
    assert_close(haar_energy(images), expected[:, None, :size[0], :size[1]], 4, 9)
    assert haar_energy(torch.full((1, 3, 4, 4), 7.0)).eq(0).all()


@pytest.mark.parametrize("missing", [frozenset(), frozenset({"RGB", "TI"})], ids=["nothing missing", "RGB and TI missing"])
def test_editor_keeps_the_union_of_both_tops(missing):
    """Of overlapping patches, at every stage, by each modality's own attention and the present images' energy.

    Pixels are small whole numbers and attention weights multiples of 2^-16, so that their sums are exact.
    """
    model = tiny_model(*SLIM, "MODEL.SLIM_SCORE", "editor", "MODEL.SLIM_SHARED", False, "MODEL.STRIDE_SIZE", "[6,5]").eval()
    contexts = []

    def exact(context):
        return replace(context, attention={name: (2**16 * part).round() / 2**16 for name, part in context.attention.items()})

    for score in model.slimming.scores:
        score.scores = lambda context, scores=score.scores: contexts.append(exact(context)) or scores(contexts[-1])
    images, cameras = random_images(17, batch=2)
    images = {name: (4 * image).round() for name, image in images.items()}
    with torch.no_grad():
        stages = model.encode_cases(images, cameras, [missing])[0].stages
    for sample in range(2):
        energy = sum(reference.haar_energy(channel) for modality in MODALITIES if modality not in missing
                     for channel in images[modality][sample].double())
        strength = reference.patch_means(energy, (8, 8), (6, 5))
        assert len(strength) == model.backbone.num_patches
        for stage, context, count in zip(stages, contexts, model.slimming.counts(model.backbone.num_patches), strict=True):
            for modality in MODALITIES:
                places = stage.scored[modality][sample].tolist()
                attention = reference_cues.mean_attention(context.attention[modality][sample])
                kept = reference.union_of_tops(attention, [strength[place] for place in places], count)
                assert stage.kept[modality][sample].tolist() == [places[index] for index in kept]


@pytest.mark.parametrize("score", ["saliency", "border", "tome", "editor"])
def test_operations_are_counted(score, caplog):
    cfg = tiny_cfg(*SLIM, "MODEL.SLIM_SCORE", score)
    model = tiny_model(*SLIM, "MODEL.SLIM_SCORE", score).eval()
    assert count_macs(cfg, model)["slimming"] > 0
    assert "Not counted" not in caplog.text
