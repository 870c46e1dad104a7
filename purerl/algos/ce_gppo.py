"""CE-GPPO, coordinating entropy via gradient-preserving policy optimization: Su et al. 2025 (2509.20712).

PPO removes the gradient of clipped tokens. Those below the clip range are unlikely tokens with a negative advantage:
without them, entropy grows. Those above it are unlikely tokens with a positive advantage: without them, it collapses.
CE-GPPO keeps both gradients, with the size that they have at the bound, times a coefficient for each side.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    r_it = exp(logp_it - old_logp_it)
    w_it = low_coef (1 - clip_low)      if A_i < 0 and r_it < 1 - clip_low
           high_coef (1 + clip_high)    if A_i > 0 and r_it > 1 + clip_high
           r_it                         else
    loss = -(1 / tokens) sum_it sg(w_it) A_i logp_it

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1. sg() stops the gradient.

Choices that differ between libraries:

- The standard deviation divides by N_g - 1.
- In a group of one row, every advantage is 0.
- The loss is divided by the tokens of the whole optimizer step.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/weight`: weight w_it.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The paper writes surrogates with partly detached ratios, such as -low_coef (1 - clip_low) r / sg(r) A. The
   gradient is the same, the value is not.
2. The paper calls the coefficients beta_1 and beta_2. The defaults are those of the authors' code for their model of 7
   billion parameters. They take a low_coef of 0.5 for the smaller one.
3. The code of the authors has no gradient at tokens with a negative advantage and a ratio above 10. Here these keep it,
   as in the formulas of the paper.
4. The authors leave out groups with equal rewards. The modifier `group_filter` does so.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import weighted_policy
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.algos.parts.weights import gradient_preserving_weight

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "gradient_matches_finite_differences": "the weight is detached, so the gradient is not the derivative of the loss"
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of CE-GPPO."""

    clip_low: float = number("lower clip offset: the clip range begins at 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number("upper clip offset: the clip range ends at 1 + clip_high", 0.2, min=0)
    low_coef: float = number("factor of the gradient of tokens below the clip range", 0.75, min=0)
    high_coef: float = number("factor of the gradient of tokens above the clip range", 1.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build CE-GPPO from `config`."""
    settings = {name: getattr(config, name) for name in ("clip_low", "clip_high", "low_coef", "high_coef")}
    weight = of_fields(gradient_preserving_weight, "logp", "old_logp", "advantage", **settings)
    policy = weighted_policy(weight, token_mean, behavior="old_logp")
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(policy,),
        min_group_size=2,
    )
