"""M2PO, second-moment trust policy optimization: Zheng et al. 2025 (2510.01161).

M2PO is for rows that are many updates old. Clipping every token at the same ratio would remove most of the rare and
informative tokens. M2PO bounds the second moment of the log-ratios of the whole optimizer step instead. It drops as few
tokens as possible, those with the largest log-ratios, and clips nothing.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    e_it = old_logp_it - rollout_logp_it
    l_it = 0                                      if token (i, t) is in P
           -A_i exp(logp_it - rollout_logp_it)    else
    loss = (1 / tokens) sum_it l_it

The candidates are the tokens with (A_i > 0, e_it > 0) or (A_i < 0, e_it < 0). P contains the candidates with the
largest e_it^2, as few as possible, so that the mean of e_it^2 over the other candidates is at most `moment_bound`.

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- The mean of e_it^2 is over the candidates: the tokens that have moved in the direction of their advantage. AReaL takes
  it over all tokens.
- Tokens of P stay in the denominator `tokens`.
- The ratio of the other tokens is not clipped.
- The authors' code clips candidates, as PPO, instead of dropping them: at exp(tau) if A_i > 0, at exp(-tau) if A_i < 0.
  tau comes from the capped sum: it is the largest abs(e_jt) of a candidate for which the sum of min(e_it^2, tau^2) over
  the candidates is below moment_bound times their number. And it never clips a ratio in [0.7, 1.5].
- The standard deviation divides by N_g - 1.
- In a group of one row, every advantage is 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/sampler_kl`: k3 estimate of KL(rollout policy || policy), nats.
- `policy/weight`: importance ratio exp(logp_it - rollout_logp_it).
- `policy/entropy`: entropy of the next-token distribution, nats.
- `policy/dropped_fraction`: fraction of tokens in P.

Differences from the paper:

1. Tokens are chosen over the whole optimizer step, from `old_logp`. The choice then does not depend on the
   micro-batches. The paper uses the current log-probabilities. Both are equal in the first optimizer step after the
   rollouts.
2. P also contains the tokens that tie with its last one.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import drop_tokens, policy_objective, sampler_kl
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.selection import second_moment_outliers
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import importance_surrogate, token_ratio
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"group_independence": "tokens are chosen over the whole optimizer step"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of M2PO."""

    moment_bound: float = number(
        "maximum of the mean squared log-ratio", 0.04, min=0, unit="nats^2", infinite="no maximum"
    )


def algorithm(config: Config = Config()) -> Algorithm:
    """Build M2PO from `config`."""
    policy = policy_objective(
        of_fields(importance_surrogate, "logp", "rollout_logp", "advantage"),
        token_mean,
        reads=("rollout_logp", "advantage"),
        metrics={"sampler_kl": sampler_kl, "weight": of_fields(token_ratio, "logp", "rollout_logp")},
    )
    choice = of_fields(
        second_moment_outliers, "old_logp", "rollout_logp", "advantage", "mask", moment_bound=config.moment_bound
    )
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(drop_tokens(policy, choice, "old_logp"),),
        min_group_size=2,
    )
