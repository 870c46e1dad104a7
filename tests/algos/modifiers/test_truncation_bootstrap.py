"""Returns of truncated rows that continue with the critic's estimate."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from purerl.algos import decoupled_ppo, grpo, pf_ppo, ppo, reinforce, vapo
from purerl.algos.modifiers import bypass, mask_truncated, reward_normalization
from purerl.algos.modifiers.truncation_bootstrap import Config, modify
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.testing import exemptions
from tests.algos.helpers import advantage_losses_and_gradients, example, with_advantage

from .laws import check_laws

DISCOUNT, LAMBDA = 0.9, 0.7


def small_ppo():
    return ppo.algorithm(ppo.Config(discount=DISCOUNT, lambda_=LAMBDA))


def direct_gae(batch: TensorDict, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The positions of the action tokens of a row and their advantages, by a loop over the action tokens."""
    times = batch["action"][row].nonzero()[:, 0]
    reward = torch.zeros(len(times), dtype=torch.float64)
    for t in batch["attention_mask"][row].nonzero()[:, 0].tolist():
        reward[max(int((times <= t).sum()) - 1, 0)] += batch["reward"][row, t]
    value = batch["old_value"][row][times]
    following = torch.cat([value[1:], value[-1:] * batch["truncated"][row]])
    advantage, result = torch.zeros((), dtype=torch.float64), []
    for k in reversed(range(len(times))):
        delta = reward[k] + DISCOUNT * following[k] - value[k]
        advantage = delta + DISCOUNT * LAMBDA * advantage
        result.insert(0, advantage)
    return times, torch.stack(result)


@pytest.mark.parametrize("seed", range(3))
def test_returns_loss_and_gradient(seed):
    """The value after the last token of a truncated row is that of the last token, and 0 in other rows."""
    algorithm = modify(Config(), small_ppo())
    batch = example(algorithm, seed=seed)
    mask = batch["mask"]
    target = torch.zeros_like(batch["reward"])
    for row in mask.any(-1).nonzero()[:, 0].tolist():
        times, advantage = direct_gae(batch, row)
        target[row, times] = advantage + batch["old_value"][row, times]
    target = torch.where(mask, target, 0)
    torch.testing.assert_close(with_advantage(algorithm, batch)["returns"], target)

    value, old = batch["value"].clone().requires_grad_(), batch["old_value"]
    clipped = old + (value - old).clamp(-0.5, 0.5)
    squared = torch.maximum((value - target).square(), (clipped - target).square())
    loss = torch.where(mask, squared, 0).sum() / 2 / mask.sum()
    _, actual, gradient, *_ = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close(actual, loss.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(loss, value)[0])


@pytest.mark.parametrize("module", [ppo, vapo, pf_ppo, decoupled_ppo])
def test_rows_that_are_not_truncated_keep_their_returns(module):
    algorithm = modify(Config(), module.algorithm())
    batch = example(algorithm, seed=1)
    none = with_fields(batch, truncated=torch.zeros_like(batch["truncated"]))
    for actual, expected in zip(
        advantage_losses_and_gradients(algorithm, none),
        advantage_losses_and_gradients(module.algorithm(), none),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    changed, base = (with_advantage(a, batch)["returns"] for a in (algorithm, module.algorithm()))
    is_changed = (changed != base).any(-1)
    assert is_changed.any()
    assert not is_changed[~batch["truncated"]].any()


@pytest.mark.parametrize(("module", "field"), [(vapo, "correct"), (pf_ppo, "copies")])
def test_the_score_of_a_row_does_not_contain_the_estimate(module, field):
    algorithm = modify(Config(), module.algorithm())
    batch = with_fields(example(algorithm), truncated=torch.ones(6, dtype=torch.bool))
    batch = with_fields(batch, old_value=100 + batch["old_value"])
    assert torch.equal(with_advantage(algorithm, batch)[field], with_advantage(module.algorithm(), batch)[field])


@pytest.mark.parametrize("module", [grpo, reinforce])
def test_an_algorithm_without_a_critic_is_refused(module):
    with pytest.raises(ConfigError) as caught:
        modify(Config(), module.algorithm())
    assert str(caught.value) == (
        "has no effect\n"
        "  got:  an algorithm whose advantage does not read 'old_value'\n"
        "  need: an algorithm with a critic, as PPO"
    )


@pytest.mark.parametrize("base", [ppo.algorithm(ppo.Config(discount=0.0)), modify(Config(), ppo.algorithm())])
def test_a_discount_of_0_and_a_second_bootstrap_are_refused(base):
    with pytest.raises(ConfigError) as caught:
        modify(Config(), base)
    assert str(caught.value) == (
        "has no effect\n"
        "  got:  an algorithm with another estimator\n"
        "  need: returns with a discount above 0 that end at the last token"
    )


@pytest.mark.parametrize("module", [ppo, vapo, pf_ppo])
def test_laws(module):
    check_laws(modify(Config(), module.algorithm()), exempt=exemptions(module))


def test_with_normalized_rewards_the_estimate_is_not_normalized():
    """The estimate is added by the estimator, after the rewards are normalized, in either order."""
    norm = reward_normalization.Config()
    first = modify(Config(), reward_normalization.modify(norm, small_ppo()))
    second = reward_normalization.modify(norm, modify(Config(), small_ppo()))
    batch = example(first, seed=2)
    normalized, both = (
        with_advantage(algorithm, batch)["returns"]
        for algorithm in (reward_normalization.modify(norm, small_ppo()), first)
    )
    bootstrapped, base = (with_advantage(a, batch)["returns"] for a in (modify(Config(), small_ppo()), small_ppo()))
    torch.testing.assert_close(both - normalized, bootstrapped - base)
    torch.testing.assert_close(with_advantage(second, batch)["returns"], both)


def test_it_changes_the_estimator_inside_of_other_modifiers():
    bypassed = bypass.modify(bypass.Config(), small_ppo())
    batch = example(modify(Config(), bypassed), seed=2)
    actual, expected = (with_advantage(modify(Config(), a), batch)["returns"] for a in (bypassed, small_ppo()))
    assert torch.equal(actual, expected)


def test_together_with_mask_truncated_it_is_refused_in_either_order():
    with pytest.raises(ConfigError) as caught:
        modify(Config(), mask_truncated.modify(mask_truncated.Config(), ppo.algorithm()))
    assert str(caught.value) == (
        "has no effect\n"
        "  got:  an algorithm that masks truncated rows\n"
        "  need: an algorithm in which they have an effect\n"
        "  do:   remove mask_truncated or truncation_bootstrap"
    )
    with pytest.raises(ConfigError) as caught:
        mask_truncated.modify(mask_truncated.Config(), modify(Config(), ppo.algorithm()))
    assert str(caught.value) == (
        "cannot be used\n"
        "  got:  returns of truncated rows that are bootstrapped\n"
        "  need: returns that are not bootstrapped\n"
        "  do:   remove mask_truncated or truncation_bootstrap"
    )
