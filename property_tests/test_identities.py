"""Identities: algorithms that equal each other with certain settings, and recurrences that equal their definitions.

Identities of algorithms hold in value and gradient on every batch that Hypothesis generates. Some of them need batches
whose rows have one token, or batches with two equal fields.
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
    double_sided_is,
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
    iw_opd,
    kimi,
    kpop,
    leave_one_out_advantage,
    length_weighted_advantage,
    luspo,
    move_rewards_to_actions,
    opd,
    pass_k_advantage,
    ppo,
    reinforce_plus_plus,
    spin,
    vtrace_advantage,
    vtrace_target,
)
from purerl.algos.algebra import Algorithm, bind
from purerl.algos.modifiers import kl_reward
from purerl.algos.parts.groups import group_sum
from purerl.algos.parts.reductions import constant_norm, sequence_mean_of_token_mean
from purerl.batch import with_fields
from purerl.testing import example_batch, fields_of, layouts
from purerl.testing.outcome import Outcome, find_difference, run

SEEDS = st.integers(0, 2**16)


def settings_with_examples(count: int) -> settings:
    """Settings with at least `count` examples, because two examples may not distinguish two functions.

    Equations on single tensors are faster than algorithms, so they can use more examples.
    """
    return settings(max_examples=max(count, settings.default.max_examples))


TEN_EXAMPLES, FIFTY_EXAMPLES = settings_with_examples(10), settings_with_examples(50)


# --- algorithms --------------------------------------------------------------------------------------------------


def with_reduction(algorithm: Algorithm, reduce: Callable) -> Algorithm:
    [policy] = algorithm.objectives
    return algorithm._replace(
        objectives=(policy._replace(terms=tuple(t._replace(reduce=reduce) for t in policy.terms)),)
    )


def with_advantage_of(source: Algorithm, algorithm: Algorithm) -> Algorithm:
    return algorithm._replace(advantage=source.advantage)


def without_critic(algorithm: Algorithm) -> Algorithm:
    return algorithm._replace(objectives=algorithm.objectives[-1:])


CLIP = dict(clip_low=0.2, clip_high=0.25)
GRPO, DAPO, GSPO = (module.algorithm(module.Config(**CLIP)) for module in (grpo, dapo, gspo))
UNBOUNDED = dict(divergence_low=1e6, divergence_high=1e6, ratio_cap=5)
CLIP_OF_GMPO = dict(clip_low=1 - math.exp(-0.4), clip_high=math.exp(0.4) - 1)

ON_ALL_BATCHES = {
    "dapo with the mean over rows is grpo": (with_reduction(DAPO, sequence_mean_of_token_mean), GRPO),
    "grpo without the standard deviation, divided by a constant, is dr_grpo": (
        with_reduction(with_advantage_of(dr_grpo.algorithm(), GRPO), bind(constant_norm, length=7.0)),
        dr_grpo.algorithm(dr_grpo.Config(**CLIP, norm_length=7)),
    ),
    "luspo with the mean over tokens is gspo": (
        with_reduction(luspo.algorithm(luspo.Config(**CLIP)), sequence_mean_of_token_mean), GSPO,
    ),
    "gspo_token with one advantage per row is gspo": (
        with_advantage_of(GSPO, gspo_token.algorithm(gspo_token.Config(**CLIP))), GSPO,
    ),
    "clip_cov without candidate tokens is dapo": (
        clip_cov.algorithm(clip_cov.Config(**CLIP, cov_low=1e6, cov_high=2e6)), DAPO,
    ),
    "double_sided_is without bounds is dppo without bounds": (
        double_sided_is.algorithm(double_sided_is.Config(clip_low=1, clip_high=math.inf)),
        dppo.algorithm(dppo.Config(**UNBOUNDED | {"ratio_cap": math.inf})),
    ),
    "iw_opd without weights is opd": (iw_opd.algorithm(iw_opd.Config(weight_coef=0)), opd.algorithm()),
    "kpop without a bound is grpo": (
        kpop.algorithm(kpop.Config(**CLIP, max_divergence=1e9)), GRPO,
    ),
    "forking_tokens on all tokens is dapo": (
        forking_tokens.algorithm(forking_tokens.Config(**CLIP, top_fraction=1)), DAPO,
    ),
}  # fmt: skip

WITH_ONE_TOKEN = {
    "gspo is grpo": (GSPO, GRPO),
    "luspo is grpo": (luspo.algorithm(luspo.Config(**CLIP)), GRPO),
    "dr_grpo with the advantage of grpo is grpo": (
        with_advantage_of(GRPO, dr_grpo.algorithm(dr_grpo.Config(**CLIP, norm_length=1))), GRPO,
    ),
    "dapo is grpo": (DAPO, GRPO),
    "kimi is dro": (kimi.algorithm(kimi.Config(beta=0.3)), dro.algorithm(dro.Config(beta=0.3))),
    "gmpo is grpo with the same clip range": (gmpo.algorithm(), grpo.algorithm(grpo.Config(**CLIP_OF_GMPO))),
}  # fmt: skip

WITH_EQUAL_FIELDS = {
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


def assert_equal(first: Algorithm, second: Algorithm, batch: TensorDict) -> None:
    message = find_difference(*(_compared(run(algorithm, batch)) for algorithm in (first, second)))
    assert message is None, message


def _compared(outcome: Outcome) -> Outcome:
    """The advantages, gradients, states and losses. Selection, metrics and fields such as `rejected` may differ."""
    rows = {name: value for name, value in outcome.rows.items() if name == "field advantage" or "gradient" in name}
    return Outcome(rows, outcome.totals, {})


def fields(*algorithms: Algorithm) -> list[str]:
    return list(dict.fromkeys(name for algorithm in algorithms for name in fields_of(algorithm)))


@pytest.mark.parametrize(("first", "second"), ON_ALL_BATCHES.values(), ids=ON_ALL_BATCHES)
def test_algorithms_are_equal_on_all_batches(first, second):
    @TEN_EXAMPLES
    @given(layout=layouts(), seed=SEEDS)
    def check(layout, seed):
        assert_equal(first, second, example_batch(fields(first, second), layout, seed=seed))

    check()


@pytest.mark.parametrize(("first", "second"), WITH_ONE_TOKEN.values(), ids=WITH_ONE_TOKEN)
def test_algorithms_are_equal_with_one_token(first, second):
    @TEN_EXAMPLES
    @given(layout=layouts(), seed=SEEDS)
    def check(layout, seed):
        layout = tuple((label, ".a") for label, _ in layout)
        assert_equal(first, second, example_batch(fields(first, second), layout, seed=seed))

    check()


@pytest.mark.parametrize(("first", "second", "field", "source"), WITH_EQUAL_FIELDS.values(), ids=WITH_EQUAL_FIELDS)
def test_algorithms_are_equal_with_equal_fields(first, second, field, source):
    @TEN_EXAMPLES
    @given(layout=layouts(pairs="chosen" in fields(first)), seed=SEEDS)
    def check(layout, seed):
        batch = example_batch(fields(first, second), layout, seed=seed)
        assert_equal(first, second, with_fields(batch, **{field: batch[source]}))

    check()


@TEN_EXAMPLES
@given(layout=layouts(), seed=SEEDS)
def test_reinforce_plus_plus_is_ppo_with_zero_values(layout, seed):
    first = reinforce_plus_plus.algorithm(reinforce_plus_plus.Config(discount=0.9, kl_reward=0.1))
    second = kl_reward.modify(kl_reward.Config(coef=0.1), ppo.algorithm(ppo.Config(discount=0.9, lambda_=1.0)))
    second = without_critic(second)
    batch = example_batch(fields(first, second), layout, seed=seed)
    assert_equal(first, second, with_fields(batch, old_value=torch.zeros_like(batch["old_value"])))


def test_forking_tokens_selects_like_dapo():
    assert forking_tokens.algorithm().select == dapo.algorithm().select != grpo.algorithm().select


# --- baselines ---------------------------------------------------------------------------------------------------


def scores(layout: tuple, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The score, the group and whether there are counted tokens, [rows] each."""
    batch = example_batch(["reward"], layout, seed=seed)
    reward = torch.where(batch["attention_mask"], batch["reward"], 0)
    return reward.sum(-1), batch["group"], batch["mask"].any(-1)


