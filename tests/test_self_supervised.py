"""The score that learns from pseudo-masks, against saliency by shortest ways and Otsu's threshold by trial, patch by patch."""

import pytest
import torch
from numeric import assert_close, generator, seeded
from reference import cues as reference_cues
from reference.slim_scores import otsu
from slim_models import CASES
from tiny import pairs, random_images, tiny_cfg, tiny_model

import demo_sdtps
from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.scores import make_score
from demo_sdtps.modeling.scores.base import Context
from demo_sdtps.modeling.scores.supervised import above_otsu

WIDTH, GRID, PATCH, PATCHES, LEFT, BATCH = 12, (6, 4), 4, 24, 15, 3
SLIM = ("MODEL.SLIM_BLOCKS", "[0,2]", "MODEL.SLIM_KEEP", "[0.4,0.5]", "MODEL.SLIM_SCORE", "self_supervised",
        "MODEL.SLIM_LOSS_WEIGHT", "2.5")


@pytest.mark.parametrize("count", [2, 3, 15, 128])
def test_otsus_threshold_against_trying_all(count):
    scores = torch.cat([torch.rand(4, count, generator=generator(1)), torch.randn(4, count, generator=generator(2)).exp()])
    for score, found in zip(scores, above_otsu(scores), strict=True):
        assert found.tolist() == otsu(score.tolist())


def test_equal_scores_have_no_foreground():
    assert above_otsu(torch.full((2, 8), 0.3)).tolist() == [[0.0] * 8] * 2


@pytest.mark.parametrize("shared", [True, False])
def test_the_loss_is_the_cross_entropy_against_pseudo_masks(shared):
    """Of what an earlier stage has left; of the sum of all modalities where they keep the same places, else of their own."""
    draws = generator(3)
    images = {name: torch.rand(BATCH, 3, GRID[0] * PATCH, GRID[1] * PATCH, generator=draws) for name in MODALITIES}
    places = {name: torch.rand(BATCH, PATCHES, generator=draws).argsort(dim=1)[:, :LEFT].sort(dim=1).values
              for name in MODALITIES}
    scores = {name: torch.randn(BATCH, LEFT, generator=draws, requires_grad=True) for name in MODALITIES}
    context = Context({name: torch.zeros(BATCH, LEFT, WIDTH) for name in MODALITIES}, {}, GRID, positions=places, images=images,
                      patch_size=(PATCH, PATCH), patch_stride=(PATCH, PATCH), shared=shared)
    torch.manual_seed(seeded())
    score = make_score("self_supervised", tiny_cfg(*SLIM), WIDTH, GRID).train()
    terms = {name: [] for name in MODALITIES}
    exact = {name: part.detach().double().requires_grad_() for name, part in scores.items()}
    for row in range(BATCH):
        own = {name: torch.tensor(reference_cues.saliency(images[name][row].double(), GRID, (PATCH, PATCH), (PATCH, PATCH)))
               for name in MODALITIES}
        for name in MODALITIES:
            mask = otsu((sum(own.values()) if shared else own[name]).tolist())
            for number, place in enumerate(places[name][row].tolist()):
                p = 1 / (1 + (-exact[name][row, number]).exp())
                terms[name].append(-mask[place] * p.log() - (1 - mask[place]) * (1 - p).log())
    expected = 2.5 * sum(sum(own) / len(own) for own in terms.values()) / len(MODALITIES)
    found = score.loss(scores, context)
    assert_close(found, expected, BATCH * LEFT, len(MODALITIES))
    for ours, theirs in zip(torch.autograd.grad(found, list(scores.values())),
                            torch.autograd.grad(expected, list(exact.values())), strict=True):
        assert_close(ours, theirs, 3, 3)
    assert score.eval().loss(scores, context) is None


def test_the_model_learns_it_without_masks():
    """Its loss is in the output, and reaches the heads of all stages and the backbone."""
    model = tiny_model(*SLIM).train()
    output = model(*random_images(4))
    assert pairs(output) and output.auxiliary.isfinite().all()
    output.auxiliary.sum().backward()
    reached = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert reached >= {name for name, _ in model.named_parameters() if name.startswith("slimming.")}
    assert model.backbone.vit.patch_embed.proj.weight.grad.norm() > 0


@pytest.mark.parametrize("name", ["timm", "open_clip", "ViT"])
def test_any_vision_transformer_learns_it_without_masks(name):
    case = CASES[name]
    model = demo_sdtps.slim(case.model(), (0, 1), (0.6, 0.5), "self_supervised").train()
    case.call(model, case.draw())
    demo_sdtps.slim_loss(model).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.slimming.parameters())
