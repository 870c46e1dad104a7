"""OPO, on-policy RL with optimal reward baseline: Hao et al. 2025 (2505.23585).

The baseline that minimizes the variance of a policy gradient is a mean of the rewards, weighted by the squared norm of
the gradient of each row's log-probability. If this norm grows like the length of the row, the weights are the lengths.
With this baseline and strictly on-policy rows, OPO needs no ratio, no clipping, no KL penalty and no entropy bonus.

    A_i  = s_i - sum_g(n_j s_j) / sum_g(n_j)

s_j is the total reward of row j, and n_j its number of tokens. sum_g() is over the rows of the group of row i. The
rest is as in `rloo`.

Choices that differ between libraries:

- Log-probabilities are summed over tokens, because the baseline is optimal for this sum. The reduction of the authors'
  code is unverified.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import rloo
from purerl.algos.algebra import Algorithm, stateless, write_field
from purerl.algos.estimators.group_relative import length_weighted_advantage
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.kernels.masks import any_true, count_true
from purerl.types import TensorDict, TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """Hyperparameters of OPO."""


def algorithm(config: Config = Config()) -> Algorithm:
    """Build OPO from `config`."""
    return rloo.algorithm()._replace(advantage=stateless(write_field("advantage", _length_weighted_advantage)))


def _length_weighted_advantage(batch: TensorDict) -> TokenFloat:
    score, mask = batch["reward"].sum(-1), batch["mask"]
    length = count_true(mask).to(score.dtype)
    return broadcast_to_tokens(length_weighted_advantage(score, length, batch["group"], any_true(mask)), mask)
