"""The reductions of masks equal the torch expressions for bool tensors."""

from __future__ import annotations

import pytest
import torch

from purerl.kernels.masks import any_true, count_true, first_true

TORCH_EXPRESSIONS = {
    any_true: lambda mask: mask.any(-1),
    count_true: lambda mask: mask.sum(-1),
    first_true: lambda mask: mask.max(-1).indices,
}


@pytest.fixture(params=[(1, 1), (7, 300), (2, 3, 65), (1, 2**15 - 1), (1, 2**15), (0, 5)], ids=str)
def masks(request: pytest.FixtureRequest) -> list[torch.Tensor]:
    """Masks of one shape: sparse, dense, all False, all True, only the last step, and a view that is not contiguous."""
    shape = request.param
    random = torch.Generator().manual_seed(0)
    sparse = torch.rand(shape, generator=random) > 0.99
    last = torch.arange(shape[-1]).expand(shape) == shape[-1] - 1
    double_length = torch.rand(*shape[:-1], 2 * shape[-1], generator=random) > 0.5
    return [sparse, ~sparse, torch.zeros_like(sparse), torch.ones_like(sparse), last, double_length[..., ::2]]


@pytest.mark.parametrize("function", TORCH_EXPRESSIONS, ids=lambda function: function.__name__)
def test_values_and_dtypes_equal_torch(function, masks):
    for mask in masks:
        result, expected = function(mask), TORCH_EXPRESSIONS[function](mask)
        assert torch.equal(result, expected)
        assert result.dtype == expected.dtype


@pytest.mark.slow
@pytest.mark.parametrize("function", TORCH_EXPRESSIONS, ids=lambda function: function.__name__)
def test_vmap_and_compile_do_not_change_the_result(function):
    mask = torch.rand(3, 4, 20, generator=torch.Generator().manual_seed(0)) > 0.8
    expected = TORCH_EXPRESSIONS[function](mask)
    assert torch.equal(torch.func.vmap(function)(mask), expected)
    assert torch.equal(torch.compile(function, backend="eager", fullgraph=True)(mask), expected)


def test_a_time_of_zero_has_no_true_step():
    empty = torch.zeros(3, 0, dtype=torch.bool)
    assert not any_true(empty).any()
    assert not count_true(empty).any()
    with pytest.raises(IndexError):
        first_true(empty)
