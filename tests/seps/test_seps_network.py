"""SEPS against a slow version of itself, what it ignores, and its errors."""

from contextlib import contextmanager
from itertools import count, pairwise
from unittest import mock

import pytest
import torch
from golden_cases import relative_error
from numeric import assert_close, generator, shift_seed, tolerance
from sdtps_cases import assert_gradients_equal, random_sum
from seps_sums import IMAGES, PATCHES, PATH, WIDTH

from demo_sdtps.modeling.sdtps import gumbel_noise
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
from tests.reference import seps as reference

LENGTHS, LONG_LENGTHS = (7, 1, 3, 4), (2, 10, 5, 6)
"""Of captions of 7 and long captions of 10 words, padding included; some are shorter than HRPA's five best."""
BACK = (*PATH, *PATH, len(LENGTHS) * IMAGES * PATCHES)
"""… and to a gradient, which all pairs and patches add to."""
VERSIONS = {
    "open": {"use_paper_version": False},
    "paper": {"use_paper_version": True},
    "paper single": {"use_paper_version": True, "use_dual_aggr": False},
}
EVERY_VERSION = pytest.mark.parametrize(
    "version",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "paper single")) for name in VERSIONS],
)
WITH_LONG = pytest.mark.parametrize("has_long", [False, True], ids=["short", "long"])
WITH_CLASS = pytest.mark.parametrize("has_class", [False, True], ids=["patches", "class"])


def build(version, seed=1, sizes=(WIDTH, PATCHES, 0.5, 0.5), **more):
    """A network whose parameters are all random, in training."""
    torch.manual_seed(shift_seed(seed))
    network = CrossSparseAggrNet(*sizes, **VERSIONS[version], **more)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return network.train()


def draw(seed, has_class=True, has_long=True):
    """Image tokens, captions, lengths and, if `has_long`, long captions and lengths; tokens and words with gradient."""
    draws = generator(seed)

    def tokens(*shape):
        return torch.randn(*shape, WIDTH, generator=draws).requires_grad_()

    inputs = [tokens(IMAGES, PATCHES + has_class), tokens(len(LENGTHS), 7), torch.tensor(LENGTHS)]
    return inputs + ([tokens(len(LENGTHS), 10), torch.tensor(LONG_LENGTHS)] if has_long else [])


def exact(inputs):
    """The same inputs in float64, as new leaves."""
    return [
        tensor.detach().double().requires_grad_() if tensor.is_floating_point() else tensor
        for tensor in inputs
    ]


def flatten(outputs):
    """Similarities, then masks, whichever version they are of."""
    similarity, masks = outputs
    return [similarity, *(masks if isinstance(masks, tuple) else (masks,))]


def gradients(network, inputs):
    """By name, those of the parameters and of the inputs that may have any."""
    return of_leaves(dict(network.named_parameters()), inputs)


def of_leaves(parameters, inputs):
    """Gradients by name, zeros where there is none; the scale's, one number, goes by the name of the layer that it scales."""
    last = "weight_sparse.3" if "aggr_net.weight_sparse.3.weight" in parameters else "weight.3"
    leaves = {
        name.replace("net.scale", f"net.{last}.scale"): parameters[name] for name in parameters
    }
    for place, tensor in enumerate(inputs):
        if tensor.is_floating_point():
            leaves[f"input {place}"] = tensor
    return {
        name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, leaf in leaves.items()
    }


@contextmanager
def gaps():
    """The distances between the numbers of which the reference takes the largest, and from 0, where LeakyReLU bends: a list.

    Where one is within roundings another patch may be kept, and other tokens get a gradient.
    """
    actual = []

    def note(values):
        actual.extend(high - low for low, high in pairwise(sorted([0.0, *values])) if high > low)

    def largest(values):
        note(value.item() for value in values)
        return max(values)

    def in_order(values, key):
        note(map(key, values))
        return sorted(values, key=key)

    with (
        mock.patch.multiple(reference, create=True, max=largest, sorted=in_order),
        mock.patch.object(reference.sdtps, "sorted", in_order, create=True),
    ):
        yield actual


