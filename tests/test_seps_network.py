"""SEPS against a slow version of itself and against the plain loop, what it ignores, and its errors."""
import pytest
import torch
from golden_cases import relative_error
from reference import seps as reference
from test_sdtps import assert_gradients_equal, probed

from demo_sdtps.benchmarks.plain.seps_loop import PlainSEPS
from demo_sdtps.modeling.sdtps import gumbel_noise
from demo_sdtps.seps import (
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
LENGTHS, LONG_LENGTHS = (7, 1, 3, 4), (2, 10, 5, 6)
"""Of captions of 7 and long captions of 10 words, padding included; some are shorter than HRPA's five best."""
VERSIONS = {"open": {"use_paper_version": False}, "paper": {"use_paper_version": True},
            "paper single": {"use_paper_version": True, "use_dual_aggr": False}}
EVERY_VERSION = pytest.mark.parametrize("version", VERSIONS)
WITH_LONG = pytest.mark.parametrize("has_long", [False, True], ids=["short", "long"])
WITH_CLASS = pytest.mark.parametrize("has_class", [False, True], ids=["patches", "class"])


def build(version, seed=1, make=CrossSparseAggrNet, sizes=(WIDTH, PATCHES, 0.5, 0.5), stir=0.3, **more):
    """A network whose parameters are all random, in training."""
    torch.manual_seed(seed)
    network = make(*sizes, **VERSIONS[version], **more)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(stir * torch.randn_like(parameter))
    return network.train()


def draw(seed, has_class=True, has_long=True, images=IMAGES):
    """Image tokens, captions, lengths and, if `has_long`, long captions and lengths; tokens and words with gradient."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(*shape):
        return torch.randn(*shape, WIDTH, generator=generator).requires_grad_()

    inputs = [tokens(images, PATCHES + has_class), tokens(len(LENGTHS), 7), torch.tensor(LENGTHS)]
    return inputs + ([tokens(len(LENGTHS), 10), torch.tensor(LONG_LENGTHS)] if has_long else [])


def copies(inputs, dtype=torch.float32):
    """The same inputs as new leaves."""
    return [given.detach().to(dtype).requires_grad_() if given.is_floating_point() else given for given in inputs]


def flattened(outputs):
    """Similarities, then masks, whichever version they are of."""
    similarity, masks = outputs
    return [similarity, *(masks if isinstance(masks, tuple) else (masks,))]


def gradients(network, inputs):
    """By name, those of the parameters and of the inputs that may have any."""
    return of_leaves(dict(network.named_parameters()), inputs)


def of_leaves(parameters, inputs):
    """Gradients by name, zeros where there is none; the scale's, one number, goes by the name of the layer that it scales."""
    last = "aggr_net.weight_sparse.3" if "aggr_net.weight_sparse.3.weight" in parameters else "aggr_net.weight.3"
    leaves = {name.replace("aggr_net.scale", f"{last}.scale"): leaf for name, leaf in parameters.items()}
    leaves |= {f"input {place}": given for place, given in enumerate(inputs) if given.is_floating_point()}
    return {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()}


def assert_like_reference(version, seed, has_class, has_long, tau=None, sparse_ratio=0.5, **more):
    """Values, masks and gradients of a training forward; → the outputs and the gradients found."""
    sizes = (WIDTH, PATCHES, sparse_ratio, 0.5)
    network = build(version, seed, sizes=sizes, use_gumbel_softmax=tau is not None, gumbel_tau=tau or 1.0, **more)
    network.chunk = 1000  # all pairs together, so that each branch draws its noise at once
    inputs, noises = draw(seed + 100, has_class, has_long), None
    if tau is not None:
        torch.manual_seed(seed + 200)
        noises = [gumbel_noise(torch.empty(len(LENGTHS), IMAGES, PATCHES)).double() for _ in range(2)]
    torch.manual_seed(seed + 200)
    outputs = flattened(network(*inputs))
    probed(seed, outputs).backward()

    weights = {name: value.detach().double().requires_grad_() for name, value in network.named_parameters()}
    exact = copies(inputs, torch.float64)
    expected = flattened(reference.similarities(
        weights, *exact, paper=version != "open", dual=version != "paper single", sparse_ratio=sparse_ratio, aggr_ratio=0.5,
        tau=tau, noises=noises, **more))
    probed(seed, expected).backward()

    assert len(outputs) == len(expected)
    for output, other in zip(outputs, expected, strict=True):
        assert output.shape == other.shape and output.dtype == torch.float32
        assert relative_error(output, other.detach()) < 1e-5
    found = gradients(network, inputs)
    assert_gradients_equal(found, of_leaves(weights, exact))
    return outputs, found


@WITH_CLASS
@WITH_LONG
@EVERY_VERSION
def test_values_masks_and_gradients(version, has_long, has_class):
    outputs, found = assert_like_reference(version, 11, has_class, has_long)
    assert outputs[0].shape == (IMAGES, len(LENGTHS))
    for mask in outputs[1:]:
        assert mask.shape == (len(LENGTHS), IMAGES, PATCHES)
        assert mask.sum(-1).eq(5 * (2 if version == "open" and has_long else 1)).all()
    assert found["input 0"].ne(0).any() and found["input 1"].ne(0).any()


@pytest.mark.parametrize("more", [{"beta": 0.0}, {"beta": 0.5}, {"top_k": 1}, {"top_k": 3}, {"top_k": 12}], ids=str)
@pytest.mark.parametrize("version", ["paper", "paper single"])
def test_beta_and_the_number_of_best(version, more):
    assert_like_reference(version, 12, True, True, **more)


@pytest.mark.parametrize("sparse_ratio", [0.3, 0.7, 1.0])
@EVERY_VERSION
def test_the_sparse_ratio_says_how_many_patches_are_kept(version, sparse_ratio):
    """Where all are, the extra token is zero, has no direction and gets no gradient."""
    outputs, _ = assert_like_reference(version, 13, True, True, sparse_ratio=sparse_ratio)
    assert all(output.isfinite().all() for output in outputs)


@WITH_LONG
@EVERY_VERSION
@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_gumbel_noise_shapes_the_gradient_alone(tau, version, has_long):
    """The noise shapes the gradient alone, which goes through the returned masks too."""
    outputs, found = assert_like_reference(version, 14, True, has_long, tau)
    plain, others = assert_like_reference(version, 14, True, has_long)
    for output, other in zip(outputs, plain, strict=True):
        assert torch.allclose(output, other, atol=1e-6)
    assert all(gradient.isfinite().all() for gradient in found.values())
    if version != "open":  # whose scores have no gradient
        assert all(mask.requires_grad for mask in outputs[1:])
        name = "sparse_net_cap.score_predictor.0.weight"
        assert relative_error(found[name], others[name]) > 0.1


@EVERY_VERSION
def test_evaluation_returns_similarities_alone_and_draws_nothing(version):
    network = build(version, use_gumbel_softmax=True)
    inputs = draw(21)
    similarity, masks = network(*inputs)
    assert isinstance(masks, tuple) == (version != "open")
    network.eval()
    state = torch.get_rng_state()
    found = network(*inputs)
    assert isinstance(found, torch.Tensor) and torch.allclose(found, similarity, atol=1e-6)
    assert torch.equal(torch.get_rng_state(), state)


@EVERY_VERSION
@pytest.mark.parametrize("chunk", [1, 5, 12])
def test_chunks_do_not_change_the_result(chunk, version):
    inputs, network = draw(22), build(version)
    network.chunk = 10**6
    whole = flattened(network(*inputs))
    probed(23, whole).backward()
    others, parts = copies(inputs), build(version)
    parts.chunk = chunk
    found = flattened(parts(*others))
    probed(23, found).backward()
    for one, other in zip(found, whole, strict=True):
        assert one.shape == other.shape and relative_error(one, other.detach()) < 1e-6
    assert_gradients_equal(gradients(parts, others), gradients(network, inputs))


@EVERY_VERSION
@pytest.mark.parametrize("garbage", [float("nan"), 1e30], ids=str)
def test_padded_words_play_no_part(garbage, version):
    """Neither in values nor in gradients, whatever is there."""
    results = []
    for value in (0.0, garbage):
        network, inputs = build(version), draw(24)
        with torch.no_grad():
            for words, lengths in (inputs[1:3], inputs[3:5]):
                for caption, length in zip(words, lengths, strict=True):
                    caption[length:] = value
        outputs = flattened(network(*inputs))
        probed(25, outputs).backward()
        results.append((outputs, gradients(network, inputs)))
        assert inputs[1].grad[1, 1:].eq(0).all() and inputs[1].grad[1, 0].ne(0).any()
    (outputs, expected), (others, found) = results
    assert all(torch.equal(one, other) for one, other in zip(outputs, others, strict=True))
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name


@EVERY_VERSION
@WITH_LONG
def test_every_pair_is_computed_for_itself(has_long, version):
    network, inputs = build(version).eval(), draw(26, has_long=has_long)
    whole = network(*inputs)
    for image in range(IMAGES):
        for caption in range(len(LENGTHS)):
            alone = network(inputs[0][image:image + 1], *(given[caption:caption + 1] for given in inputs[1:]))
            assert alone.shape == (1, 1) and torch.allclose(alone[0, 0], whole[image, caption], atol=1e-5)


@WITH_CLASS
@WITH_LONG
@EVERY_VERSION
def test_the_plain_loop_is_the_same(version, has_long, has_class):
    """Whose time the benchmark compares with."""
    ours, plain = build(version), build(version, make=PlainSEPS)
    plain.load_state_dict(ours.state_dict())
    inputs = draw(27, has_class, has_long, images=5)
    others = copies(inputs)
    outputs, expected = flattened(ours(*inputs)), flattened(plain(*others))
    for output, other in zip(outputs, expected, strict=True):
        assert output.shape == other.shape and relative_error(output, other.detach()) < 1e-5
    probed(28, outputs).backward()
    probed(28, expected).backward()
    assert_gradients_equal(gradients(ours, inputs), gradients(plain, others))
    assert relative_error(ours.eval()(*inputs), plain.eval()(*others).detach()) < 1e-5


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("words", [1, 4, 6])
@pytest.mark.parametrize("paper", [False, True], ids=["open", "paper"])
def test_relevance_as_a_module_as_a_function_and_by_loops(paper, words, masked):
    """The module, its functional form and the loops; masked tokens are as if they were not there."""
    torch.manual_seed(31)
    module = HRPA(paper, top_k=5)
    tokens, text = torch.randn(3, 8, WIDTH).requires_grad_(), torch.randn(words, WIDTH).requires_grad_()
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 1, 1, 1, 0], [1, 0, 0, 1, 0, 0, 1, 0]]) if masked else None
    found = module(tokens, text, mask)
    functional = mask_xattn_one_text(tokens, text, mask, module.relevance_mlp if paper else None, 5)
    assert found.shape == (3, 1) and torch.equal(found, functional)
    probed(32, [found]).backward()

    mlp = {name: value.double() for name, value in module.relevance_mlp.state_dict().items()} if paper else None
    exact = copies([tokens, text], torch.float64)
    expected = torch.stack([reference.relevance(exact[0][place], exact[1], mlp, 5, None if mask is None else mask[place])
                            for place in range(3)])[:, None]
    probed(32, [expected]).backward()
    assert relative_error(found, expected.detach()) < 1e-5
    for leaf, other in zip((tokens, text), exact, strict=True):
        assert relative_error(leaf.grad, other.grad) < 1e-5
    if masked:
        assert tokens.grad[mask == 0].eq(0).all()


