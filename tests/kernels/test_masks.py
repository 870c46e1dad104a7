"""What a mask says about each row, against what torch says of bools."""

from __future__ import annotations

import pytest
import torch

from purerl.kernels.masks import any_true, count_true, first_true

EQUALS = {
    any_true: lambda mask: mask.any(-1),
    count_true: lambda mask: mask.sum(-1),
    first_true: lambda mask: mask.max(-1).indices,
}


@pytest.fixture(params=[(1, 1), (7, 300), (2, 3, 65), (1, 2**15 - 1), (1, 2**15), (0, 5)], ids=str)
def masks(request: pytest.FixtureRequest) -> list[torch.Tensor]:
    """Of one shape: sparse ones, full ones, empty ones, the last place alone, and a view that is not contiguous."""
    shape = request.param
    random = torch.Generator().manual_seed(0)
    sparse = torch.rand(shape, generator=random) > 0.99
    last = torch.arange(shape[-1]).expand(shape) == shape[-1] - 1
    wide = torch.rand(*shape[:-1], 2 * shape[-1], generator=random) > 0.5
    return [sparse, ~sparse, torch.zeros_like(sparse), torch.ones_like(sparse), last, wide[..., ::2]]


@pytest.mark.parametrize("function", EQUALS, ids=lambda function: function.__name__)
def test_it_is_what_torch_says(function, masks):
    for mask in masks:
        found, expected = function(mask), EQUALS[function](mask)
        assert torch.equal(found, expected)
        assert found.dtype == expected.dtype


@pytest.mark.parametrize("function", EQUALS, ids=lambda function: function.__name__)
def test_it_may_be_mapped_and_compiled(function):
    mask = torch.rand(3, 4, 20, generator=torch.Generator().manual_seed(0)) > 0.8
    expected = EQUALS[function](mask)
    assert torch.equal(torch.func.vmap(function)(mask), expected)
    assert torch.equal(torch.compile(function, backend="eager", fullgraph=True)(mask), expected)


def test_without_time_nothing_is_anywhere():
    none = torch.zeros(3, 0, dtype=torch.bool)
    assert not any_true(none).any()
    assert not count_true(none).any()
    with pytest.raises(IndexError):
        first_true(none)
