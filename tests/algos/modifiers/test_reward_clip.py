"""Bounds of the total reward of a row."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from purerl.algos import dpo, dr_grpo, gdpo, grpo, ppo, reinforce, remax
from purerl.algos.modifiers import kl_reward
from purerl.algos.modifiers.reward_clip import EXEMPTIONS, Config, modify
from purerl.errors import ConfigError
from purerl.testing import exemptions
from tests.algos.helpers import (
    advantage_losses_and_gradients,
    example,
    gradient_of,
    group_with_rewards,
    with_advantage,
)

from .laws import check_laws


def scores_of(batch: TensorDict) -> torch.Tensor:
    return torch.where(batch["attention_mask"], batch["reward"], 0).sum(-1)


def test_scores_advantage_loss_and_gradient():
    algorithm = modify(Config(low=0.25, high=0.5), reinforce.algorithm())
    batch = example(algorithm, seed=2)
    mask, counted, score = batch["mask"], batch["mask"].any(-1), scores_of(batch)
    expected = torch.minimum(torch.maximum(score, torch.tensor(0.25)), torch.tensor(0.5))
    assert (expected < score).any()
    assert (expected > score).any()
    torch.testing.assert_close(scores_of(with_advantage(algorithm, batch))[counted], expected[counted])

    plain = with_advantage(reinforce.algorithm(), batch)["advantage"]
    advantage = torch.where(mask, plain + (expected - score).unsqueeze(-1), 0)
    actual, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close(actual, advantage)
    torch.testing.assert_close(loss, -torch.where(mask, advantage * batch["logp"], 0).sum() / counted.sum())
    torch.testing.assert_close(
        gradient, gradient_of(lambda logp: -torch.where(mask, advantage * logp, 0) / counted.sum(), batch["logp"])
    )


def test_rewards_are_clipped_before_the_baseline_of_the_group():
    batch = group_with_rewards([30.0, 4.0, -30.0])
    advantage = with_advantage(modify(Config(), dr_grpo.algorithm()), batch)["advantage"]
    mean = (10 + 4 - 10) / 3
    assert advantage[:, -1].tolist() == pytest.approx([10 - mean, 4 - mean, -10 - mean])


def test_the_greedy_score_of_remax_is_clipped_like_the_scores():
    algorithm = modify(Config(low=-0.1, high=0.1), remax.algorithm())
    batch = example(algorithm)
    assert (batch["greedy_score"].abs() > 0.1).any()
    result = with_advantage(algorithm, batch)
    counted = batch["mask"].any(-1)
    assert torch.equal(result["greedy_score"][counted], batch["greedy_score"][counted].clamp(-0.1, 0.1))


def test_the_kl_penalty_is_clipped_if_it_is_listed_later():
    clip, kl, base = Config(low=-0.5, high=0.5), kl_reward.Config(coef=3.0), reinforce.algorithm()
    kl_last, clip_last = modify(clip, kl_reward.modify(kl, base)), kl_reward.modify(kl, modify(clip, base))
    batch = example(kl_last)
    counted, action, score = batch["mask"].any(-1), batch["action"], scores_of(batch)
    penalty = torch.where(action, 3.0 * (batch["old_logp"] - batch["ref_logp"]), 0).sum(-1)
    torch.testing.assert_close(
        scores_of(with_advantage(kl_last, batch))[counted], (score.clamp(-0.5, 0.5) - penalty)[counted]
    )
    torch.testing.assert_close(
        scores_of(with_advantage(clip_last, batch))[counted], (score - penalty).clamp(-0.5, 0.5)[counted]
    )


@pytest.mark.parametrize("module", [dpo, gdpo])
def test_algorithms_without_a_total_reward_are_refused(module):
    with pytest.raises(ConfigError, match="has no effect\n  got:  an algorithm whose advantage does not read 'reward'"):
        modify(Config(), module.algorithm())


def test_the_bounds_are_in_order():
    with pytest.raises(ConfigError, match="low\n  got:  2.0\n  need: a number below high, which is 1\n"):
        Config(low=2.0, high=1.0)


@pytest.mark.parametrize("module", [grpo, ppo, reinforce, remax])
def test_laws(module):
    algorithm = modify(Config(low=-0.5, high=0.5), module.algorithm())
    check_laws(algorithm, exempt={*EXEMPTIONS, *exemptions(module)})
