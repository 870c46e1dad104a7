"""GRPO as in DeepSeek-V3.2: DeepSeek-AI 2025 (2512.02556).

A variant of GRPO for rows that were sampled by a policy other than the current one. Rows with negative advantage are
ignored if they have become unlikely. The estimate of the KL divergence from the reference model is unbiased, although
the policy has changed since the rows were sampled.

    A_i  = s_i - mean_g
    r_it = exp(logp_it - rollout_logp_it)
    M_i  = 0    if A_i < 0 and (1 / n_i) sum_t (rollout_logp_it - logp_it) > delta
           1    else
    c_it = max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))
    l_it = M_i c_it + kl_loss * r_it k3(logp_it, ref_logp_it)
    loss = (1 / rows) sum_i (1 / n_i) sum_t l_it

The gradient of the KL term goes through both factors, r_it and k3. A row with M_i = 0 stays in the denominators and in
the mean of its group.

s_i is the sum of all rewards of row i, and n_i its number of tokens. g is its group: the N_g rows of one prompt. `rows`
is the number of rows of the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- The ratio is relative to the rollout policy (see `parts.bypass`). Before an update, log-probabilities are computed by
  the reference model only, if `kl_loss` is above 0.
- In a group of one row, every advantage is 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(rollout policy || policy), nats.
- `policy/ratio`: importance ratio r_it, relative to the rollout policy.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped.
- `policy/entropy`: entropy of the next-token distribution, nats.
- `policy/ref_kl`: k3 estimate of KL(policy || reference model), nats; only if `kl_loss` is above 0.

Differences from the paper:

1. The paper does not publish `delta`, `kl_loss` or the clip offsets. The defaults are ours (unverified).
2. The paper reuses the routing and the sampling masks of the generator in the trainer. Here this is left to the
   engines.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.modifiers import kl_loss
from purerl.algos.parts.bypass import bypass_old_logp
from purerl.algos.parts.corrections import mask_off_policy_sequences
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """Hyperparameters of GRPO as in DeepSeek-V3.2."""

    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number("upper clip offset: the ratio is clipped above 1 + clip_high", 0.2, min=0)
    delta: float = number(
        "rows with A < 0 are ignored if their mean of rollout_logp - logp exceeds this", 0.1, min=0, unit="nats"
    )
    kl_loss: float = number("coefficient of the KL penalty in the loss (0: no reference model)", 0.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GRPO as in DeepSeek-V3.2 from `config`."""
    policy = clipped_policy(
        token_level_ratio,
        sequence_mean_of_token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
    )
    base = Algorithm(("reward",), outcome_advantage(group_centered_advantage), (policy,), min_group_size=2)
    base = mask_off_policy_sequences(base, delta=config.delta)
    if config.kl_loss:
        base = kl_loss.modify(kl_loss.Config(coef=config.kl_loss, estimator="importance_k3"), base)
    return bypass_old_logp(base)