@FIFTY_EXAMPLES
@given(layout=layouts(), seed=SEEDS)
def test_leave_one_out_advantage_is_centered_advantage_times_n_over_n_minus_1(layout, seed):
    score, group, is_counted = scores(layout, seed)
    size = group_size(is_counted, group, dtype=score.dtype)
    factor = torch.where(size > 1, size / (size - 1), 1)
    expected = group_centered_advantage(score, group, is_counted) * factor
    torch.testing.assert_close(leave_one_out_advantage(score, group, is_counted), expected)


@FIFTY_EXAMPLES
@given(layout=layouts(), seed=SEEDS)
def test_length_weighted_advantage_is_centered_advantage_if_lengths_are_equal(layout, seed):
    score, group, is_counted = scores(layout, seed)
    actual = length_weighted_advantage(score, torch.full_like(score, 3), group, is_counted)
    torch.testing.assert_close(actual, group_centered_advantage(score, group, is_counted))


@FIFTY_EXAMPLES
@given(layout=layouts(), seed=SEEDS)
def test_pass_k_advantage_with_k_1_is_normalized_by_the_population_standard_deviation(layout, seed):
    score, group, is_counted = scores(layout, seed)
    correct = (score > 0).double()
    deviation = group_centered_advantage(correct, group, is_counted)
    variance = group_sum(deviation.square(), group) / group_size(is_counted, group, dtype=score.dtype)
    expected = torch.where(variance > 0, deviation / torch.where(variance > 0, variance, 1).sqrt(), 0)
    torch.testing.assert_close(pass_k_advantage(correct, group, is_counted, k=1), expected)


