"""HDM and ATMoE: their shortcuts against seven real attentions and an expert after the other."""

import pytest
import torch
from golden_cases import load_case, relative_error, weight
from numeric import generator, shift_seed

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.checkpoints.names import from_demo
from demo_sdtps.modeling.fusion import HDM, ATMoE
from tests.reference.fusion import MODALITIES_OF, Fusion

GOLDEN, MODES = ("fusion_small", "fusion_hdm_only"), ("eval", "train")
# width, HEAD (None: HDM alone), patches per modality, batch
SHAPES = pytest.mark.parametrize(
    "shape", [(64, 4, 5, 4), (192, 3, 7, 3), (128, None, 4, 1)], ids=str
)


def under_our_names(tensors):
    """DeMo's tensors of a plain fusion, by its names → the same stacked under ours."""
    ours = from_demo({f"generalFusion.{name}": tensor for name, tensor in tensors.items()})
    assert not any(name.startswith("generalFusion.") for name in ours)
    return ours


def make_ours(plain, dropout=0.1):
    """Our modules with the weights of a plain fusion, as {"hdm": …, "atmoe": …}."""
    width = plain.r_token.shape[-1]
    modules = torch.nn.ModuleDict({"hdm": HDM(width, dropout)})
    if plain.moe:
        modules["atmoe"] = ATMoE(width, len(plain.moe.experts))
    modules.to(plain.r_token.dtype).load_state_dict(under_our_names(plain.state_dict()))
    return modules.train(plain.training)


def run(modules, patches, global_feats):
    features = modules["hdm"](patches, global_feats)
    return modules["atmoe"](features) if "atmoe" in modules else features.flatten(1)


def random_tokens(width, count, batch, seed=1, dtype=torch.float64):
    """(patches, globals) by modality, which take gradients."""
    draws = generator(seed)

    def draw(*shape):
        return {
            modality: torch.randn(*shape, generator=draws, dtype=dtype).requires_grad_()
            for modality in MODALITIES
        }

    return draw(batch, count, width), draw(batch, width)


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("mode", MODES)
@torch.no_grad()
def test_golden(name, mode):
    case = load_case(name)
    settings = case.settings
    heads = settings["head"] if settings["ATM"] else None
    plain = Fusion(settings["feat_dim"], heads, settings["dropout"])
    assert list(plain.state_dict()) == list(case.weights)
    plain.load_state_dict(case.weights)
    ours = make_ours(plain.train(mode == "train"), settings["dropout"])
    tokens = [
        {modality: case.arrays[f"{modality}_{kind}"] for modality in MODALITIES}
        for kind in ("cash", "global")
    ]
    expected = case.arrays[f"{mode}_output"]
    for actual in (run(ours, *tokens), plain(*tokens)):
        assert actual.shape == expected.shape
        assert relative_error(actual, expected) < 1e-5


def assert_same_gradients(plain, ours, plain_tokens, our_tokens, plain_output, our_output):
    """Of a random projection of the outputs, at every parameter and input."""
    probe = torch.randn(plain_output.shape, generator=generator(9), dtype=plain_output.dtype)
    for output in (plain_output, our_output):
        (output * probe).sum().backward()
    # The buffers, which have no gradient, make the names a whole checkpoint's.
    gradients = {name: weight.grad for name, weight in plain.named_parameters()}
    expected = under_our_names(plain.state_dict() | gradients)
    actual = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert actual.keys() == expected.keys() - {name for name, _ in ours.named_buffers()}
    for name, gradient in actual.items():
        assert relative_error(gradient, expected[name]) < 1e-9, name
    for theirs, by_modality in zip(plain_tokens, our_tokens, strict=True):
        for modality, tokens in by_modality.items():
            assert relative_error(tokens.grad, theirs[modality].grad) < 1e-9, modality


@pytest.fixture
def same_dropout(monkeypatch):
    """Make ours and the plain version drop the same attention weights: a mask (B, 7, heads, 3L) of zeros and ones."""

    def share(mask):
        length = mask.shape[-1] // len(MODALITIES)
        parts = dict(zip(MODALITIES, mask.split(length, dim=-1), strict=True))
        masks = [
            torch.cat([parts[modality][:, place] for modality in modalities], dim=-1)
            for place, modalities in enumerate(MODALITIES_OF.values())
        ]
        whole = mask.unflatten(-1, (-1, length)).permute(0, 4, 3, 1, 2)  # (B, L, 3, 7, heads)
        masks = iter([*masks, whole])  # of seven attentions, and of ours

        def dropout(weights, p=0.5, training=True, inplace=False):
            assert (p, training) == (0.1, True)
            return weights * next(masks).reshape(weights.shape).to(weights.dtype) / (1 - p)

        monkeypatch.setattr(torch.nn.functional, "dropout", dropout)

    return share


@SHAPES
@pytest.mark.parametrize("mode, dropout", [("eval", 0.0), ("train", 0.0), ("train", 0.1)])
def test_equals_the_plain_version(shape, mode, dropout, same_dropout):
    """Values, gradients, and what a training forward leaves in the running statistics; with dropout of the same weights."""
    width, heads, count, batch = shape
    plain = Fusion(width, heads, dropout)
    # far from their start, also norms and running statistics
    for name, tensor in plain.state_dict().items():
        tensor.copy_(torch.from_numpy(weight(name, tuple(tensor.shape), shift_seed())))
    plain.double().train(mode == "train")
    ours = make_ours(plain, dropout)
    plain_tokens, our_tokens = (random_tokens(width, count, batch) for _ in range(2))
    if dropout:
        shape = batch, 7, width // 64, 3 * (1 + count)
        same_dropout(torch.rand(shape, generator=generator(3)) > 0.1)
    expected, actual = plain(*plain_tokens), run(ours, *our_tokens)
    assert actual.shape == (batch, 7 * width)
    assert relative_error(actual, expected.detach()) < 1e-10
    assert_same_gradients(plain, ours, plain_tokens, our_tokens, expected, actual)

    expected_state, state = under_our_names(plain.state_dict()), ours.state_dict()
    for name, tensor in state.items():
        assert torch.allclose(tensor, expected_state[name], rtol=1e-12), name
    if heads:
        assert state["atmoe.norm.num_batches_tracked"] == 7 + (mode == "train")


def test_parameters_start_as_torchs_layers_do():
    """The seven attentions and 28 experts as torch's own, the queries as C^-0.5·normal: deviations to six standard errors."""
    torch.manual_seed(shift_seed())
    plain, hdm, atmoe = Fusion(256, 4), HDM(256), ATMoE(256, 4)
    ours = {f"hdm.{name}": tensor for name, tensor in hdm.state_dict().items()}
    ours |= {f"atmoe.{name}": tensor for name, tensor in atmoe.state_dict().items()}
    theirs = under_our_names(plain.state_dict())
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.shape == theirs[name].shape, name
        if theirs[name].unique().numel() == 1:  # biases of zeros, the norms
            assert torch.equal(tensor, theirs[name]), name
        else:
            expected = pytest.approx(float(theirs[name].std()), rel=6 / tensor.numel() ** 0.5)
            assert float(tensor.std()) == expected, name
