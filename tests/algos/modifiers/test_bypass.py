"""The modifier `bypass`: the rollout policy in place of the old policy, refusals and laws."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import (
    decoupled_ppo,
    deepseek_v3_2,
    gae,
    grpo,
    icepop,
    m2po,
    pf_ppo,
    ppo,
    prime,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
    spin,
    vespo,
    whiten,
)
from purerl.algos.algebra import stages_of
from purerl.algos.modifiers import advantage_whitening, bypass, kl_loss, kl_reward
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.testing import fields_of
from tests.algos.helpers import advantage_losses_and_gradients, example, gradient_of, with_advantage

from .laws import check_laws


def bypassed(algorithm):
    return bypass.modify(bypass.Config(), algorithm)


def test_loss_and_gradient_use_the_ratio_to_the_rollout_policy():
    algorithm = bypassed(grpo.algorithm())
    assert "old_logp" not in fields_of(algorithm)
    batch = example(algorithm)
    mask, advantage = batch["mask"], with_advantage(grpo.algorithm(), batch)["advantage"]

    def loss_by_hand(logp):
        ratio = (logp - batch["rollout_logp"]).exp()
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
        return torch.stack(
            [row[counted].mean() for row, counted in zip(loss, mask, strict=True) if counted.any()]
        ).mean()

    _, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close(loss, loss_by_hand(batch["logp"]))
    torch.testing.assert_close(gradient, gradient_of(loss_by_hand, batch["logp"]))


# --- composition -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_last", [True, False])
def test_a_kl_penalty_in_the_reward_is_bypassed_if_bypass_comes_later(is_last):
    penalty = kl_reward.Config(coef=0.5)
    first = kl_reward.modify(penalty, ppo.algorithm()) if is_last else bypassed(ppo.algorithm())
    algorithm = bypassed(first) if is_last else kl_reward.modify(penalty, first)
    batch = example(algorithm)
    assert ("old_logp" in batch.keys()) != is_last
    policy = batch["rollout_logp" if is_last else "old_logp"]
    action = batch["action"] & batch["mask"].any(-1, keepdim=True)
    reward = torch.where(batch["attention_mask"] & batch["mask"].any(-1, keepdim=True), batch["reward"], 0)
    reward = reward - torch.where(action, 0.5 * (policy - batch["ref_logp"]), 0)
    advantage = whiten(gae(reward, batch["old_value"], action, discount=1.0, lambda_=0.95), batch["mask"])
    torch.testing.assert_close(with_advantage(algorithm, batch)["advantage"], advantage)


@pytest.mark.parametrize("module", [pf_ppo, ppo, prime, reinforce_plus_plus])
def test_a_later_whitening_replaces_only_the_whitening(module):
    whitening = advantage_whitening.Config(eps=1e-3, ddof=0)
    bypass_first = advantage_whitening.modify(whitening, bypassed(module.algorithm()))
    assert bypass_first == bypassed(advantage_whitening.modify(whitening, module.algorithm()))
    batch = example(bypass_first)
    tokens = with_advantage(bypass_first, batch)["advantage"][batch["mask"]]
    torch.testing.assert_close(tokens.std(correction=0), torch.ones_like(tokens[0]), rtol=5e-3, atol=0)


def test_a_later_whitening_with_the_settings_of_the_algorithm_has_no_effect():
    with pytest.raises(ConfigError, match="already whitened"):
        advantage_whitening.modify(advantage_whitening.Config(), bypassed(ppo.algorithm()))


def test_a_later_penalty_of_the_advantage_comes_before_the_whitening():
    penalty = kl_reward.Config(position="advantage", coef=0.5)
    base = reinforce_plus_plus_baseline.algorithm()
    later = kl_reward.modify(penalty, bypassed(base))
    assert stages_of(later.advantage)[-1] == stages_of(base.advantage)[-1]


def test_a_term_that_comes_later_reads_the_true_old_logp():
    penalty = kl_loss.Config(coef=0.5, estimator="importance_k3")
    first, later = kl_loss.modify(penalty, grpo.algorithm()), bypassed(grpo.algorithm())
    before, after = bypassed(first), kl_loss.modify(penalty, later)
    assert "old_logp" not in fields_of(before)
    batch = example(after)
    x, mask = batch["logp"] - batch["ref_logp"], batch["mask"]
    penalties = []
    for algorithm, policy in ((before, "rollout_logp"), (after, "old_logp")):
        kl = 0.5 * (batch["logp"] - batch[policy]).exp() * ((-x).exp() + x - 1)
        expected = torch.stack([kl[i][mask[i]].mean() for i in range(len(mask)) if mask[i].any()]).mean()
        added = advantage_losses_and_gradients(algorithm, batch)[1] - advantage_losses_and_gradients(later, batch)[1]
        torch.testing.assert_close(added, expected)
        penalties.append(float(expected))
    assert penalties[0] != pytest.approx(penalties[1])


def test_the_values_of_old_logp_have_no_effect():
    algorithm = bypassed(ppo.algorithm())
    batch = example(algorithm)
    other = with_fields(batch, old_logp=torch.randn_like(batch["logp"]))
    results = [advantage_losses_and_gradients(algorithm, each) for each in (batch, other)]
    torch.testing.assert_close(*results, rtol=0, atol=0)


# --- refusals and laws -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [rloo, deepseek_v3_2, vespo])
def test_an_algorithm_that_does_not_read_old_logp_is_refused(base):
    with pytest.raises(ConfigError, match="has no effect\n  got:  an algorithm that does not read old_logp"):
        bypassed(base.algorithm())


@pytest.mark.parametrize("base", [icepop, decoupled_ppo, m2po])
def test_an_algorithm_that_compares_the_two_policies_is_refused(base):
    with pytest.raises(
        ConfigError, match="has no effect\n  got:  an algorithm that compares old_logp with rollout_logp"
    ):
        bypassed(base.algorithm())


def test_an_algorithm_that_learns_from_pairs_is_refused():
    with pytest.raises(ConfigError, match="has no effect\n  got:  an algorithm that learns from pairs"):
        bypassed(spin.algorithm())


@pytest.mark.parametrize("base", [grpo, ppo])
def test_laws(base):
    check_laws(bypassed(base.algorithm()), exempt=getattr(base, "EXEMPTIONS", {}))


def test_laws_with_a_later_term_that_reads_old_logp():
    """The bypassed loss must not fall back to `old_logp` in a batch without `rollout_logp`."""
    algorithm = kl_loss.modify(kl_loss.Config(coef=0.5, estimator="importance_k3"), bypassed(grpo.algorithm()))
    check_laws(algorithm)
