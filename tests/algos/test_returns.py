"""Recurrences over action tokens: other tokens are skipped, and lambda can differ between rows."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import gae, length_adaptive_lambda, move_rewards_to_actions


def example(rows: int = 5, time: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards on all tokens, values, and a mask of action tokens with gaps. The last row has no action tokens."""
    draw = torch.Generator().manual_seed(0)
    reward, value = (torch.randn(rows, time, generator=draw, dtype=torch.float64) for _ in range(2))
    action = torch.rand(rows, time, generator=draw) < 0.6
    action[-1] = False
    return reward, value, action


def test_gae_of_a_compacted_row_equals_gae_of_the_full_row():
    reward, value, action = example()
    for row in range(len(action) - 1):
        is_action = action[row]
        full = gae(reward, value, action, discount=0.9, lambda_=0.8)[row, is_action]
        compacted = [x[None, row, is_action] for x in (move_rewards_to_actions(reward, action), value, action)]
        torch.testing.assert_close(gae(*compacted, discount=0.9, lambda_=0.8)[0], full)


def test_gae_ignores_values_outside_of_actions():
    reward, value, action = example()
    with_nan = torch.where(action, value, torch.nan)
    actual = gae(reward, with_nan, action, discount=0.9, lambda_=0.8)
    assert torch.equal(actual, gae(reward, value, action, discount=0.9, lambda_=0.8))


def test_gae_accepts_one_lambda_per_row():
    reward, value, action = example()
    lambda_ = length_adaptive_lambda(action, alpha=0.5, dtype=torch.float64)
    lengths = action.sum(-1).tolist()
    assert lambda_.squeeze(-1).tolist() == pytest.approx([max(0.0, 1 - 2 / max(n, 1)) for n in lengths])
    actual = gae(reward, value, action, discount=0.9, lambda_=lambda_)
    rows = [
        gae(reward[i : i + 1], value[i : i + 1], action[i : i + 1], discount=0.9, lambda_=float(lambda_[i]))
        for i in range(len(action))
    ]
    torch.testing.assert_close(actual, torch.cat(rows))
