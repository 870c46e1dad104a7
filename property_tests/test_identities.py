"""What is equal to what: named algorithms that reduce to each other, and recurrences to their definitions.

Each holds on any batch that Hypothesis draws, in value and gradient; some only where every row has one token.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

from purerl.algos import (
    cispo,
    clip_cov,
    dapo,
    decoupled_ppo,
    discounted_returns,
    dpo,
    dppo,
    dppo_kl,
    dr_grpo,
    dro,
    forking_tokens,
    gae,
    gmpo,
    group_centered_advantage,
    group_size,
    grpo,
    gspo,
    gspo_token,
    icepop,
    kimi,
    leave_one_out_advantage,
    length_weighted_advantage,
    luspo,
    move_rewards_to_actions,
    pass_k_advantage,
    ppo,
    reinforce_plus_plus,
    spin,
    vtrace_advantage,
    vtrace_target,
)
from purerl.algos.algebra import Algorithm, bind
from purerl.algos.parts.groups import group_sum
from purerl.algos.parts.reductions import constant_norm, sequence_mean_of_token_mean
from purerl.batch import with_fields
from purerl.testing import example_batch, fields_of, layouts
from purerl.testing.outcome import Outcome, difference, run

SEEDS = st.integers(0, 2**16)


def at_least(examples: int) -> settings:
    """Two batches seldom tell one function from another; equations on few tensors can afford more than algorithms."""
    return settings(max_examples=max(examples, settings.default.max_examples))


SOME, MANY = at_least(10), at_least(50)


# --- algorithms --------------------------------------------------------------------------------------------------


def reduced(algorithm: Algorithm, reduce: Callable) -> Algorithm:
    [policy] = algorithm.objectives
    return algorithm._replace(
        objectives=(policy._replace(terms=tuple(t._replace(reduce=reduce) for t in policy.terms)),)
    )


def with_the_advantage_of(other: Algorithm, algorithm: Algorithm) -> Algorithm:
    return algorithm._replace(advantage=other.advantage)


def policy_of(algorithm: Algorithm) -> Algorithm:
    return algorithm._replace(objectives=algorithm.objectives[-1:])


CLIP = dict(clip_low=0.2, clip_high=0.25)
GRPO, DAPO, GSPO = (module.algorithm(module.Config(**CLIP)) for module in (grpo, dapo, gspo))
UNBOUNDED = dict(divergence_low=1e6, divergence_high=1e6, ratio_cap=5)
NO_CLIP_IN_LOGS = dict(clip_low=1 - math.exp(-0.4), clip_high=math.exp(0.4) - 1)

ANYWHERE = {
    "dapo in the mean of rows is grpo": (reduced(DAPO, sequence_mean_of_token_mean), GRPO),
    "grpo without standard deviation, divided by a constant, is dr_grpo": (
        reduced(with_the_advantage_of(dr_grpo.algorithm(), GRPO), bind(constant_norm, length=7.0)),
        dr_grpo.algorithm(dr_grpo.Config(**CLIP, norm_length=7)),
    ),
    "luspo in the mean of tokens is gspo": (
        reduced(luspo.algorithm(luspo.Config(**CLIP)), sequence_mean_of_token_mean), GSPO,
    ),
    "gspo_token with one advantage for each row is gspo": (
        with_the_advantage_of(GSPO, gspo_token.algorithm(gspo_token.Config(**CLIP))), GSPO,
    ),
    "clip_cov without a candidate is dapo": (
        clip_cov.algorithm(clip_cov.Config(**CLIP, cov_low=1e6, cov_high=2e6)), DAPO,
    ),
    "forking_tokens on all tokens is dapo": (
        forking_tokens.algorithm(forking_tokens.Config(**CLIP, top_fraction=1)), DAPO,
    ),
}  # fmt: skip

AT_ONE_TOKEN = {
    "gspo is grpo": (GSPO, GRPO),
    "luspo is grpo": (luspo.algorithm(luspo.Config(**CLIP)), GRPO),
    "dr_grpo with the advantage of grpo is grpo": (
        with_the_advantage_of(GRPO, dr_grpo.algorithm(dr_grpo.Config(**CLIP, norm_length=1))), GRPO,
    ),
    "dapo is grpo": (DAPO, GRPO),
    "kimi is dro": (kimi.algorithm(kimi.Config(beta=0.3)), dro.algorithm(dro.Config(beta=0.3))),
    "gmpo is grpo where their clips agree": (gmpo.algorithm(), grpo.algorithm(grpo.Config(**NO_CLIP_IN_LOGS))),
}  # fmt: skip

WHERE_FIELDS_AGREE = {
    "decoupled_ppo is ppo": (decoupled_ppo.algorithm(), ppo.algorithm(), "rollout_logp", "old_logp"),
    "icepop is grpo": (icepop.algorithm(), grpo.algorithm(), "rollout_logp", "old_logp"),
    "spin is dpo": (spin.algorithm(), dpo.algorithm(), "old_logp", "ref_logp"),
    "dppo without bounds is cispo": (
        dppo.algorithm(dppo.Config(**UNBOUNDED)), cispo.algorithm(), "old_logp", "rollout_logp",
    ),
    "dppo_kl without bounds is cispo": (
        dppo_kl.algorithm(dppo_kl.Config(**UNBOUNDED)), cispo.algorithm(), "old_logp", "rollout_logp",
    ),
}  # fmt: skip


def same(one: Algorithm, other: Algorithm, batch: TensorDict) -> None:
    gap = difference(*(_comparable(run(algorithm, batch)) for algorithm in (one, other)))
    assert gap is None, gap


def _comparable(outcome: Outcome) -> Outcome:
    """Selection and metrics may differ, and a correction says what it rejects."""
    rows = {name: value for name, value in outcome.rows.items() if name == "field advantage" or "gradient" in name}
    return Outcome(rows, outcome.totals, {})


def fields(*algorithms: Algorithm) -> list[str]:
    return list(dict.fromkeys(name for algorithm in algorithms for name in fields_of(algorithm)))


@pytest.mark.parametrize(("one", "other"), ANYWHERE.values(), ids=ANYWHERE)
def test_anywhere(one, other):
    @SOME
    @given(layout=layouts(), seed=SEEDS)
    def holds(layout, seed):
        same(one, other, example_batch(fields(one, other), layout, seed=seed))

    holds()


@pytest.mark.parametrize(("one", "other"), AT_ONE_TOKEN.values(), ids=AT_ONE_TOKEN)
def test_at_one_token(one, other):
    @SOME
    @given(layout=layouts(), seed=SEEDS)
    def holds(layout, seed):
        layout = tuple((label, ".a") for label, _ in layout)
        same(one, other, example_batch(fields(one, other), layout, seed=seed))

    holds()


@pytest.mark.parametrize(("one", "other", "field", "source"), WHERE_FIELDS_AGREE.values(), ids=WHERE_FIELDS_AGREE)
def test_where_fields_agree(one, other, field, source):
    @SOME
    @given(layout=layouts(pairs="chosen" in fields(one)), seed=SEEDS)
    def holds(layout, seed):
        batch = example_batch(fields(one, other), layout, seed=seed)
        same(one, other, with_fields(batch, **{field: batch[source]}))

    holds()


@SOME
@given(layout=layouts(), seed=SEEDS)
def test_reinforce_plus_plus_is_ppo_without_a_critic(layout, seed):
    one = reinforce_plus_plus.algorithm(reinforce_plus_plus.Config(discount=0.9, kl_reward_coef=0.1))
    other = policy_of(ppo.algorithm(ppo.Config(discount=0.9, lambda_=1.0, kl_reward_coef=0.1)))
    batch = example_batch(fields(one, other), layout, seed=seed)
    same(one, other, with_fields(batch, old_value=torch.zeros_like(batch["old_value"])))


def test_forking_tokens_selects_as_dapo_does():
    assert forking_tokens.algorithm().select == dapo.algorithm().select != grpo.algorithm().select


# --- baselines ---------------------------------------------------------------------------------------------------


def scores(layout: tuple, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, groups, and which rows count."""
    batch = example_batch(["reward"], layout, seed=seed)
    reward = torch.where(batch["attention_mask"], batch["reward"], 0)
    return reward.sum(-1), batch["group"], batch["mask"].any(-1)


