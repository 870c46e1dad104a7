"""DPPO, divergence PPO, with total variation: Qi et al. 2026 (2602.04879).

The importance ratio is a poor measure of how much probability has moved. A rare token can have a large ratio although
hardly any probability has moved. The ratio of a frequent token can be near 1 although much probability has moved. DPPO
therefore drops a token if the divergence between the policy and the rollout policy is too large. The divergence is
estimated from the sampled token: it is the divergence of two distributions with two outcomes, this token and any other
token. `dppo_kl` uses the KL divergence instead.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    p_it = exp(logp_it)
    q_it = exp(rollout_logp_it)
    D_it = abs(p_it - q_it)
    w_it = 0                              if A_i > 0, p_it > q_it, D_it > divergence_high
           0                              if A_i < 0, p_it < q_it, D_it > divergence_low
           min(p_it / q_it, ratio_cap)    else
    loss = -(1 / tokens) sum_it sg(w_it) A_i logp_it

With ``direction = "any"``, the sign of A_i has no effect on w_it. A token that has moved too far against its advantage
is dropped too: if p_it > q_it, with the bound divergence_high, and if p_it < q_it, with divergence_low.

The policy is compared with the rollout policy, not with the policy at the start of the update. The training-inference
mismatch therefore counts as divergence too.

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1. sg() stops the gradient.

Choices that differ between libraries:

- Every token of the optimizer step has the same weight.
- The standard deviation divides by N_g - 1.
- In a group of one row, every advantage is 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/sampler_kl`: k3 estimate of KL(rollout policy || policy), nats.
- `policy/weight`: weight w_it.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The ratio is capped at `ratio_cap`, as in the authors' code. The paper has no cap.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import weighted_policy
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import choice, number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.algos.parts.weights import binary_tv, divergence_banded_weight, divergence_masked_weight
from purerl.types import TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm", "with_divergence"]

EXEMPTIONS = {
    "gradient_matches_finite_differences": "the weight is detached, so the gradient is not the derivative of the loss"
}


_WEIGHTS = {
    "advantage": (divergence_masked_weight, "logp", "rollout_logp", "advantage"),
    "any": (divergence_banded_weight, "logp", "rollout_logp"),
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of DPPO with total variation."""

    divergence_low: float = number(
        "a token with A < 0 is dropped if its divergence exceeds this", 0.15, min=0, infinite="none is dropped"
    )
    divergence_high: float = number(
        "a token with A > 0 is dropped if its divergence exceeds this", 0.15, min=0, infinite="none is dropped"
    )
    ratio_cap: float = number("maximum of the ratio", 10.0, above=0, infinite="no maximum")
    direction: str = choice("a token can be dropped if it moved in this direction", _WEIGHTS, "advantage")


def algorithm(config: Config = Config()) -> Algorithm:
    """Build DPPO with total variation from `config`."""
    return with_divergence(binary_tv, config)


def with_divergence(divergence: Callable[[TokenFloat, TokenFloat], TokenFloat], config: Config) -> Algorithm:
    """DPPO with any divergence(logp, rollout_logp) of a token."""
    function, *fields = _WEIGHTS[config.direction]
    weight = of_fields(
        function,
        *fields,
        divergence=divergence,
        divergence_low=config.divergence_low,
        divergence_high=config.divergence_high,
        ratio_cap=config.ratio_cap,
    )
    policy = weighted_policy(weight, token_mean, behavior="rollout_logp")
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(policy,),
        min_group_size=2,
    )
