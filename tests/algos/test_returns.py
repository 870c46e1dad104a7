"""Recurrences over action tokens: what lies between them is as if it were not there; and a trace for each row."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import (
    gae,
    length_adaptive_lambda,
    move_rewards_to_actions,
)


def example(rows: int = 5, time: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards on any token, values, and action tokens with gaps; the last row has none."""
    draw = torch.Generator().manual_seed(0)
    reward, value = (torch.randn(rows, time, generator=draw, dtype=torch.float64) for _ in range(2))
    action = torch.rand(rows, time, generator=draw) < 0.6
    action[-1] = False
    return reward, value, action


def test_dropping_other_tokens_changes_nothing():
    reward, value, action = example()
    for row in range(len(action) - 1):
        keep = action[row]
        full = gae(reward, value, action, discount=0.9, lambda_=0.8)[row, keep]
        short = [x[None, row, keep] for x in (move_rewards_to_actions(reward, action), value, action)]
        torch.testing.assert_close(gae(*short, discount=0.9, lambda_=0.8)[0], full)


def test_values_elsewhere_are_not_read():
    reward, value, action = example()
    poisoned = torch.where(action, value, torch.nan)
    actual = gae(reward, poisoned, action, discount=0.9, lambda_=0.8)
    assert torch.equal(actual, gae(reward, value, action, discount=0.9, lambda_=0.8))


def test_each_row_may_have_a_trace_of_its_own():
    reward, value, action = example()
    trace = length_adaptive_lambda(action, alpha=0.5, dtype=torch.float64)
    lengths = action.sum(-1).tolist()
    assert trace.squeeze(-1).tolist() == pytest.approx([max(0.0, 1 - 2 / max(n, 1)) for n in lengths])
    actual = gae(reward, value, action, discount=0.9, lambda_=trace)
    rows = [
        gae(reward[i : i + 1], value[i : i + 1], action[i : i + 1], discount=0.9, lambda_=float(trace[i]))
        for i in range(len(action))
    ]
    torch.testing.assert_close(actual, torch.cat(rows))