@MANY
@given(layout=layouts(), seed=SEEDS)
def test_leaving_one_out_is_centring_times_n_over_n_less_1(layout, seed):
    of = score, group, counted = scores(layout, seed)
    size = group_size(counted, group, dtype=score.dtype)
    expected = group_centered_advantage(*of) * torch.where(size > 1, size / (size - 1), 1)
    torch.testing.assert_close(leave_one_out_advantage(*of), expected)


@MANY
@given(layout=layouts(), seed=SEEDS)
def test_with_equal_lengths_the_weighted_baseline_is_the_mean(layout, seed):
    score, group, counted = scores(layout, seed)
    found = length_weighted_advantage(score, torch.full_like(score, 3), group, counted)
    torch.testing.assert_close(found, group_centered_advantage(score, group, counted))


@MANY
@given(layout=layouts(), seed=SEEDS)
def test_one_attempt_at_a_time_is_normalized_by_the_deviation_of_a_coin(layout, seed):
    score, group, counted = scores(layout, seed)
    right = (score > 0).double()
    deviation = group_centered_advantage(right, group, counted)
    variance = group_sum(deviation.square(), group) / group_size(counted, group, dtype=score.dtype)
    expected = torch.where(variance > 0, deviation / torch.where(variance > 0, variance, 1).sqrt(), 0)
    torch.testing.assert_close(pass_k_advantage(right, group, counted, k=1), expected)


# --- recurrences -------------------------------------------------------------------------------------------------