def test_the_public_names_make_the_networks_they_name():
    assert SDTPS is CrossSparseAggrNet
    arguments = (WIDTH, PATCHES, 0.5, 0.5)
    for paper, dual, aggregation in ((False, True, TokenAggregation), (True, True, DualTokenAggregation),
                                     (True, False, TokenAggregation)):
        network = CrossSparseAggrNet(*arguments, use_paper_version=paper, use_dual_aggr=dual)
        assert isinstance(network.aggr_net, aggregation)
        assert not paper or isinstance(network.sparse_net_cap, TokenSparse)
    for paper in (False, True):
        made = create_seps_model(embed_size=WIDTH, num_patches=PATCHES, sparse_ratio=0.5, aggr_ratio=0.5,
                                 use_paper_version=paper, use_gumbel_softmax=True, gumbel_tau=2.0)
        expected = CrossSparseAggrNet(*arguments, use_paper_version=paper).state_dict()
        assert isinstance(made, CrossSparseAggrNet) and made.state_dict().keys() == expected.keys()


WRONG = {
    "no word": ({2: torch.tensor([7, 0, 3, 4])}, r"\b0\b"),
    "more words than there are": ({2: torch.tensor([7, 1, 8, 4])}, r"\b8\b.*\b7\b|\b7\b.*\b8\b"),
    "no word of a long caption": ({4: torch.tensor([0, 10, 5, 6])}, r"\b0\b"),
    "more words than a long caption has": ({4: torch.tensor([2, 11, 5, 6])}, r"\b11\b.*\b10\b|\b10\b.*\b11\b"),
    "long captions without lengths": ({4: None}, "long"),
    "lengths without long captions": ({3: None}, "long"),
    "too few lengths": ({2: torch.tensor([7, 1, 3])}, r"\b3\b.*\b4\b|\b4\b.*\b3\b"),
    "too few lengths of long captions": ({4: torch.tensor([2, 10, 5])}, r"\b3\b.*\b4\b|\b4\b.*\b3\b"),
    "too few long captions": ({3: torch.randn(3, 10, WIDTH), 4: torch.tensor([2, 10, 5])}, r"\b3\b.*\b4\b|\b4\b.*\b3\b"),
    "tokens below N": ({0: torch.randn(3, 8, WIDTH)}, r"\b8\b.*\b9\b|\b9\b.*\b8\b"),
    "tokens above N + 1": ({0: torch.randn(3, 11, WIDTH)}, r"\b11\b.*\b9\b|\b9\b.*\b11\b"),
    "tokens of another grid": ({0: torch.randn(3, 16, WIDTH)}, r"\b16\b.*\b9\b|\b9\b.*\b16\b"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_inputs_that_do_not_fit_are_reported(wrong):
    """Before anything is computed, whatever the version."""
    inputs = draw(29)
    changes, told = WRONG[wrong]
    for place, value in changes.items():
        inputs[place] = value
    with pytest.raises(ValueError, match=told):
        build("paper")(*inputs)
