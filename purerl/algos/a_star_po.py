"""A*-PO, regression on the optimal advantage: Brantley et al. 2025 (2505.20686).

With a KL penalty of weight beta, the log-ratio of the optimal policy to the reference model is the optimal advantage,
divided by beta. The optimal advantage is the reward minus the optimal value of the prompt. This value only depends on
the reference model, so it is estimated once, before training. A*-PO then regresses log-ratios on advantages. One
completion per prompt is enough: there is no baseline of a group, and no critic.

    A_i  = s_i - optimal_value_i
    L_i  = sum_t (logp_it - ref_logp_it)
    loss = (1 / rows) sum_i (beta * L_i - A_i)^2

The data set has a column `optimal_value`, which `purerl data values` computes by `optimal_value` from an evaluation of
the reference model:

    V = value_beta log((1 / n) sum_k exp(s_k / value_beta))

The sum is over n completions of the prompt. value_beta may differ from beta. The authors' setting for mathematics is a
value_beta of 0.5, a beta of 0.001, and n = 8.

s_i is the sum of all rewards of row i. `rows` is the number of rows of the optimizer step. Losses, means and counts
cover only tokens where `mask` is 1.

Choices that differ between libraries:

- Log-probabilities are summed over tokens.
- The minimum of the loss does not depend on which policy has sampled the rows. So several optimizer steps with the same
  rows are accepted, without a ratio to the old policy.

Metrics, means over the tokens where `mask` is 1:

- `policy/ref_kl`: k3 estimate of KL(policy || reference), nats.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The equations are those of the authors' code. Of the paper itself only the abstract was read.
2. The authors' code can leave out prompts without a correct completion. This is a choice of the data here.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, bind, of_fields, stateless, write_field
from purerl.algos.parts.divergences import k3
from purerl.algos.parts.policy import policy_objective, reference_regression_of
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import number
from purerl.types import RowFloat, TokenBool, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "episode_invariance": "the regression is of the log-ratio of a row, which need not be the whole episode",
    "reinforce_gradient_on_policy": "it is a regression, whose gradient also depends on the reference model",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of A*-PO."""

    beta: float = number("weight of the KL penalty, in reward per nat", 1e-3, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build A*-PO from `config`."""
    policy = policy_objective(
        bind(reference_regression_of, beta=config.beta),
        sequence_mean_of_token_mean,
        reads=("ref_logp", "advantage"),
        metrics={"ref_kl": of_fields(k3, "logp", "ref_logp")},
    )
    advantage = stateless(write_field("advantage", of_fields(_optimal_advantage, "reward", "optimal_value", "mask")))
    return Algorithm(reads=("reward", "optimal_value"), advantage=advantage, objectives=(policy,))


def _optimal_advantage(reward: TokenFloat, value: RowFloat, mask: TokenBool) -> TokenFloat:
    return broadcast_to_tokens(reward.sum(-1) - value, mask)
