"""Values in 16 bits, and values whose squares overflow: sums and small constants have no silent effect."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from purerl.algos import (
    constant_norm,
    optimal_token_advantage,
    sequence_mean_of_token_mean,
    sequence_mean_of_token_sum,
    token_mean,
    whiten,
    whiten_rows,
)
from purerl.algos.algebra import Counts
from purerl.algos.parts.weights import binary_kl
from purerl.algos.parts.whiten import center, standard_deviation

NARROW = [torch.float16, torch.bfloat16]
SCALES = [1e-30, 1e-3, 1.0, 1e10, 1e20, 1e30]


@pytest.mark.parametrize("dtype", NARROW)
def test_equal_values_are_whitened_to_zero_with_a_gradient_of_zero(dtype: torch.dtype) -> None:
    x, mask = torch.full((2, 3), 0.3, dtype=dtype, requires_grad=True), torch.ones(2, 3) > 0
    for actual in (whiten(x, mask), center(x, mask), standard_deviation(x, mask), whiten_rows(x[0], mask[0])):
        assert actual.dtype == dtype
        assert not actual.any()
        assert not torch.autograd.grad(actual.sum(), x)[0].any()


@pytest.mark.parametrize("scale", SCALES)
def test_whiten_of_large_and_small_values(scale: float) -> None:
    x = torch.tensor([[scale, scale, -scale]], dtype=torch.float32)
    expected = torch.tensor([[1.0, 1.0, -2.0]]) / 3**0.5
    torch.testing.assert_close(whiten(x, x != 0, eps=0.0), expected)
    torch.testing.assert_close(standard_deviation(x, x != 0), torch.tensor(scale * (4 / 3) ** 0.5))


def test_whiten_of_float16_values_whose_sum_overflows() -> None:
    x = torch.tensor([[6e4, 6e4, -6e4]] * 100)
    torch.testing.assert_close(whiten(x.half(), x != 0), whiten(x, x != 0).half())


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        (token_mean, 1.0),
        (sequence_mean_of_token_mean, 1.0),
        (sequence_mean_of_token_sum, 1024.0),
        (partial(constant_norm, length=2048), 0.5),
    ],
)
def test_reductions_add_up_in_float32(dtype: torch.dtype, reduce: partial[torch.Tensor], expected: float) -> None:
    loss = torch.ones(150, 1024, dtype=dtype, requires_grad=True)
    for counts in (Counts(torch.tensor(150 * 1024), torch.tensor(150)), Counts(150 * 1024, 150)):  # pyright: ignore[reportArgumentType]
        actual = reduce(loss, loss > 0, counts)
        assert (actual.dtype, actual.item()) == (dtype, expected)
        [gradient] = torch.autograd.grad(actual, loss)
        torch.testing.assert_close(gradient, torch.full_like(gradient, expected / (150 * 1024)))


@pytest.mark.parametrize("dtype", NARROW)
def test_a_policy_that_is_certain_has_finite_values(dtype: torch.dtype) -> None:
    one, mask = torch.ones(2, 1, dtype=dtype), torch.ones(2, 1) > 0
    returns = torch.tensor([[1.0], [0.0]], dtype=dtype)
    actual = optimal_token_advantage(returns, one.log(), one, mask, mask, torch.tensor([4, 4]))
    assert actual.tolist() == [[0.0], [-1.0]]
    assert binary_kl(one.log(), one.log()).tolist() == [[0.0], [0.0]]
