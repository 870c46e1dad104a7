"""BPO, ratios of the complementary probabilities: 2026 (2609.15987).

The ratio of the probabilities of a rare token changes by large factors, although hardly anything has moved. BPO takes
the ratio of the probabilities that the token is another one instead. It is near 1 at rare tokens, and moves at tokens
that the policy is sure of.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    w_it = (1 + eps - exp(rollout_logp_it)) / (1 + eps - exp(logp_it))
    v_it = 0                        if (A_i > 0, w_it > 1 + clip_high) or (A_i < 0, w_it < 1 - clip_low)
           min(w_it, weight_cap)    else
    loss = -(1 / rows) sum_i (1 / n_i) sum_t sg(v_it) A_i logp_it

s_i is the sum of all rewards of row i, and n_i its number of tokens. g is its group: the N_g rows of one prompt. `rows`
is the number of rows of the optimizer step. Losses, means and counts cover only tokens where `mask` is 1. sg() stops
the gradient.

Choices that differ between libraries:

- The standard deviation divides by N_g - 1.
- In a group of one row, every advantage is 0.
- The ratio is to the rollout policy, as the generator computed its probabilities. So it corrects for stale weights and
  for the training-inference mismatch, and no log-probabilities of an old policy are computed.

Metrics, means over the tokens where `mask` is 1:

- `policy/sampler_kl`: k3 estimate of KL(rollout policy || policy), nats.
- `policy/weight`: weight v_it.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The weight, its bounds and the mean within rows are the paper's. Its advantage is not known: that of GRPO is used
   (unverified).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import weighted_policy
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.algos.parts.weights import complement_weight

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "gradient_matches_finite_differences": "the weight is detached, so the gradient is not the derivative of the loss"
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of BPO."""

    eps: float = number("added to both probabilities that the token is another one", 0.1, above=0)
    clip_low: float = number(
        "a token with A < 0 has no gradient if its weight is below 1 - clip_low", 0.2, min=0, max=1
    )
    clip_high: float = number(
        "a token with A > 0 has no gradient if its weight is above 1 + clip_high", 0.28, min=0, infinite="no bound"
    )
    weight_cap: float = number("maximum of the weight of a token", 3.0, above=0, infinite="no maximum")


def algorithm(config: Config = Config()) -> Algorithm:
    """Build BPO from `config`."""
    weight = of_fields(
        complement_weight,
        "logp",
        "rollout_logp",
        "advantage",
        eps=config.eps,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        weight_cap=config.weight_cap,
    )
    policy = weighted_policy(weight, sequence_mean_of_token_mean, behavior="rollout_logp")
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(policy,),
        min_group_size=2,
    )
