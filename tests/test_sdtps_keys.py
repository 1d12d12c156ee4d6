"""SDTPS with another score (MODEL.SDTPS_SCORE): what it keeps, what learns, and what stays as it is."""
import pytest
import torch
from numeric import assert_close, assert_order, generator, tolerance
from reference import cues
from reference import sdtps as reference
from tiny import PATCHES, WIDTH, random_images, tiny_cfg, tiny_model

from demo_sdtps.config import MODALITIES
from demo_sdtps.engine.evaluation.selection import detectors
from demo_sdtps.modeling.losses import total_loss

SCORE = (PATCHES, WIDTH, WIDTH)
"""Lengths of the sums in `distinctness`: mean, norm, cosine."""
PATH = (*SCORE, WIDTH, WIDTH, WIDTH // 5, PATCHES, PATCHES)
"""… and to the tokens: norm and MLP of the aggregation, softmax and mean over the patches."""
DISTINCT = ("MODEL.SDTPS_SCORE", "distinctness")
MLPS = {f"sdtps.{name}_sparse.score_predictor.{layer}.{part}"
        for name in reference.STATE_NAMES for layer in (0, 2) for part in ("weight", "bias")}


def test_the_most_distinct_patches_are_kept_and_aggregated():
    """Values and gradients, against one sample at a time."""
    model = tiny_model(*DISTINCT)
    with torch.no_grad():
        for parameter in model.sdtps.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        context = model.encode(*random_images(1, batch=2))
    for tokens in context.tokens.values():
        tokens.requires_grad_()
    found = model.select_tokens(context)
    for name, (modality, selection) in zip(reference.STATE_NAMES, found.items(), strict=True):
        own = {key: part.detach().double() for key, part in reference.weights_of(model.sdtps.state_dict(), name).items()}
        exact = context.tokens[modality].detach().double().requires_grad_()
        expected = []
        for sample, patches in enumerate(exact):
            scores = cues.distinctness(patches.detach())
            kept = selection.index[sample].tolist()
            assert len(kept) == PATCHES // 2
            assert_order(selection.index[sample], -torch.stack(scores), tolerance(*SCORE))
            dropped = [place for place in range(PATCHES) if place not in kept]
            assert selection.mask[sample].nonzero().flatten().tolist() == sorted(kept)
            decision = [torch.tensor(float(place in kept)) for place in range(PATCHES)]
            expected.append(reference.slim(own, patches, scores, kept, dropped, decision, 6))
        expected = torch.stack(expected)
        assert_close(selection.tokens, expected, *PATH)
        probe = torch.randn(expected.shape, generator=generator(2))
        (selection.tokens * probe).sum().backward()
        (expected * probe).sum().backward()
        assert_close(context.tokens[modality].grad, exact.grad, *PATH, *PATH)


@pytest.mark.parametrize("opts", [DISTINCT, (*DISTINCT, "MODEL.SDTPS_PROJECTION", True, "MODEL.HDM", True,
                                             "MODEL.SDTPS_FEEDS_HDM", False)], ids=["score", "all three keys"])
def test_a_step_reaches_everything_but_the_mlps_which_stay_in_the_checkpoint(opts):
    model = tiny_model(*opts).train()
    published = tiny_model(*opts, "MODEL.SDTPS_SCORE", "published")
    assert model.state_dict().keys() == published.state_dict().keys()
    published.load_state_dict(model.state_dict())
    loss, _ = total_loss(tiny_cfg(*opts), model(*random_images(3)), torch.tensor([0, 0, 1, 1]), model.pair_weights)
    loss.backward()
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None} == MLPS


@torch.no_grad()
def test_the_quality_of_its_selection_is_that_of_the_score():
    model = tiny_model(*DISTINCT).eval()
    context = model.encode(*random_images(4))
    found = detectors(model, context, model.select_tokens(context))
    for modality in MODALITIES:
        assert list(found[modality]) == ["score"]
        expected = torch.stack([torch.stack(cues.distinctness(sample)) for sample in context.tokens[modality].double()])
        assert_close(found[modality]["score"], expected, *SCORE, scale=1.0)  # 1 - cosine