SETTINGS = st.tuples(*[st.sampled_from([0.0, 0.5, 0.95, 1.0])] * 2).map(
    lambda pair: dict(zip(("discount", "lambda_"), pair, strict=True))
)
CLIPS = st.sampled_from([dict(rho_clip=1.0, trace_clip=1.0), dict(rho_clip=2.0, trace_clip=0.5)])


def rows(layout: tuple, seed: int) -> TensorDict:
    batch = example_batch(["reward", "old_value", "logp", "rollout_logp"], layout, seed=seed)
    return with_fields(batch, reward=torch.where(batch["attention_mask"], batch["reward"], 0))


def tokens(batch: TensorDict, row: int) -> tuple[Tensor, list[float], list[float], list[float]]:
    """Where the action tokens of a row are; their rewards, values, and values of what follows them."""
    place = batch["action"][row].nonzero()[:, 0]
    reward = move_rewards_to_actions(batch["reward"], batch["action"])[row, place].tolist()
    value = batch["old_value"][row, place].tolist()
    return place, reward, value, [*value[1:], 0.0][: len(value)]


@MANY
@given(layout=layouts(), seed=SEEDS, setting=SETTINGS)
def test_gae_is_its_double_sum(layout, seed, setting):
    """A_t = sum_k (discount lambda)^k delta_{t+k}."""
    batch, decay = rows(layout, seed), setting["discount"] * setting["lambda_"]
    found = gae(batch["reward"], batch["old_value"], batch["action"], **setting)
    assert not found[~batch["action"]].any()
    for row in range(len(found)):
        place, reward, value, after = tokens(batch, row)
        delta = [r + setting["discount"] * n - v for r, v, n in zip(reward, value, after, strict=True)]
        expected = [sum(decay**k * d for k, d in enumerate(delta[t:])) for t in range(len(delta))]
        torch.testing.assert_close(found[row, place].tolist(), expected)


@MANY
@given(layout=layouts(), seed=SEEDS, setting=SETTINGS, clips=CLIPS)
def test_vtrace_is_its_sum_of_products(layout, seed, setting, clips):
    """v_t = V_t + sum_{s >= t} (prod_{t <= i < s} discount c_i) delta_s, A_t = rho_t (r_t + discount v_{t+1} - V_t)."""
    batch, discount = rows(layout, seed), setting["discount"]
    reward, value, logp, mu, action = (batch[n] for n in ("reward", "old_value", "logp", "rollout_logp", "action"))
    target = vtrace_target(reward, value, logp, mu, action, **setting, **clips)
    found = vtrace_advantage(reward, value, target, logp, mu, action, discount=discount, rho_clip=clips["rho_clip"])
    assert not target[~action].any()
    assert not found[~action].any()
    for row in range(len(found)):
        place, r, v, after = tokens(batch, row)
        ratio = (logp - mu)[row, place].exp().tolist()
        rho, trace = ([min(x, clips[clip]) for x in ratio] for clip in ("rho_clip", "trace_clip"))
        delta = [p * (x + discount * n - y) for p, x, y, n in zip(rho, r, v, after, strict=True)]
        decay = [discount * setting["lambda_"] * c for c in trace]
        expected = [v[t] + sum(math.prod(decay[t:s]) * delta[s] for s in range(t, len(v))) for t in range(len(v))]
        torch.testing.assert_close(target[row, place].tolist(), expected)
        later = [*expected[1:], 0.0][: len(expected)]
        expected = [p * (x + discount * n - y) for p, x, y, n in zip(rho, r, v, later, strict=True)]
        torch.testing.assert_close(found[row, place].tolist(), expected)


@MANY
@given(layout=layouts(), seed=SEEDS, setting=SETTINGS)
def test_vtrace_on_policy_is_the_lambda_return(layout, seed, setting):
    batch = rows(layout, seed)
    reward, value, logp, action = (batch[name] for name in ("reward", "old_value", "logp", "action"))
    target = vtrace_target(reward, value, logp, logp, action, **setting, rho_clip=1.0, trace_clip=1.0)
    expected = gae(reward, value, action, **setting) + torch.where(action, value, 0)
    torch.testing.assert_close(target, expected)


@MANY
@given(layout=layouts(), seed=SEEDS, setting=SETTINGS)
def test_with_lambda_one_gae_is_the_return_less_the_value(layout, seed, setting):
    batch, discount = rows(layout, seed), setting["discount"]
    found = gae(batch["reward"], batch["old_value"], batch["action"], discount=discount, lambda_=1.0)
    returns = discounted_returns(batch["reward"], batch["action"], discount=discount)
    torch.testing.assert_close(found, torch.where(batch["action"], returns - batch["old_value"], 0))


@MANY
@given(layout=layouts(), seed=SEEDS)
def test_undiscounted_the_first_return_is_the_score(layout, seed):
    batch = rows(layout, seed)
    action = batch["action"]
    first = action & (action.cumsum(-1) == 1)
    returns = discounted_returns(batch["reward"], action, discount=1.0)
    torch.testing.assert_close(returns[first], batch["reward"].sum(-1)[action.any(-1)])
