"""Every public function of tensors of `purerl.algos` under `torch.func.vmap`, over leading axes and over rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from purerl.algos.algebra import Counts
from purerl.algos.estimators.components import component_normalized_advantage, weighted_sum
from purerl.algos.parts import reductions
from tests.algos.public_functions import FUNCTIONS, arguments, results_of

TENSORS = [name for name in FUNCTIONS if any(isinstance(value, Tensor) for value in arguments(name).values())]
ALONE = {"diagnostics.gradient_noise_scale": "it refuses a step of one row"}
ROWS = 5


def _split(name: str, seed: int = 0) -> tuple[dict[str, Tensor], Callable[..., tuple[Tensor, ...]]]:
    """The arguments that are tensors, and the function of these."""
    given = arguments(name, seed=seed)
    tensors = {key: value for key, value in given.items() if isinstance(value, Tensor)}
    return tensors, lambda *values: results_of(name, given | dict(zip(tensors, values, strict=True)))


@pytest.mark.parametrize("name", TENSORS)
def test_leading_axes_and_vmap_equal_a_loop(name):
    (first, function), (second, _) = _split(name), _split(name, seed=1)
    loop = [function(*tensors.values()) for tensors in (first, second)]
    expected = tuple(torch.stack(results) for results in zip(*loop, strict=True))
    stacked = [torch.stack(pair) for pair in zip(first.values(), second.values(), strict=True)]
    for actual in (vmap(function)(*stacked), function(*stacked)):
        torch.testing.assert_close(tuple(actual), expected, equal_nan=True)


@pytest.mark.parametrize("name", [name for name in TENSORS if name not in ALONE])
def test_vmap_over_rows_equals_a_loop_over_batches_of_one_row(name):
    """Inside of `vmap` a row has no axis of rows: [time] for tokens, and a scalar for a value of the row."""
    tensors, function = _split(name)
    dims = tuple(0 if value.shape[:1] == (ROWS,) else None for value in tensors.values())
    if dims.count(None) == len(dims):
        return  # no argument has rows
    mapped = vmap(function, in_dims=dims)(*tensors.values())
    for row in range(ROWS):
        alone = function(
            *(x if dim is None else x[row : row + 1] for x, dim in zip(tensors.values(), dims, strict=True))
        )
        for actual, expected in zip(mapped, alone, strict=True):
            torch.testing.assert_close(actual[row], expected.reshape(actual[row].shape), equal_nan=True)


@pytest.mark.parametrize("name", reductions.__all__)
@pytest.mark.parametrize("row_tokens", [(), None])
def test_counts_without_tokens_of_episodes_can_be_mapped(name, row_tokens):
    settings = {"length": 7.0} if name == "constant_norm" else {}
    loss, mask = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)), torch.ones(2, 3, 4) > 0
    counts = Counts(torch.tensor([12, 6]), torch.tensor([3, 2]), row_tokens)
    reduce = getattr(reductions, name)
    mapped = vmap(lambda *values: reduce(*values, **settings))(loss, mask, counts)
    for k in range(2):
        alone = Counts(counts.tokens[k], counts.rows[k])
        torch.testing.assert_close(mapped[k], reduce(loss[k], mask[k], alone, **settings))


@pytest.mark.slow
@pytest.mark.parametrize("weights", [(), (1.0, 2.0, 0.5)])
def test_components_compile_with_dynamic_shapes(weights):
    for rows in (4, 7):
        components = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
        group, counted = torch.arange(rows) % 2, torch.arange(rows) != 1
        for function, given in (
            (weighted_sum, (components,)),
            (component_normalized_advantage, (components, group, counted)),
        ):
            compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="eager")
            torch.testing.assert_close(compiled(*given, weights=weights), function(*given, weights=weights))
