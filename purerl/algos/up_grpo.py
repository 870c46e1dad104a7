"""UP-GRPO, unbounded positive GRPO: 2026 (2607.06987).

PPO and GRPO clip both good and bad tokens. UP-GRPO bounds the update only where it can destroy something: at tokens
with a negative advantage. Tokens with a positive advantage have neither a ratio nor a clip: they are learned as in SFT,
weighted by the advantage. The training-inference mismatch cannot change their weight.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    r_it = exp(logp_it - old_logp_it)
    w_it = 1       if A_i > 0
           r_it    else if 1 - clip_low <= r_it <= ratio_cap
           0       else
    loss = -(1 / tokens) sum_it sg(w_it) A_i logp_it

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1. sg() stops the gradient.

Choices that differ between libraries:

- The standard deviation divides by N_g - 1.
- In a group of one row, every advantage is 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/weight`: weight w_it.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The gradient is that of the surrogates -A pi / sg(pi) if A > 0, and of GRPO with dual clip else. The value is that of
   the linear form above.
2. Only the abstract and a description of the loss could be read. The bounds are those of GRPO and of dual clip
   (unverified), and so is the mean over tokens.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import weighted_policy
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.algos.parts.weights import unbounded_positive_weight

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "gradient_matches_finite_differences": "the weight is detached, so the gradient is not the derivative of the loss"
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of UP-GRPO."""

    clip_low: float = number("a token with A < 0 has no gradient if its ratio is below 1 - clip_low", 0.2, min=0, max=1)
    ratio_cap: float = number(
        "a token with A < 0 has no gradient if its ratio is above this", 3.0, min=1, infinite="no upper bound"
    )


def algorithm(config: Config = Config()) -> Algorithm:
    """Build UP-GRPO from `config`."""
    bounds = {"clip_low": config.clip_low, "ratio_cap": config.ratio_cap}
    weight = of_fields(unbounded_positive_weight, "logp", "old_logp", "advantage", **bounds)
    policy = weighted_policy(weight, token_mean, behavior="old_logp")
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(policy,),
        min_group_size=2,
    )
