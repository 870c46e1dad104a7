"""VESPO, variational sequence-level soft policy optimization: Shen et al. 2026 (2602.10693).

The importance ratio of a whole row is unbiased, but its variance is too large to be useful. VESPO uses a gamma-shaped
function of it: the weight that is close to the ratio and has a bounded second moment. The weight of rows that have
become much less or much more likely goes to 0 smoothly. There is no clip and no division by the length.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    W_i  = exp(sum_t (logp_it - rollout_logp_it))
    w_i  = W_i^power * exp(decay * (1 - W_i))
    loss = -(1 / tokens) sum_it sg(w_i) A_i logp_it

w_i is 1 at W_i = 1 and largest at W_i = power / decay. For rows with negative advantage, power and decay are
`power_negative` and `decay_negative`. For all other rows, they are `power_positive` and `decay_positive`.

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1. sg() stops the gradient.

Choices that differ between libraries:

- The sum of log-ratios is clamped to [-20, 20].
- The standard deviation divides by N_g - 1.
- In a group of one row, every advantage is 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/sampler_kl`: k3 estimate of KL(rollout policy || policy), nats.
- `policy/weight`: weight w_i.
- `policy/entropy`: entropy of the next-token distribution, nats.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import weighted_policy
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.algos.parts.weights import gamma_weight

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "episode_invariance": "the weight is that of a row, which need not be the whole episode",
    "gradient_matches_finite_differences": "the weight is detached, so the gradient is not the derivative of the loss",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of VESPO."""

    power_positive: float = number("A >= 0: a larger power reduces the weight of less likely rows", 2.0, min=0)
    decay_positive: float = number("A >= 0: a larger decay reduces the weight of more likely rows", 3.0, min=0)
    power_negative: float = number("A < 0: a larger power reduces the weight of less likely rows", 3.0, min=0)
    decay_negative: float = number("A < 0: a larger decay reduces the weight of more likely rows", 2.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build VESPO from `config`."""
    weight = of_fields(
        gamma_weight,
        "logp",
        "rollout_logp",
        "advantage",
        "mask",
        power_positive=config.power_positive,
        decay_positive=config.decay_positive,
        power_negative=config.power_negative,
        decay_negative=config.decay_negative,
    )
    policy = weighted_policy(weight, token_mean, behavior="rollout_logp")
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(policy,),
        min_group_size=2,
    )
