"""ASPO, asymmetric importance-sampling policy optimization: Wang et al. 2025 (2510.06062).

In GRPO, the ratio of a token multiplies its gradient. Among tokens with positive advantage, those that have already
become more likely get larger updates than those that have become less likely. ASPO corrects this: it inverts the ratio
of tokens with positive advantage.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    r_it = exp(logp_it - old_logp_it)
    w_it = 0                            if (A_i > 0, r_it > 1 + clip_high) or (A_i < 0, r_it < 1 - clip_low)
           min(1 / r_it, weight_cap)    else if A_i > 0
           min(r_it, weight_cap)        else
    loss = -(1 / tokens) sum_it sg(w_it) A_i logp_it

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1. sg() stops the gradient.

Choices that differ between libraries:

- The standard deviation divides by N_g - 1.
- In a group of one row, every advantage is 0.
- `clip_low` and `clip_high` are DAPO's (unverified).

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/weight`: weight w_it.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The gradient is the paper's, but the value of the loss is not. The paper writes surrogates with partly detached
   ratios. The loss above is their linear form, which is the same for clipped, inverted and capped tokens.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import weighted_policy
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.algos.parts.weights import asymmetric_weight

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "gradient_matches_finite_differences": "the weight is detached, so the gradient is not the derivative of the loss"
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of ASPO."""

    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number(
        "upper clip offset: the ratio is clipped above 1 + clip_high", 0.28, min=0, infinite="not clipped"
    )
    weight_cap: float = number("maximum of the weight of a token", 3.0, above=0, infinite="no maximum")


def algorithm(config: Config = Config()) -> Algorithm:
    """Build ASPO from `config`."""
    weight = of_fields(
        asymmetric_weight,
        "logp",
        "old_logp",
        "advantage",
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        weight_cap=config.weight_cap,
    )
    policy = weighted_policy(weight, token_mean, behavior="old_logp")
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(policy,),
        min_group_size=2,
    )
