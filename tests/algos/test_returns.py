"""Recurrences over action tokens, against their definitions as double sums."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import (
    discounted_returns,
    fold_reward,
    gae,
    length_adaptive_lambda,
    vtrace_advantage,
    vtrace_target,
)

PAIRS = [(1.0, 1.0), (1.0, 0.95), (0.9, 0.5), (0.9, 0.0), (0.0, 1.0)]
SETTINGS = [dict(discount=discount, lambda_=lambda_) for discount, lambda_ in PAIRS]


def example(rows: int = 5, time: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards on any token, values, and action tokens with gaps; the last row has none."""
    draw = torch.Generator().manual_seed(0)
    reward, value = (torch.randn(rows, time, generator=draw, dtype=torch.float64) for _ in range(2))
    action = torch.rand(rows, time, generator=draw) < 0.6
    action[-1] = False
    return reward, value, action


def folded(reward: list[float], places: list[int]) -> list[float]:
    """By the rule: to the action token before, or to the first."""
    found = dict.fromkeys(places, 0.0)
    for t, r in enumerate(reward):
        found[max((p for p in places if p <= t), default=places[0])] += r
    return list(found.values())


def advantage_by_definition(reward: list[float], value: list[float], discount: float, lambda_: float) -> list[float]:
    """A_t = sum_k (discount lambda)^k delta_{t+k}."""
    delta = [r + discount * after - v for r, v, after in zip(reward, value, [*value[1:], 0.0], strict=True)]
    return [sum((discount * lambda_) ** k * d for k, d in enumerate(delta[t:])) for t in range(len(delta))]


@pytest.mark.parametrize("setting", SETTINGS)
def test_gae_is_its_double_sum_over_action_tokens(setting):
    reward, value, action = example()
    found = gae(reward, value, action, **setting)
    assert not found[~action].any()
    for row in range(len(action) - 1):
        places = action[row].nonzero().squeeze(-1).tolist()
        rewards = folded(reward[row].tolist(), places)
        expected = advantage_by_definition(rewards, value[row, places].tolist(), **setting)
        assert found[row, places].tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_gae_by_hand():
    # delta = [0 + 2 - 1, 4 + 0 - 2] = [1, 2]; A = [1 + 2 / 2, 2]
    yes = torch.tensor([[True, True]])
    found = gae(torch.tensor([[0.0, 4.0]]), torch.tensor([[1.0, 2.0]]), yes, discount=1.0, lambda_=0.5)
    assert found.tolist() == [[2.0, 2.0]]


def test_with_lambda_one_it_is_the_return_less_the_value():
    reward, value, action = example()
    found = gae(reward, value, action, discount=0.9, lambda_=1.0)
    returns = discounted_returns(reward, action, discount=0.9)
    torch.testing.assert_close(found, torch.where(action, returns - value, 0))


def test_with_discount_one_the_first_return_is_the_row():
    reward, _, action = example()
    first = action & (action.cumsum(-1) == 1)
    returns = discounted_returns(reward, action, discount=1.0)
    torch.testing.assert_close(returns[first], reward.sum(-1)[:-1])


def test_tool_tokens_are_stepped_over():
    action = torch.tensor([[False, True, False, False, True, False]])
    reward = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0, 8.0]])
    assert discounted_returns(reward, action, discount=0.5).tolist() == [[0.0, 5.0, 0.0, 0.0, 8.0, 0.0]]


def test_dropping_other_tokens_changes_nothing():
    reward, value, action = example()
    for row in range(len(action) - 1):
        keep = action[row]
        full = gae(reward, value, action, discount=0.9, lambda_=0.8)[row, keep]
        short = [x[None, row, keep] for x in (fold_reward(reward, action), value, action)]
        torch.testing.assert_close(gae(*short, discount=0.9, lambda_=0.8)[0], full)


def test_values_elsewhere_are_not_read():
    reward, value, action = example()
    poisoned = torch.where(action, value, torch.nan)
    found = gae(reward, poisoned, action, discount=0.9, lambda_=0.8)
    assert torch.equal(found, gae(reward, value, action, discount=0.9, lambda_=0.8))


def test_rewards_before_the_first_action_go_to_it():
    action = torch.tensor([[False, False, True, True, False]])
    folded = fold_reward(torch.tensor([[1.0, 2.0, 4.0, 8.0, 16.0]]), action)
    assert folded.tolist() == [[0.0, 0.0, 7.0, 24.0, 0.0]]


def test_a_row_without_actions_has_nobody_to_reward():
    assert not fold_reward(torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.bool)).any()


# --- from another policy -----------------------------------------------------------------------------------------


def policies(action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    logp, rollout_logp = (-torch.rand(action.shape, generator=draw, dtype=torch.float64) * 2 for _ in range(2))
    return logp, rollout_logp


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("rho_clip", "trace_clip"), [(1.0, 1.0), (2.0, 0.5)])
def test_vtrace_is_its_sum_of_products(setting, rho_clip, trace_clip):
    reward, value, action = example()
    logp, rollout_logp = policies(action)
    clips = dict(rho_clip=rho_clip, trace_clip=trace_clip)
    target = vtrace_target(reward, value, logp, rollout_logp, action, **setting, **clips)
    advantage = vtrace_advantage(
        reward, value, target, logp, rollout_logp, action, discount=setting["discount"], rho_clip=rho_clip
    )
    assert not target[~action].any()
    assert not advantage[~action].any()
    for row in range(len(action) - 1):
        places = action[row].nonzero().squeeze(-1).tolist()
        rewards, values = folded(reward[row].tolist(), places), value[row, places].tolist()
        ratio = (logp - rollout_logp)[row, places].exp().tolist()
        rho, c = ([min(x, clip) for x in ratio] for clip in (rho_clip, trace_clip))
        discount, v = setting["discount"], []
        for t in range(len(places)):
            total, product = values[t], 1.0
            for s in range(t, len(places)):
                following = values[s + 1] if s + 1 < len(places) else 0.0
                total += product * rho[s] * (rewards[s] + discount * following - values[s])
                product *= discount * setting["lambda_"] * c[s]
            v.append(total)
        torch.testing.assert_close(target[row, places].tolist(), v)
        expected = [
            p * (r + discount * after - now)
            for p, r, after, now in zip(rho, rewards, [*v[1:], 0.0], values, strict=True)
        ]
        torch.testing.assert_close(advantage[row, places].tolist(), expected)


@pytest.mark.parametrize("setting", SETTINGS)
def test_vtrace_on_policy_is_the_lambda_return(setting):
    reward, value, action = example()
    logp, _ = policies(action)
    target = vtrace_target(reward, value, logp, logp, action, **setting, rho_clip=1.0, trace_clip=1.0)
    expected = gae(reward, value, action, **setting) + torch.where(action, value, 0)
    torch.testing.assert_close(target, expected)


def test_each_row_may_have_a_trace_of_its_own():
    reward, value, action = example()
    trace = length_adaptive_lambda(action, alpha=0.5, dtype=torch.float64)
    lengths = action.sum(-1).tolist()
    assert trace.squeeze(-1).tolist() == pytest.approx([max(0.0, 1 - 2 / max(n, 1)) for n in lengths])
    found = gae(reward, value, action, discount=0.9, lambda_=trace)
    rows = [
        gae(reward[i : i + 1], value[i : i + 1], action[i : i + 1], discount=0.9, lambda_=float(trace[i]))
        for i in range(len(action))
    ]
    torch.testing.assert_close(found, torch.cat(rows))
