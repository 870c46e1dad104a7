"""`uniform` and `choose`, compared with implementations in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purerl.backends.sampling import choose, signed, uniform


def plain_mix(bits: int) -> int:
    """The finalizer of splitmix64, with Python's unbounded integers."""
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
    return bits ^ (bits >> 31)


@settings(deadline=None)
@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**40))
def test_uniform_is_splitmix64(seed, index):
    bits = plain_mix((plain_mix(seed % 2**64) + index * 0x9E3779B97F4A7C15) % 2**64)
    number = uniform(torch.tensor([signed(seed)]), torch.tensor([index])).item()
    assert number == (2 * (bits >> 41) + 1) / 2**24
    assert 0 < number < 1


def test_finalizer_equals_the_published_one():
    """The first outputs of splitmix64 from state 0, as printed by the C program of its authors."""
    states = [k * 0x9E3779B97F4A7C15 % 2**64 for k in (1, 2, 3)]
    assert [plain_mix(state) for state in states] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("shape", [(1, 40_000), (40_000, 1), (200, 200)])
def test_uniform_is_uniform_along_and_across_seeds(shape):
    """A distance over 0.02 has probability 2 exp(-2 * 40,000 * 0.02**2) (Dvoretzky-Kiefer-Wolfowitz inequality)."""
    numbers = uniform(torch.arange(shape[0])[:, None], torch.arange(shape[1])).flatten().sort().values
    assert (numbers - torch.linspace(0, 1, 40_000)).abs().max() < 0.02
    square = uniform(torch.arange(200)[:, None], torch.arange(200))
    for first, second in ((square[:, 1:], square[:, :-1]), (square[1:], square[:-1])):
        # Six standard errors.
        assert torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1].abs() < 0.03


def has_finite_logit(logits):
    return max(logits) > -math.inf


@settings(deadline=None)
@given(
    st.lists(st.floats(-30, 30, width=32) | st.just(-math.inf), min_size=1, max_size=9).filter(has_finite_logit),
    st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    st.integers(0, 2**23 - 1).map(lambda k: (2 * k + 1) / 2**24),
)
def test_choose_inverts_the_cumulative_distribution(logits, temperature, number):
    scaled = torch.tensor(logits, dtype=torch.float64) / (temperature or 1.0)
    logp = scaled.log_softmax(-1)
    token, token_logp = choose(torch.tensor([logits]), torch.tensor([temperature]), torch.tensor([number]))
    below = float(logp[: int(token)].exp().sum())
    assert token_logp.item() == pytest.approx(float(logp[token]), abs=1e-5)
    assert logp[token] > -math.inf
    if temperature == 0:
        assert logits[int(token)] == max(logits)
    else:
        assert below - 1e-5 <= number <= below + float(logp[token].exp()) + 1e-5


@pytest.mark.parametrize("number", [2.0**-24, 1 - 2.0**-24])
def test_token_of_probability_0_is_never_sampled(number):
    logits = torch.full((1, 5), -math.inf)
    logits[0, 1:3] = 0.0
    logits[0, 3] = -200.0  # 0 in float32
    token, _ = choose(logits, torch.ones(1), torch.tensor([number]))
    assert token.item() == (1 if number < 0.5 else 2)


def test_equal_rows_of_a_batch_get_equal_tokens():
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0)).expand(7, -1)
    token, logp = choose(logits, torch.tensor([0.0, 1, 1, 0.5, 2, 1, 1]), torch.full((7,), 0.6))
    assert len({token[row].item() for row in (1, 2, 5, 6)}) == 1
    assert logp[1] == logp[6]


def test_nan_logits_give_a_valid_token_with_logp_nan():
    token, logp = choose(torch.tensor([[0.0, math.nan, 1.0]]), torch.ones(1), torch.tensor([0.5]))
    assert 0 <= token.item() < 3
    assert logp.isnan().all()


def test_greedy_decoding_takes_the_first_of_equal_logits():
    assert choose(torch.tensor([[1.0, 3.0, 3.0]]), torch.zeros(1), torch.tensor([0.9]))[0].item() == 1
