"""GRPO as in DeepSeek-V3.2: DeepSeek-AI 2025 (2512.02556).

GRPO, with remedies for rows of which the sampler was another policy: bad rows that have become unlikely are not learned
from, and the divergence from the reference is estimated without bias though the policy has moved.

    A_i  = s_i - mean_g
    r_it = exp(logp_it - rollout_logp_it)
    M_it = 0 where A_i < 0 and the mean over tokens of (rollout_logp - logp) is above delta, else 1
    l_it = M_it max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high)) + kl_loss_coef * r_it k3(logp, ref_logp)
    loss = mean over rows of the mean over tokens of l_it

The gradient of r k3 goes through both. A row that is left out stays in denominators and in its group's mean.

Choices, where libraries differ: the ratio is against the policy that sampled (`parts.bypass`), so there is nothing to
score before the update but the reference.

Metrics: those of `parts.policy`, in which `kl` and `ratio` are against the policy that sampled; `kl_reference` is k3.

Differences from the paper:

1. `delta`, the coefficient and the clip bounds are unpublished: the defaults here are ours [unverified].
2. Routing and sampling masks, which it keeps between sampler and trainer, are their engines' business.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, of_fields
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.bypass import bypass_old_logp
from purerl.algos.parts.corrections import sequence_masked
from purerl.algos.parts.divergences import importance_k3
from purerl.algos.parts.policy import clipped_policy, per_token
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of GRPO as in DeepSeek-V3.2."""

    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, least=0, most=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.2, least=0)
    delta: float = number("mean distance beyond which a bad row is not learned from", 0.1, least=0, unit="nats")
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """GRPO of DeepSeek-V3.2 as `config` sets it."""
    policy = clipped_policy(
        per_token,
        sequence_mean_of_token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    plain = Algorithm(("reward",), outcome_advantage(group_centered_advantage), (_unbiased(policy),), min_group_size=2)
    return bypass_old_logp(sequence_masked(plain, delta=config.delta))


def _unbiased(policy: Objective) -> Objective:
    kl = of_fields(importance_k3, "logp", "old_logp", "ref_logp")
    return policy._replace(terms=tuple(t._replace(loss=kl) if t.name == "ref_kl" else t for t in policy.terms))