# --- recurrences -------------------------------------------------------------------------------------------------


DISCOUNTS = st.tuples(*[st.sampled_from([0.0, 0.5, 0.95, 1.0])] * 2).map(
    lambda pair: dict(zip(("discount", "lambda_"), pair, strict=True))
)
CLIPS = st.sampled_from([dict(rho_clip=1.0, trace_clip=1.0), dict(rho_clip=2.0, trace_clip=0.5)])


def rows(layout: tuple, seed: int) -> TensorDict:
    batch = example_batch(["reward", "old_value", "logp", "rollout_logp"], layout, seed=seed)
    return with_fields(batch, reward=torch.where(batch["attention_mask"], batch["reward"], 0))


def action_tokens(batch: TensorDict, row: int) -> tuple[Tensor, list[float], list[float], list[float]]:
    """The positions of the action tokens of `row`, their rewards, their values, and the values of the next ones."""
    positions = batch["action"][row].nonzero()[:, 0]
    reward = move_rewards_to_actions(batch["reward"], batch["action"])[row, positions].tolist()
    value = batch["old_value"][row, positions].tolist()
    return positions, reward, value, [*value[1:], 0.0][: len(value)]


@FIFTY_EXAMPLES
@given(layout=layouts(), seed=SEEDS, discounts=DISCOUNTS)
def test_gae_is_the_discounted_sum_of_td_errors(layout, seed, discounts):
    """A_t = sum_k (discount lambda)^k delta_{t+k}."""
    batch, decay = rows(layout, seed), discounts["discount"] * discounts["lambda_"]
    advantage = gae(batch["reward"], batch["old_value"], batch["action"], **discounts)
    assert not advantage[~batch["action"]].any()
    for row in range(len(advantage)):
        positions, reward, value, next_value = action_tokens(batch, row)
        delta = [r + discounts["discount"] * n - v for r, v, n in zip(reward, value, next_value, strict=True)]
        expected = [sum(decay**k * d for k, d in enumerate(delta[t:])) for t in range(len(delta))]
        torch.testing.assert_close(advantage[row, positions].tolist(), expected)


