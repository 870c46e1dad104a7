"""The reference equals the definition. The chunked path equals the reference, in value and gradient."""

from __future__ import annotations

import pytest
import torch

from purerl.kernels.recurrence import reference, reverse_recurrence
from purerl.kernels.recurrence.chunked import CHUNK

TIMES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, CHUNK**2 + 5, 2 * CHUNK**3]
PER_ROW = torch.tensor([[0.0], [1.0], [0.97]], dtype=torch.float64)
DECAYS = [0.0, 1.0, 0.97, 0.3, torch.tensor(0.5, dtype=torch.float64), PER_ROW]


def example(time: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(3, time, generator=torch.Generator().manual_seed(time), dtype=dtype)


def per_step(time: int) -> torch.Tensor:
    """One decay per step. In the first row, each is 0 or 1."""
    decay = torch.rand(3, time, generator=torch.Generator().manual_seed(-time), dtype=torch.float64)
    return torch.cat([decay[:1].round(), decay[1:]])


def value_and_gradient(function, x: torch.Tensor, decay) -> list[torch.Tensor]:
    leaves = [leaf.clone().requires_grad_() for leaf in (x, decay) if isinstance(leaf, torch.Tensor)]
    y = function(*leaves, *() if isinstance(decay, torch.Tensor) else (decay,))
    slopes = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)
    return [y.detach(), *torch.autograd.grad((slopes * y).sum(), leaves, allow_unused=True, materialize_grads=True)]


def test_reference_equals_the_definition():
    x = example(9)
    expected = torch.stack([sum(0.7 ** (s - t) * x[:, s] for s in range(t, 9)) for t in range(9)], -1)
    torch.testing.assert_close(reference.reverse_recurrence(x, 0.7), expected)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("decay", DECAYS, ids=str)
def test_value_and_gradient_equal_the_reference(time, decay):
    x = example(time)
    result = value_and_gradient(reverse_recurrence, x, decay)
    torch.testing.assert_close(result, value_and_gradient(reference.reverse_recurrence, x, decay))


@pytest.mark.parametrize("time", TIMES)
def test_one_decay_per_step(time):
    x, decay = example(time), per_step(time)
    result = value_and_gradient(reverse_recurrence, x, decay)
    torch.testing.assert_close(result, value_and_gradient(reference.reverse_recurrence, x, decay))
    if time > CHUNK:
        assert result[2].any(-1).all()


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99, 1.0])
def test_float32_is_exact_to_a_few_units_in_the_last_place(decay):
    x = example(3000, torch.float32)
    rounded = torch.tensor(decay, dtype=torch.float32).double()
    result, exact = reverse_recurrence(x, decay), reference.reverse_recurrence(x.double(), rounded)
    assert result.dtype == torch.float32
    assert (result - exact).abs().max() <= 4 * torch.finfo(torch.float32).eps * exact.abs().max()


def test_a_decay_of_zero_returns_x_bit_for_bit():
    x = example(100, torch.float32)
    assert torch.equal(reverse_recurrence(x, 0.0), x)


def test_steps_after_a_decay_of_zero_have_no_effect_before_it():
    x, decay = example(50), per_step(50)
    decay[:, 20] = 0
    changed = torch.cat([x[:, :21], example(29)], -1)
    y, y_changed = reverse_recurrence(x, decay), reverse_recurrence(changed, decay)
    assert torch.equal(y[:, :21], y_changed[:, :21])
    assert not torch.equal(y[:, 21:], y_changed[:, 21:])


def test_a_long_row_of_ones_does_not_overflow():
    y = reverse_recurrence(torch.ones(1, 100_000), 0.9999)
    rounded = torch.tensor(0.9999).item()
    torch.testing.assert_close(y[0, 0].item(), (1 - rounded**100_000) / (1 - rounded), rtol=1e-5, atol=0)


def test_vmap_equals_a_loop():
    x = torch.stack([example(70), example(70).flip(0)])
    loop = torch.stack([reverse_recurrence(batch, PER_ROW) for batch in x])
    torch.testing.assert_close(torch.func.vmap(reverse_recurrence, in_dims=(0, None))(x, PER_ROW), loop)
    torch.testing.assert_close(reverse_recurrence(x, PER_ROW), loop)
    mapped = torch.func.vmap(reverse_recurrence)(x, torch.stack([per_step(70)] * 2))
    torch.testing.assert_close(mapped, reverse_recurrence(x, per_step(70)))


@pytest.mark.slow
def test_compile_does_not_change_the_result():
    compiled = torch.compile(reverse_recurrence, fullgraph=True, backend="aot_eager")
    for decay in (0.9, per_step(70)):
        torch.testing.assert_close(compiled(example(70), decay), reverse_recurrence(example(70), decay))
