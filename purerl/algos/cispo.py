"""CISPO, clipped importance-sampling policy optimization: MiniMax 2025, MiniMax-M1 (2506.13585).

PPO's clipping removes the gradient of the tokens whose probability changes most. These are often rare tokens at which
the reasoning changes direction. CISPO clips the importance weight instead of the loss. Every token keeps a gradient,
and its size is bounded.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    r_it = exp(logp_it - old_logp_it)
    w_it = clip(r_it, 1 - clip_low, 1 + clip_high)
    loss = -(1 / tokens) sum_it sg(w_it) A_i logp_it

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1. sg() stops the gradient.

Choices that differ between libraries:

- `clip_high` is an offset from 1, as in every algorithm here. The default weight is therefore at most 5. Some libraries
  take the bound itself.
- The standard deviation divides by N_g - 1.
- In a group of one row, every advantage is 0.
- The loss is divided by the tokens of the whole optimizer step.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/weight`: weight w_it.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The paper tunes the upper bound and does not publish it (unverified). The default is ScaleRL's (2510.13786), as in
   TRL. By default there is no lower bound, as in the paper.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import weighted_policy
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.algos.parts.weights import clipped_weight

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "gradient_matches_finite_differences": "the weight is detached, so the gradient is not the derivative of the loss"
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of CISPO."""

    clip_low: float = number("the weight is at least 1 - clip_low; at 1 there is no lower bound", 1.0, min=0, max=1)
    clip_high: float = number("the weight is at most 1 + clip_high", 4.0, min=0, infinite="no upper bound")


def algorithm(config: Config = Config()) -> Algorithm:
    """Build CISPO from `config`."""
    policy = weighted_policy(
        of_fields(clipped_weight, "logp", "old_logp", clip_low=config.clip_low, clip_high=config.clip_high),
        token_mean,
        behavior="old_logp",
    )
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(policy,),
        min_group_size=2,
    )