@FIFTY_EXAMPLES
@given(layout=layouts(), seed=SEEDS, discounts=DISCOUNTS, clips=CLIPS)
def test_vtrace_is_a_sum_of_products(layout, seed, discounts, clips):
    """v_t = V_t + sum_{s >= t} (prod_{t <= i < s} discount c_i) delta_s, A_t = rho_t (r_t + discount v_{t+1} - V_t)."""
    batch, discount = rows(layout, seed), discounts["discount"]
    reward, value, logp, mu, action = (batch[n] for n in ("reward", "old_value", "logp", "rollout_logp", "action"))
    target = vtrace_target(reward, value, logp, mu, action, **discounts, **clips)
    advantage = vtrace_advantage(reward, value, target, logp, mu, action, discount=discount, rho_clip=clips["rho_clip"])
    assert not target[~action].any()
    assert not advantage[~action].any()
    for row in range(len(advantage)):
        positions, r, v, next_v = action_tokens(batch, row)
        ratio = (logp - mu)[row, positions].exp().tolist()
        rho, trace = ([min(x, clips[clip]) for x in ratio] for clip in ("rho_clip", "trace_clip"))
        delta = [p * (x + discount * n - y) for p, x, y, n in zip(rho, r, v, next_v, strict=True)]
        decay = [discount * discounts["lambda_"] * c for c in trace]
        expected = [v[t] + sum(math.prod(decay[t:s]) * delta[s] for s in range(t, len(v))) for t in range(len(v))]
        torch.testing.assert_close(target[row, positions].tolist(), expected)
        next_target = [*expected[1:], 0.0][: len(expected)]
        expected = [p * (x + discount * n - y) for p, x, y, n in zip(rho, r, v, next_target, strict=True)]
        torch.testing.assert_close(advantage[row, positions].tolist(), expected)


@FIFTY_EXAMPLES
@given(layout=layouts(), seed=SEEDS, discounts=DISCOUNTS)
def test_vtrace_target_on_policy_is_the_lambda_return(layout, seed, discounts):
    batch = rows(layout, seed)
    reward, value, logp, action = (batch[name] for name in ("reward", "old_value", "logp", "action"))
    target = vtrace_target(reward, value, logp, logp, action, **discounts, rho_clip=1.0, trace_clip=1.0)
    expected = gae(reward, value, action, **discounts) + torch.where(action, value, 0)
    torch.testing.assert_close(target, expected)


@FIFTY_EXAMPLES
@given(layout=layouts(), seed=SEEDS, discounts=DISCOUNTS)
def test_gae_with_lambda_1_is_the_return_minus_the_value(layout, seed, discounts):
    batch, discount = rows(layout, seed), discounts["discount"]
    advantage = gae(batch["reward"], batch["old_value"], batch["action"], discount=discount, lambda_=1.0)
    returns = discounted_returns(batch["reward"], batch["action"], discount=discount)
    torch.testing.assert_close(advantage, torch.where(batch["action"], returns - batch["old_value"], 0))


@FIFTY_EXAMPLES
@given(layout=layouts(), seed=SEEDS)
def test_first_undiscounted_return_is_the_score(layout, seed):
    batch = rows(layout, seed)
    action = batch["action"]
    first = action & (action.cumsum(-1) == 1)
    returns = discounted_returns(batch["reward"], action, discount=1.0)
    torch.testing.assert_close(returns[first], batch["reward"].sum(-1)[action.any(-1)])