def first_clear(make):
    """`make(attempt)` of the first attempt in which nothing that the reference chooses hangs on roundings."""
    for attempt in count():
        with gaps() as actual:
            result = make(attempt)
        if min(actual) > 2 * tolerance(*PATH):  # of cosines, and of scores up to 2
            return result


def draw_case(version, seed, has_class=True, has_long=True, tau=None, ratio=0.5, **more):
    """A network in training, its inputs, the reference's weights and inputs in float64, and what it makes of them.

    The noise is that which the network draws after `torch.manual_seed(shift_seed(seed + 200))` for all pairs together.
    """
    noises = None
    if tau is not None:
        torch.manual_seed(shift_seed(seed + 200))
        shape = (len(LENGTHS), IMAGES, PATCHES)
        noises = [gumbel_noise(torch.empty(shape)).double() for _ in range(2)]

    def attempt(number):
        gumbel = {"use_gumbel_softmax": tau is not None, "gumbel_tau": tau or 1.0}
        sizes = (WIDTH, PATCHES, ratio, 0.5)
        network = build(version, seed + 50 * number, sizes, **gumbel, **more)
        inputs = draw(seed + 100 + 50 * number, has_class, has_long)
        names, values = zip(*network.named_parameters(), strict=True)
        weights, others = dict(zip(names, exact(values), strict=True)), exact(inputs)
        kind = {"paper": version != "open", "dual": version != "paper single"}
        settings = {"sparse_ratio": ratio, "aggr_ratio": 0.5, "tau": tau, "noises": noises}
        expected = reference.similarities(weights, *others, **kind, **settings, **more)
        return network, inputs, weights, others, flatten(expected)

    return first_clear(attempt)


def assert_like_reference(version, seed, *more, chunk=1000, **named):
    """Values, masks and gradients of a training forward, and values of evaluation; → the outputs and the gradients."""
    network, inputs, weights, others, expected = draw_case(version, seed, *more, **named)
    network.chunk = chunk
    torch.manual_seed(shift_seed(seed + 200))
    outputs = flatten(network(*inputs))
    for output, other in zip(outputs, expected, strict=True):
        assert output.dtype == torch.float32
        assert_close(output, other, *PATH)
    assert_close(network.eval()(*inputs), expected[0], *PATH)
    random_sum(seed, outputs).backward()
    random_sum(seed, expected).backward()
    actual = gradients(network, inputs)
    assert_gradients_equal(actual, of_leaves(weights, others), BACK)
    return outputs, actual


@WITH_CLASS
@WITH_LONG
@EVERY_VERSION
def test_values_masks_and_gradients(version, has_long, has_class):
    outputs, actual = assert_like_reference(version, 11, has_class, has_long)
    assert outputs[0].shape == (IMAGES, len(LENGTHS))
    for mask in outputs[1:]:
        assert mask.shape == (len(LENGTHS), IMAGES, PATCHES)
        assert mask.sum(-1).eq(5 * (2 if version == "open" and has_long else 1)).all()
    assert actual["input 0"].ne(0).any() and actual["input 1"].ne(0).any()


@pytest.mark.parametrize("more", [{"beta": 0.5}, {"top_k": 1}, {"top_k": 12}], ids=str)
@pytest.mark.parametrize("version", ["paper", "paper single"])
def test_beta_and_the_number_of_best(version, more):
    assert_like_reference(version, 12, True, True, **more)


@pytest.mark.parametrize("ratio", [0.3, 1.0])
@EVERY_VERSION
def test_the_sparse_ratio_says_how_many_patches_are_kept(version, ratio):
    """Where all are, the extra token is zero, has no direction and gets no gradient."""
    outputs, _ = assert_like_reference(version, 13, True, True, ratio=ratio)
    assert all(output.isfinite().all() for output in outputs)


@WITH_LONG
@EVERY_VERSION
def test_gumbel_noise_shapes_the_gradient_alone(version, has_long):
    """The noise shapes the gradient alone, which goes through the returned masks too."""
    outputs, actual = assert_like_reference(version, 14, True, has_long, tau=0.5)
    plain, others = assert_like_reference(version, 14, True, has_long)
    for output, other in zip(outputs, plain, strict=True):
        assert torch.equal(output, other)
    assert all(gradient.isfinite().all() for gradient in actual.values())
    if version != "open":  # whose scores have no gradient
        assert all(mask.requires_grad for mask in outputs[1:])
        name = "sparse_net_cap.score_predictor.0.weight"
        assert relative_error(actual[name], others[name]) > 0.1


