"""Double-sided importance sampling: GLM-5 Team 2026 (2602.15763).

Asynchronous training has rollouts of several older policies. Here a token has one ratio, to the policy that sampled it,
as the generator computed its probability. It corrects both for stale weights and for the training-inference mismatch,
and no log-probabilities of an old policy are computed. Tokens whose ratio is outside of a band have no gradient, for
either sign of the advantage.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    r_it = exp(logp_it - rollout_logp_it)
    w_it = r_it    if 1 - clip_low <= r_it <= 1 + clip_high
           0       else
    loss = -(1 / tokens) sum_it sg(w_it) A_i logp_it

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1. sg() stops the gradient.

Choices that differ between libraries:

- The standard deviation divides by N_g - 1.
- In a group of one row, every advantage is 0.
- `icepop` has a band, too, but for the ratio of old and rollout policy, beside the clipped ratio of PPO.

Metrics, means over the tokens where `mask` is 1:

- `policy/sampler_kl`: k3 estimate of KL(rollout policy || policy), nats.
- `policy/weight`: weight w_it.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The equations and the bounds are those of the loss `rollout_is` of SkyRL, which was read. The report was not: its
   bounds, reduction and advantage were not checked.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import weighted_policy
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.algos.parts.weights import double_sided_weight

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "gradient_matches_finite_differences": "the weight is detached, so the gradient is not the derivative of the loss"
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of double-sided importance sampling."""

    clip_low: float = number("tokens with a ratio below 1 - clip_low have no gradient", 0.2, min=0, max=1)
    clip_high: float = number(
        "tokens with a ratio above 1 + clip_high have no gradient", 0.2, min=0, infinite="no upper bound"
    )


def algorithm(config: Config = Config()) -> Algorithm:
    """Build double-sided importance sampling from `config`."""
    clip = {"clip_low": config.clip_low, "clip_high": config.clip_high}
    weight = of_fields(double_sided_weight, "logp", "rollout_logp", **clip)
    policy = weighted_policy(weight, token_mean, behavior="rollout_logp")
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(policy,),
        min_group_size=2,
    )
