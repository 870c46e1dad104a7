"""VAPO, value-based augmented PPO: Yue et al. 2025 (2504.05118).

VAPO is PPO with a critic, adapted to long chains of thought:

- The target of the critic is the return (GAE with lambda 1), so the outcome reaches the first token without decay.
- The lambda of the policy's advantage grows with the length of the row.
- Clip-higher and token mean, as in `dapo`.
- An additional term maximizes the log-probability of correct rows.

The losses are

    R_it     = reward_it + discount * R_{i,t+1}
    lambda_i = max(0, 1 - 1 / (trace_alpha * n_i))
    delta_it = reward_it + discount * V_{i,t+1} - V_it
    A_it     = delta_it + discount * lambda_i * A_{i,t+1}
    Aw_it    = (A_it - mean(A)) / (std(A) + 1e-8)
    l_it     = max(-Aw_it r_it, -Aw_it clip(r_it, 1 - clip_low, 1 + clip_high))
    critic_loss = (1 / tokens) sum_it 1/2 max((v_it - R_it)^2, (vc_it - R_it)^2)
    policy_loss = (1 / tokens) sum_it l_it - imitation_coef * mean_correct(logp)

V_it is the critic's estimate before the update (`old_value`), and v_it its current estimate. t + 1 is the next action
token of the row, and n_i its number of action tokens. mean(A) and std(A) are over the tokens of the whole batch.
mean_correct() is over the tokens of correct rows, those with a total reward above `correct_above`. The rest is as in
`ppo`.

Choices that differ between libraries:

- Advantages are whitened over the whole batch of rollouts (unverified).

Differences from the paper:

1. Pretraining of the critic and group sampling are not part of the algorithm. They are settings of the run.
2. The value is clipped, as in PPO's code.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import ppo
from purerl.algos.algebra import Algorithm, Objective, Term, bind, chain, of_fields, stateless
from purerl.algos.estimators.returns import discounted_returns, gae, length_adaptive_lambda
from purerl.algos.parts.editing import change_policy
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number, optional
from purerl.algos.parts.transforms import whiten_advantage
from purerl.algos.sft import negative_log_likelihood
from purerl.batch import with_fields
from purerl.kernels.masks import masked
from purerl.types import TensorDict

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "group_independence": "advantages are whitened over the whole batch",
    "reward_shift_invariance": "the critic's estimate and the threshold of correct rows do not depend on the shift",
    "reinforce_gradient_on_policy": "the log-likelihood of correct rows adds its own gradient",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of VAPO."""

    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number(
        "upper clip offset: the ratio is clipped above 1 + clip_high", 0.28, min=0, infinite="not clipped"
    )
    discount: float = number("discount factor of rewards, per token", 1.0, min=0, max=1)
    trace_alpha: float = number("alpha of the length-adaptive lambda, 1 - 1 / (alpha * n_i)", 0.05, above=0)
    value_clip: float = number(
        "clip range of the critic's estimate around its old value", 0.5, above=0, unit="reward", infinite="not clipped"
    )
    imitation_coef: float = number("coefficient of the negative log-likelihood of correct rows", 0.1, min=0)
    correct_above: float = number("a row with a score above this is correct", 0.0, unit="reward")


def algorithm(config: Config = Config()) -> Algorithm:
    """Build VAPO from `config`."""
    settings = {"discount": config.discount, "trace_alpha": config.trace_alpha, "correct_above": config.correct_above}
    clips = ppo.Config(clip_low=config.clip_low, clip_high=config.clip_high, value_clip=config.value_clip)
    base = change_policy(ppo.algorithm(clips), bind(_with_imitation, coef=config.imitation_coef))
    return base._replace(advantage=chain(stateless(bind(_decoupled_gae, **settings)), whiten_advantage))


def _with_imitation(policy: Objective, *, coef: float) -> Objective:
    loss = of_fields(negative_log_likelihood, "logp")
    imitation = Term("imitation", loss, token_mean, where="correct", weight=coef)
    return policy._replace(
        reads=(*policy.reads, *optional(coef, "correct")), terms=(*policy.terms, *optional(coef, imitation))
    )


def _decoupled_gae(batch: TensorDict, *, discount: float, trace_alpha: float, correct_above: float) -> TensorDict:
    reward, value, action, mask = (batch[name] for name in ("reward", "old_value", "action", "mask"))
    lambda_ = length_adaptive_lambda(action, alpha=trace_alpha, dtype=reward.dtype)
    advantage = gae(reward, value, action, discount=discount, lambda_=lambda_)
    returns = discounted_returns(reward, action, discount=discount)
    return with_fields(
        batch,
        advantage=masked(advantage, mask),
        returns=masked(returns, mask),
        correct=mask & (reward.sum(-1, keepdim=True) > correct_above),
    )
