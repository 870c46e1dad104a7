"""VAPO, value-based augmented PPO: Yue et al. 2025 (2504.05118).

PPO with a critic, made to work on long chains of thought. The critic learns the plain reward to go, so that no trace
decays on the way to the first token; the policy's trace is as long as the row. Rare tokens may become likelier by more
than others may become rarer, every token weighs the same, and what was right is imitated besides.

    R_t  = reward_t + discount * R_{t+1}                         the critic's target: lambda_ = 1
    lambda_i = max(0, 1 - 1 / (trace_alpha * n_i))               n_i: action tokens of the row
    A_t  = gae with lambda_i, whitened over the counted tokens of the whole batch
    critic:   token mean of 1/2 max((v - R)^2, (V + clip(v - V, -value_clip, value_clip) - R)^2)
    policy:   token mean of max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))
              + imitation_coef * mean of -logp over the tokens of right rows

A row is right if its score is above `right_above`.

Choices, where libraries differ: advantages are whitened over the batch of rollouts [unverified]; nothing is
bootstrapped at the end of a row, truncated or not.

Differences from the paper:

1. Pre-training of the critic, and sampling in groups, are the run's business.
2. The value is clipped, as in PPO's code. An entropy bonus may be added.
"""

from __future__ import annotations

import torch
from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, Objective, Term, bind, chain, of_fields, stateless
from purerl.algos.estimators.returns import discounted_returns, gae, length_adaptive_lambda
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number, optional
from purerl.algos.parts.transforms import whiten_advantage
from purerl.algos.parts.values import critic_objective
from purerl.algos.sft import negative_log_likelihood
from purerl.batch import with_fields

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "group_independence": "advantages are whitened over the batch",
    "reward_shift_invariance": "the baseline is the critic's, and a row is right above a fixed score",
    "reinforce_gradient_on_policy": "the likelihood of right rows has a gradient of its own",
}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of VAPO."""

    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, min=0, max=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.28, min=0)
    discount: float = number("what a reward loses with each token that comes before it", 1.0, min=0, max=1)
    trace_alpha: float = number("sum of the weights of the policy's trace, for each token of the row", 0.05, above=0)
    value_clip: float = number("how far the critic's estimate may move in one update", 0.5, above=0, unit="reward")
    imitation_coef: float = number("weight of the likelihood of right rows", 0.1, min=0)
    right_above: float = number("a row with a score above this is right", 0.0, unit="reward")
    entropy_coef: float = number("weight of the entropy bonus", 0.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """VAPO as `config` sets it."""
    settings = {"discount": config.discount, "trace_alpha": config.trace_alpha, "right_above": config.right_above}
    return Algorithm(
        reads=("reward", "old_value"),
        advantage=chain(stateless(bind(_decoupled_gae, **settings)), whiten_advantage),
        objectives=(critic_objective(value_clip=config.value_clip), _policy(config)),
    )


def _policy(config: Config) -> Objective:
    policy = clipped_policy(
        token_level_ratio,
        token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    imitation = Term(
        "imitation",
        of_fields(negative_log_likelihood, "logp"),
        token_mean,
        where="correct",
        weight=config.imitation_coef,
    )
    return policy._replace(
        reads=(*policy.reads, *optional(config.imitation_coef, "correct")),
        terms=(*policy.terms, *optional(config.imitation_coef, imitation)),
    )


def _decoupled_gae(batch: TensorDict, *, discount: float, trace_alpha: float, right_above: float) -> TensorDict:
    reward, value, action, mask = (batch[name] for name in ("reward", "old_value", "action", "mask"))
    trace = length_adaptive_lambda(action, alpha=trace_alpha, dtype=reward.dtype)
    advantage = gae(reward, value, action, discount=discount, lambda_=trace)
    returns = discounted_returns(reward, action, discount=discount)
    return with_fields(
        batch,
        advantage=torch.where(mask, advantage, 0),
        returns=torch.where(mask, returns, 0),
        correct=mask & (reward.sum(-1, keepdim=True) > right_above),
    )
