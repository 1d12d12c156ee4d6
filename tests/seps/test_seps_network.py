"""SEPS's network beside its own parts: options that the original's numbers (test_seps_golden.py) leave at their defaults."""

import pytest
import torch
from numeric import assert_close, generator, shift_seed

from seps import (
    HRPA,
    SDTPS,
    CrossSparseAggrNet,
    DualTokenAggregation,
    TokenAggregation,
    TokenSparse,
    create_seps_model,
    mask_xattn_one_text,
)

WIDTH, PATCHES, IMAGES = 20, 9, 3
SUMS = (WIDTH, WIDTH, PATCHES, WIDTH, WIDTH // 5, PATCHES, PATCHES, WIDTH, WIDTH, 10, 5, 10)
"""Lengths of the sums from tokens to a similarity: cosines, MLPs, softmax and means of the patches, cosines with words, their
mean and the MLP of the largest."""
LENGTHS, LONG_LENGTHS = (7, 1, 3, 4), (2, 10, 5, 6)
"""Of captions of 7 and long captions of 10 words, padding included; some are shorter than HRPA's five best."""
VERSIONS = {
    "open": {"use_paper_version": False},
    "paper": {"use_paper_version": True},
    "paper single": {"use_paper_version": True, "use_dual_aggr": False},
}
EVERY_VERSION = pytest.mark.parametrize("version", VERSIONS)


def build(version, ratio=0.5, **more):
    """A network in training with random parameters, the same at every call."""
    torch.manual_seed(shift_seed(1))
    network = CrossSparseAggrNet(WIDTH, PATCHES, ratio, 0.5, **VERSIONS[version], **more)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return network.train()


def draw(padding=None):
    """Image tokens after a class token, captions, lengths, long captions and lengths; tokens and words with gradient."""
    draws = generator(2)
    inputs = [torch.randn(IMAGES, PATCHES + 1, WIDTH, generator=draws).requires_grad_()]
    for lengths, width in ((LENGTHS, 7), (LONG_LENGTHS, 10)):
        words = torch.randn(len(lengths), width, WIDTH, generator=draws)
        if padding is not None:
            for caption, length in zip(words, lengths, strict=True):
                caption[length:] = padding
        inputs += [words.requires_grad_(), torch.tensor(lengths)]
    return inputs


def step(network, inputs):
    """Similarities and masks, whichever version they are of, and the gradients by name of a weighted sum of all of them."""
    torch.manual_seed(shift_seed(3))
    similarity, masks = network(*inputs)
    outputs = [similarity, *(masks if isinstance(masks, tuple) else (masks,))]
    draws = generator(4)
    sum(
        (output * torch.randn(output.shape, generator=draws)).sum() for output in outputs
    ).backward()
    gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
    gradients |= {"images": inputs[0].grad, "captions": inputs[1].grad}
    return outputs, {name: each for name, each in gradients.items() if each is not None}


@pytest.mark.parametrize(("ratio", "kept"), [(0.3, 3), (1.0, 9)])
@EVERY_VERSION
def test_the_sparse_ratio_is_the_share_of_kept_patches(version, ratio, kept):
    """Where all are kept, the extra token is zero, has no direction and gets no gradient."""
    (similarity, *masks), gradients = step(build(version, ratio), draw())
    assert similarity.isfinite().all() and all(each.isfinite().all() for each in gradients.values())
    for mask in masks:
        assert mask.shape == (len(LENGTHS), IMAGES, PATCHES)
        assert mask.sum(-1).eq(kept * (2 if version == "open" else 1)).all()


def test_beta_is_the_weight_of_the_cosines():
    """At 1/2 the MLPs of the scores play no part."""
    network = build("paper", beta=0.5).eval()
    expected = network(*draw())
    with torch.no_grad():
        for parameter in network.sparse_net_cap.parameters():
            parameter.neg_()
    assert torch.equal(network(*draw()), expected)
    assert not torch.equal(build("paper").eval()(*draw()), expected)


@EVERY_VERSION
def test_gumbel_noise_shapes_the_gradient_alone(version):
    outputs, gradients = step(build(version, use_gumbel_softmax=True, gumbel_tau=0.5), draw())
    plain, others = step(build(version), draw())
    for output, other in zip(outputs, plain, strict=True):
        assert torch.equal(output, other)
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    if version != "open":  # whose scores have no gradient
        assert all(mask.requires_grad for mask in outputs[1:])
        name = "sparse_net_cap.score_predictor.0.weight"
        assert (gradients[name] - others[name]).norm() > 0.1 * others[name].norm()


@EVERY_VERSION
@pytest.mark.parametrize("chunk", [1, 5])
def test_chunks_do_not_change_the_result(chunk, version):
    network = build(version)
    network.chunk = chunk
    outputs, gradients = step(network, draw())
    expected, others = step(build(version), draw())
    for output, other in zip(outputs, expected, strict=True):
        assert_close(output, other, *SUMS, *SUMS)
    for name, gradient in gradients.items():
        scale = max(1.0, float(others[name].abs().max()))
        pairs = len(LENGTHS) * IMAGES * PATCHES
        assert_close(gradient, others[name], *SUMS, *SUMS, *SUMS, pairs, scale=scale)


@EVERY_VERSION
def test_padded_words_play_no_part(version):
    """Neither in values nor in gradients, whatever is there."""
    outputs, expected = step(build(version), draw(0.0))
    others, gradients = step(build(version), draw(float("nan")))
    assert all(torch.equal(one, other) for one, other in zip(outputs, others, strict=True))
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)
    assert gradients["captions"][1, 1:].eq(0).all() and gradients["captions"][1, 0].ne(0).any()


@pytest.mark.parametrize("top_k", [1, 5])
@pytest.mark.parametrize("paper", [False, True], ids=["open", "paper"])
def test_masked_tokens_are_as_if_they_were_not_there(paper, top_k):
    torch.manual_seed(shift_seed(31))
    module, tokens, words = HRPA(paper, top_k), torch.randn(3, 8, WIDTH), torch.randn(4, WIDTH)
    mask = torch.tensor([[1] * 8, [0, 1, 1, 0, 1, 1, 1, 0], [1, 0, 0, 1, 0, 0, 1, 0]])
    actual = module(tokens, words, mask)
    assert torch.equal(
        actual, mask_xattn_one_text(tokens, words, mask, module.relevance_mlp, top_k)
    )
    alone = [
        module(image[valid > 0][None], words) for image, valid in zip(tokens, mask, strict=True)
    ]
    assert_close(actual, torch.cat(alone), *SUMS, *SUMS)


def test_the_public_names_make_the_networks_they_name():
    assert SDTPS is CrossSparseAggrNet
    arguments = (WIDTH, PATCHES, 0.5, 0.5)
    for version, options in VERSIONS.items():
        network = CrossSparseAggrNet(*arguments, **options)
        aggregation = DualTokenAggregation if version == "paper" else TokenAggregation
        assert isinstance(network.aggr_net, aggregation)
        assert version == "open" or isinstance(network.sparse_net_cap, TokenSparse)
    actual = create_seps_model(*arguments, True, use_gumbel_softmax=True, gumbel_tau=2.0)
    expected = CrossSparseAggrNet(*arguments, True, use_gumbel_softmax=True, gumbel_tau=2.0)
    assert actual.state_dict().keys() == expected.state_dict().keys()
    assert actual.gumbel_tau == expected.gumbel_tau == 2.0
