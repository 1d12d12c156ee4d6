"""How numeric tests draw their inputs, and how close to the reference a result must be.

References are computed in float64 by the slow, obvious way, or golden values. A float32 result differs by roundings, each at
most half a unit in the last place of any sign, so that n of them add up to a few times √n of it (Higham and Mary, 2019). A test
states the lengths of the sums between input and output, from which `tolerance` follows; no tolerance is tried.
"""

import os

import numpy as np
import torch

TEST_SEED = int(os.environ.get("TEST_SEED", 0))
"""Shifts the random inputs of all numeric tests, which pass with any."""

MARGINS = os.environ.get("TEST_MARGINS")
"""File to which every comparison appends its share of the tolerance; see tests/helpers/seeds.py."""

UNIT = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
"""The largest relative error of one rounding."""

FACTOR = 8
"""Times √n of the unit: the bound is exceeded with a probability of 2·exp(-8²/2), 3e-14, for independent roundings."""


def shift_seed(seed: int = 0) -> int:
    """The seed that a test uses in place of `seed`: the same one for TEST_SEED 0."""
    return seed + 1000 * TEST_SEED


def generator(seed: int = 0) -> torch.Generator:
    """A generator of torch's for the inputs of a test."""
    return torch.Generator().manual_seed(shift_seed(seed))


def numpy_generator(seed: int = 0) -> np.random.Generator:
    """A generator of NumPy's for the inputs of a test."""
    return np.random.default_rng(shift_seed(seed))


def tolerance(*lengths: int, dtype: torch.dtype = torch.float32) -> float:
    """The relative error of a result in `dtype` that follows from its input by sums of these lengths, one after another: of a
    matrix product the inner dimension, of a mean, norm or softmax the number of elements, of any other operation 1. It is
    relative to the largest term of the last sum, which a test states (`scale`) where terms cancel."""
    return FACTOR * sum(lengths) ** 0.5 * UNIT[dtype]


def assert_close(
    actual, expected, *lengths: int, dtype: torch.dtype = torch.float32, scale: float | None = None
) -> None:
    """Every element of `actual` is within `tolerance(*lengths)` · `scale` (by default the largest absolute value of `expected`)
    of `expected`, tensors, arrays, lists or numbers of one shape; NaN and infinities are equal."""
    actual, expected = (
        torch.as_tensor(each).detach().cpu().double() for each in (actual, expected)
    )
    assert actual.shape == expected.shape, (
        f"{tuple(actual.shape)} instead of {tuple(expected.shape)}"
    )
    finite = expected.isfinite()
    torch.testing.assert_close(actual[~finite], expected[~finite], equal_nan=True)
    if not finite.any():
        return
    actual, expected = actual[finite], expected[finite]
    if scale is None:
        scale = float(expected.abs().max())
    error = float((actual - expected).abs().max())
    allowed = tolerance(*lengths, dtype=dtype) * scale
    if MARGINS and allowed:
        with open(MARGINS, "a", encoding="utf-8") as file:
            file.write(f"{error / allowed:.3f} {os.environ.get('PYTEST_CURRENT_TEST', '')}\n")
    assert error <= allowed, f"an error of {error:.3g}, where roundings explain {allowed:.3g}"


def assert_order(order, values, allowed: float) -> None:
    """`order` (…, K), indices into `values` (…, N), sorts them in ascending order but for values that differ by `allowed` at
    most; each index is there once, and no other value is smaller than the last one of K by more than that."""
    order, values = torch.as_tensor(order), torch.as_tensor(values).double()
    assert all(len(set(row)) == len(row) for row in order.reshape(-1, order.shape[-1]).tolist())
    sorted_values = values.sort(dim=-1).values[..., : order.shape[-1]]
    assert ((values.gather(-1, order) - sorted_values).abs() <= allowed).all(), (
        "an order that roundings do not explain"
    )


def random_sum(seed, outputs):
    """A scalar that depends on every number of `outputs`, differently."""
    draws = generator(seed)
    return sum(
        (output * torch.randn(output.shape, generator=draws).to(output.dtype)).sum()
        for output in outputs
    )


def with_gradient(loss, tensor):
    leaf = tensor.clone().requires_grad_()
    value = loss(leaf)
    value.backward()
    return value.detach(), leaf.grad
