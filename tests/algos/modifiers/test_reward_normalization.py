"""Normalization of the total reward of a row."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from purerl.algos import (
    dpo,
    dr_grpo,
    gigpo,
    grpo,
    gspo_token,
    max_rl,
    pass_k,
    ppo,
    reinforce,
    reinforce_plus_plus_baseline,
    remax,
    rloo,
    spo,
    sppo,
)
from purerl.algos.algebra import Algorithm, compute_advantages
from purerl.algos.modifiers import advantage_scale, kl_reward
from purerl.algos.modifiers.reward_normalization import EXEMPTIONS, Config, modify
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.testing import exemptions
from tests.algos.helpers import (
    advantage_losses_and_gradients,
    example,
    f64,
    gradient_of,
    group_with_rewards,
    with_advantage,
)

from .laws import check_laws


def scores_of(batch: TensorDict) -> torch.Tensor:
    return torch.where(batch["attention_mask"], batch["reward"], 0).sum(-1)


def in_order(algorithm: Algorithm, *batches: TensorDict) -> list[TensorDict]:
    """The batches with their advantages, computed one after the other."""
    state, results = algorithm.advantage.init(), []
    for batch in batches:
        state, result = compute_advantages(algorithm, state, batch)
        results.append(result)
    return results


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_scores_advantage_loss_and_gradient(center, seed):
    config = Config(keep_mean=not center, eps=1e-3)
    algorithm = modify(config, reinforce.algorithm())
    batch = example(algorithm, seed=seed)
    mask, counted = batch["mask"], batch["mask"].any(-1)
    score = scores_of(batch)
    mean = score[counted].mean() if center else 0
    expected = (score - mean) / (score[counted].std() + 1e-3)
    torch.testing.assert_close(scores_of(with_advantage(algorithm, batch))[counted], expected[counted])

    # The return of a token is the sum of the rewards from it on, with the reward of other tokens at the action before.
    divisor, rows = score[counted].std() + 1e-3, counted.sum()
    plain = with_advantage(reinforce.algorithm(), batch)["advantage"]
    advantage = torch.where(mask, (plain - mean) / divisor, 0)
    actual, loss, gradient = advantage_losses_and_gradients(algorithm, batch)
    torch.testing.assert_close(actual, advantage)
    torch.testing.assert_close(loss, -torch.where(mask, advantage * batch["logp"], 0).sum() / rows)
    torch.testing.assert_close(
        gradient, gradient_of(lambda logp: -torch.where(mask, advantage * logp, 0) / rows, batch["logp"])
    )


@pytest.mark.parametrize("center", [True, False])
def test_running_moments_are_those_of_all_rows_so_far(center):
    algorithm = modify(Config(by="running", keep_mean=not center), reinforce.algorithm())
    batches = [example(algorithm, seed=seed) for seed in range(4)]
    seen = f64()
    for batch, result in zip(batches, in_order(algorithm, *batches), strict=True):
        counted = batch["mask"].any(-1)
        seen = torch.cat([seen, scores_of(batch)[counted]])
        expected = (scores_of(batch)[counted] - (seen.mean() if center else 0)) / (seen.std() + 1e-8)
        torch.testing.assert_close(scores_of(result)[counted], expected)


def test_the_first_batch_of_running_is_normalized_like_batch():
    running, batch = (modify(Config(by=by), reinforce.algorithm()) for by in ("running", "batch"))
    rows = example(running)
    torch.testing.assert_close(with_advantage(running, rows)["advantage"], with_advantage(batch, rows)["advantage"])


def test_a_batch_without_counted_rows_does_not_change_the_state():
    algorithm = modify(Config(by="running"), reinforce.algorithm())
    batch = example(algorithm)
    empty = with_fields(batch, mask=torch.zeros_like(batch["mask"]))
    state, _ = compute_advantages(algorithm, algorithm.advantage.init(), batch)
    after, result = compute_advantages(algorithm, state, empty)
    for actual, expected in zip(after[0], state[0], strict=True):
        torch.testing.assert_close(actual, expected)
    assert not result["advantage"].any()


@pytest.mark.parametrize("by", ["batch", "running"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_scores_are_not_divided(by, dtype):
    batch = group_with_rewards([0.1] * 7).apply(lambda x: x.to(dtype) if x.is_floating_point() else x)
    centered, scaled = (modify(Config(by=by, keep_mean=not center), reinforce.algorithm()) for center in (True, False))
    for result in in_order(centered, batch, batch[:3]):
        torch.testing.assert_close(scores_of(result), torch.zeros_like(scores_of(result)), atol=1e-8, rtol=0)
    for result in in_order(scaled, batch, batch[:3]):
        torch.testing.assert_close(scores_of(result), torch.full_like(scores_of(result), 0.1))


def test_the_greedy_score_of_remax_is_normalized_like_the_scores():
    algorithm = modify(Config(eps=1e-3), remax.algorithm())
    batch = example(algorithm)
    divisor = scores_of(batch)[batch["mask"].any(-1)].std() + 1e-3
    actual, expected = (with_advantage(a, batch)["advantage"] for a in (algorithm, remax.algorithm()))
    torch.testing.assert_close(actual, expected / divisor)


@pytest.mark.parametrize("module", [grpo, gigpo, max_rl, sppo, spo, pass_k, gspo_token, reinforce_plus_plus_baseline])
def test_an_advantage_that_does_not_depend_on_the_scale_is_refused(module):
    with pytest.raises(ConfigError) as caught:
        modify(Config(), module.algorithm())
    assert str(caught.value) == (
        "has no effect\n"
        "  got:  an advantage that does not depend on the scale of rewards\n"
        "  need: an algorithm in which the scale of rewards matters"
    )


def test_the_estimator_of_a_modifier_decides_too():
    for by in ("group_std", "batch_std", "mean"):
        with pytest.raises(ConfigError, match="the scale of rewards"):
            modify(Config(), advantage_scale.modify(advantage_scale.Config(by=by), dr_grpo.algorithm()))
    for config in (advantage_scale.Config(by="none"), advantage_scale.Config(singleton="score")):
        modify(Config(), advantage_scale.modify(config, grpo.algorithm()))


@pytest.mark.parametrize("module", [dr_grpo, rloo])
def test_keep_mean_is_refused_if_the_mean_has_no_effect(module):
    with pytest.raises(ConfigError) as caught:
        modify(Config(keep_mean=True), module.algorithm())
    assert str(caught.value) == (
        "keep_mean\n  got:  true\n  need: false: the advantage does not depend on the mean of the rewards"
    )


def test_an_algorithm_without_rewards_is_refused():
    with pytest.raises(ConfigError) as caught:
        modify(Config(), dpo.algorithm())
    assert str(caught.value) == (
        "has no effect\n"
        "  got:  an algorithm whose advantage does not read 'reward'\n"
        "  need: an algorithm that computes advantages from rewards"
    )


@pytest.mark.parametrize("module", [dr_grpo, reinforce, ppo, remax])
@pytest.mark.parametrize("by", ["batch", "running"])
def test_laws(module, by):
    algorithm = modify(Config(by=by), module.algorithm())
    check_laws(algorithm, exempt={*EXEMPTIONS, *exemptions(module)})


def test_laws_of_grpo_with_a_kl_penalty():
    algorithm = modify(Config(), kl_reward.modify(kl_reward.Config(coef=0.1), grpo.algorithm()))
    check_laws(algorithm, exempt=EXEMPTIONS)


def test_the_kl_penalty_is_normalized_if_it_is_listed_later():
    norm, kl = Config(eps=1e-3), kl_reward.Config(coef=0.5)
    base = reinforce.algorithm()
    kl_last = modify(norm, kl_reward.modify(kl, base))
    norm_last = kl_reward.modify(kl, modify(norm, base))
    batch = example(kl_last)
    counted, action = batch["mask"].any(-1), batch["action"]
    score = scores_of(batch)
    penalty = torch.where(action, 0.5 * (batch["old_logp"] - batch["ref_logp"]), 0).sum(-1)
    values = score[counted]
    expected = (values - values.mean()) / (values.std() + 1e-3) - penalty[counted]
    torch.testing.assert_close(scores_of(with_advantage(kl_last, batch))[counted], expected)
    values = (score - penalty)[counted]
    expected = (values - values.mean()) / (values.std() + 1e-3)
    torch.testing.assert_close(scores_of(with_advantage(norm_last, batch))[counted], expected)