@EVERY_VERSION
@pytest.mark.parametrize("chunk", [1, 5])
def test_chunks_do_not_change_the_result(chunk, version):
    assert_like_reference(version, 22, chunk=chunk)


@EVERY_VERSION
def test_padded_words_play_no_part(version):
    """Neither in values nor in gradients, whatever is there."""
    results = []
    for value in (0.0, float("nan")):
        network, inputs = build(version), draw(24)
        with torch.no_grad():
            for words, lengths in (inputs[1:3], inputs[3:5]):
                for caption, length in zip(words, lengths, strict=True):
                    caption[length:] = value
        outputs = flatten(network(*inputs))
        random_sum(25, outputs).backward()
        results.append((outputs, gradients(network, inputs)))
        assert inputs[1].grad[1, 1:].eq(0).all() and inputs[1].grad[1, 0].ne(0).any()
    (outputs, expected), (others, actual) = results
    assert all(torch.equal(one, other) for one, other in zip(outputs, others, strict=True))
    for name, gradient in expected.items():
        assert torch.equal(actual[name], gradient), name


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("words", [1, 4, 6])
@pytest.mark.parametrize("paper", [False, True], ids=["open", "paper"])
def test_relevance_as_a_module_as_a_function_and_by_loops(paper, words, masked):
    """The module, its functional form and the loops; masked tokens are as if they were not there."""
    mask = None
    if masked:
        mask = torch.tensor([[1] * 8, [0, 1, 1, 0, 1, 1, 1, 0], [1, 0, 0, 1, 0, 0, 1, 0]])

    def attempt(number):
        torch.manual_seed(shift_seed(31 + 50 * number))
        module = HRPA(paper, top_k=5)
        leaves = [torch.randn(*size, WIDTH).requires_grad_() for size in ((3, 8), (words,))]
        mlp = module.relevance_mlp and module.relevance_mlp.state_dict()
        mlp = mlp and {name: value.double() for name, value in mlp.items()}
        tokens, text = others = exact(leaves)
        masks = [None] * 3 if mask is None else mask
        expected = [
            reference.relevance(image, text, mlp, 5, valid)
            for image, valid in zip(tokens, masks, strict=True)
        ]
        return module, leaves, others, torch.stack(expected)

    module, (tokens, text), others, expected = first_clear(attempt)
    actual = module(tokens, text, mask)
    assert torch.equal(actual, mask_xattn_one_text(tokens, text, mask, module.relevance_mlp, 5))
    assert_close(actual, expected[:, None], *PATH)
    random_sum(32, [actual]).backward()
    random_sum(32, [expected[:, None]]).backward()
    for leaf, other in zip((tokens, text), others, strict=True):
        assert_close(leaf.grad, other.grad, *BACK)
    if masked:
        assert tokens.grad[mask == 0].eq(0).all()


def test_the_public_names_make_the_networks_they_name():
    assert SDTPS is CrossSparseAggrNet
    arguments = (WIDTH, PATCHES, 0.5, 0.5)
    for version, options in VERSIONS.items():
        network = CrossSparseAggrNet(*arguments, **options)
        aggregation = DualTokenAggregation if version == "paper" else TokenAggregation
        assert isinstance(network.aggr_net, aggregation)
        assert version == "open" or isinstance(network.sparse_net_cap, TokenSparse)
    names = ("embed_size", "num_patches", "sparse_ratio", "aggr_ratio")
    options = {"use_paper_version": True, "use_gumbel_softmax": True, "gumbel_tau": 2.0}
    actual = create_seps_model(**dict(zip(names, arguments, strict=True)), **options)
    expected = CrossSparseAggrNet(*arguments, **options)
    assert actual.state_dict().keys() == expected.state_dict().keys()
    assert actual.gumbel_tau == expected.gumbel_tau == 2.0
