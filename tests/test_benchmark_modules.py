"""The benchmark's rows of HDM, ATMoE and SDTPS: what they compare and say, never how long it takes."""
from itertools import count

import pytest
from choices import margins
from numeric import assert_close, tolerance
from test_sdtps import PATH, SHAPES, assert_gradients_equal, build, draw, probed
from tiny import tiny_cfg

from demo_sdtps.benchmarks import modules as benchmark_modules
from demo_sdtps.benchmarks.modules import fusion_rows, sdtps_rows
from demo_sdtps.benchmarks.plain.sdtps_branches import ThreeBranches, plain_name
from demo_sdtps.modeling.fusion import HDM
from demo_sdtps.modeling.sdtps import MultiModalSDTPS

CFG = tiny_cfg("MODEL.HEAD", 4)


@pytest.mark.parametrize(("rows", "module"), [(fusion_rows, HDM), (sdtps_rows, MultiModalSDTPS)])
@pytest.mark.parametrize("error", [1e-3, float("nan")])
def test_outputs_that_differ_are_not_timed(rows, module, error, monkeypatch):
    forward = module.forward

    def wrong(*inputs, **settings):
        first, *others = outputs if isinstance(outputs := forward(*inputs, **settings), tuple) else (outputs,)
        return (first + error, *others) if others else first + error

    monkeypatch.setattr(module, "forward", wrong)
    monkeypatch.setattr(benchmark_modules, "in_turns", lambda *_: pytest.fail("timed"))
    with pytest.raises(RuntimeError, match=r"(HDM \+ ATMoE|SDTPS): ours differs"):
        rows(CFG, quick=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_plain_branches_are_sdtps(shape):
    """Values and gradients; tests/test_sdtps.py compares ours with the version that goes patch by patch."""
    seed, batch, patches, width, *settings = shape
    ours = build(seed, patches, width, *settings)
    plain = ThreeBranches(width, patches, *settings).load_ours(ours.state_dict()).double()
    for attempt in count(100, 100):
        tokens, global_feats = draw(seed + attempt, batch, patches, width)
        with margins() as found:
            outputs = ours(*tokens, *global_feats)
        if min([1.0, *found]) > tolerance(*PATH):  # no patch is chosen by roundings
            break
    exact, exact_feats = ([part.detach().double() for part in parts] for parts in (tokens, global_feats))
    expected = plain(*(part.requires_grad_() for part in exact), *exact_feats)
    for output, plain_output in zip(outputs, expected, strict=True):
        assert_close(output, plain_output, *PATH)
    for each in (outputs, expected):
        probed(seed, each[:3]).backward()
    assert all(tensor.grad is None for tensor in global_feats)
    gradients, plain_gradients = ({f"tokens {index}": tensor.grad for index, tensor in enumerate(parts)}
                                  for parts in (tokens, exact))
    by_name = dict(plain.named_parameters())
    gradients |= {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert_gradients_equal(gradients, plain_gradients | {name: by_name[plain_name(name)].grad for name, _ in
                                                         ours.named_parameters()})
