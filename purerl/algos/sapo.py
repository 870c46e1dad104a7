"""SAPO, soft adaptive policy optimization: Gao et al. 2025 (2511.20347).

SAPO is GRPO without a hard clip. A sigmoid of the ratio reduces the gradient of a token smoothly as the token moves
away from the old policy. It does so faster for negative advantages: lowering the probability of one token raises the
probabilities of all others, and this causes instability.

    A_i   = (s_i - mean_g) / (std_g + 1e-6)
    r_it  = exp(logp_it - old_logp_it)
    tau_i = gate_positive    if A_i > 0
            gate_negative    else
    l_it  = -(4 / tau_i) sigmoid(tau_i (r_it - 1)) A_i
    loss  = (1 / rows) sum_i (1 / n_i) sum_t l_it

s_i is the sum of all rewards of row i, and n_i its number of tokens. g is its group: the N_g rows of one prompt. `rows`
is the number of rows of the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- The standard deviation divides by N_g - 1.
- In a group of one row, every advantage is 0.
- The paper calls tau a temperature. Here its two values are `gate_positive` and `gate_negative`, because `temperature`
  is the sampling temperature.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The loss is a mean over all rows of the optimizer step. The paper first averages within each group. Both are equal if
   all groups have the same size.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, bind
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import approx_kl, policy_objective, token_level_ratio
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import soft_gate_surrogate
from purerl.algos.parts.transforms import outcome_advantage
from purerl.types import TensorDict, TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """Hyperparameters of SAPO."""

    gate_positive: float = number(
        "slope of the gate if A > 0: a larger value reduces the gradient faster", 1.0, above=0
    )
    gate_negative: float = number(
        "slope of the gate if A <= 0: a larger value reduces the gradient faster", 1.05, above=0
    )


def algorithm(config: Config = Config()) -> Algorithm:
    """Build SAPO from `config`."""
    policy = policy_objective(
        bind(_soft_gate_surrogate, gate_positive=config.gate_positive, gate_negative=config.gate_negative),
        sequence_mean_of_token_mean,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": approx_kl, "ratio": token_level_ratio},
    )
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(policy,),
        min_group_size=2,
    )


def _soft_gate_surrogate(batch: TensorDict, **gates: float) -> TokenFloat:
    return soft_gate_surrogate(token_level_ratio(batch), batch["advantage"], **gates)
