"""SEPS's network and losses against the numbers of the original, and options that those leave at their defaults."""

import inspect

import pytest
import torch
from golden_cases import load_case, relative_error
from numeric import assert_close, generator, random_sum, shift_seed, with_gradient
from tiny import equal

from seps import (
    HRPA,
    ContrastiveLoss,
    CrossSparseAggrNet,
    RatioLoss,
    SEPSLoss,
    create_seps_model,
    mask_xattn_one_text,
)

CASES = ["open", "open_sparse_only", "open_gradients"]
CASES += ["paper", "paper_no_long", "paper_single", "paper_gradients"]
INPUTS = ["images", "captions", "caption_lengths", "long_captions", "long_caption_lengths"]


def build_case(case):
    """The case's network in training; loading is strict, for the names are the interface."""
    names = set(inspect.signature(CrossSparseAggrNet).parameters) & set(case.settings)
    assert set(case.settings) - names <= {"seed", "has_cls", "parameters"}
    network = CrossSparseAggrNet(**{name: case.settings[name] for name in names})
    network.load_state_dict(case.weights)
    return network.train()


def make_inputs(case):
    """Image tokens, captions, lengths and, if any, long captions and their lengths; the tokens have gradients."""
    return [
        tensor.clone().requires_grad_() if tensor.is_floating_point() else tensor
        for tensor in (case.arrays[name] for name in INPUTS if name in case.arrays)
    ]


def assert_golden(case, inputs, similarity, masks):
    """Values, masks and, where the case has them, gradients and losses."""
    arrays = case.arrays
    assert similarity.shape == arrays["similarity"].shape
    assert relative_error(similarity, arrays["similarity"]) < 1e-5
    if not case.settings["use_paper_version"]:
        assert isinstance(masks, torch.Tensor)
        assert "mask" not in arrays or torch.equal(masks.float(), arrays["mask"])
    else:
        named = [arrays[name] for name in ("mask_sparse", "mask_dense") if name in arrays]
        assert isinstance(masks, tuple)
        pairs = zip(masks, named, strict=bool(named))
        assert all(torch.equal(mask.float(), expected) for mask, expected in pairs)
    if "probe" in arrays:
        (similarity * arrays["probe"]).sum().backward()
        for name, tensor in zip(INPUTS, inputs, strict=True):
            if f"grad_{name}" in arrays:
                expected, actual = arrays[f"grad_{name}"], tensor.grad
                if expected.any():
                    assert relative_error(actual, expected) < 1e-5, name
                else:  # no gradient and one of zeros are the same
                    assert actual is None or not actual.any(), name


@pytest.mark.parametrize("name", CASES)
def test_golden_values_masks_and_gradients(name):
    case = load_case(f"seps_{name}")
    network, inputs = build_case(case), make_inputs(case)
    assert_golden(case, inputs, *network(*inputs))
    assert relative_error(network.eval()(*inputs), case.arrays["similarity"]) < 1e-5


@pytest.mark.parametrize("name", ["open", "paper"])
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_golden_losses(name, kind):
    case = load_case(f"seps_{name}")
    actual = SEPSLoss(max_violation=kind == "max")(
        *build_case(case)(*make_inputs(case)), img_ids=case.arrays["image_ids"]
    )
    assert relative_error(torch.stack(actual), case.arrays[f"loss_{kind}"]) < 1e-5


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_the_golden_contrastive_loss(kind):
    case = load_case("seps_losses")
    arrays, name = case.arrays, f"align_{kind}"
    loss = ContrastiveLoss(case.settings["margin"], max_violation=kind == "max")
    value, gradient = with_gradient(
        lambda scores: loss(scores, arrays["image_ids"]), arrays["scores"]
    )
    assert relative_error(value, arrays[name]) < 1e-5
    assert relative_error(gradient, arrays[f"grad_{name}"]) < 1e-5
    assert relative_error(loss(arrays["scores"]), arrays[f"{name}_no_ids"]) < 1e-5


def test_the_golden_ratio_loss():
    """A tensor is the sum of the masks, as the open version returns it."""
    case = load_case("seps_losses")
    sparse, dense = case.arrays["mask_sparse"], case.arrays["mask_dense"]
    names = ("target_ratio", "lambda_sparse", "lambda_dense")
    loss = RatioLoss(*(case.settings[name] for name in names))
    masks = {"pair": (sparse, dense), "single": (sparse,), "tensor": sparse + dense}
    for name, mask in masks.items():
        assert relative_error(loss(mask), case.arrays[f"ratio_{name}"]) < 1e-5, name


@pytest.mark.parametrize(
    ("sizes", "options", "count"),
    [
        ((), {}, 57_368),
        ((), {"use_paper_version": True}, 246_392),
        ((32, 16, 0.5, 0.5), {}, 291),
        ((32, 16, 0.5, 0.5), {"use_paper_version": True}, 1_198),
        ((40, 25, 0.5, 0.4), {"use_paper_version": True, "use_dual_aggr": False}, 1_367),
    ],
    ids=str,
)
def test_number_of_parameters(sizes, options, count):
    network = CrossSparseAggrNet(*sizes, **options)
    assert sum(parameter.numel() for parameter in network.parameters()) == count


# Options

WIDTH, PATCHES, IMAGES = 20, 9, 3
SUMS = (WIDTH, WIDTH, PATCHES, WIDTH, WIDTH // 5, PATCHES, PATCHES, WIDTH, WIDTH, 10, 5, 10)
"""Lengths of the sums from tokens to a similarity: cosines, MLPs, softmax, means, cosines with words, mean and MLP."""
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
    random_sum(4, outputs).backward()
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
    assert equal(outputs, plain)
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
    assert equal(outputs, others) and equal(expected, gradients)
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


def test_arguments_in_the_order_of_the_published_code():
    arguments = (32, 16, 0.5, 0.5, True)
    expected = CrossSparseAggrNet(*arguments, use_gumbel_softmax=True, gumbel_tau=2.0)
    by_name = create_seps_model(*arguments, use_gumbel_softmax=True, gumbel_tau=2.0)
    for actual in (create_seps_model(*arguments, True, 2.0), by_name):
        assert actual.state_dict().keys() == expected.state_dict().keys()
        assert actual.gumbel_tau == expected.gumbel_tau == 2.0
