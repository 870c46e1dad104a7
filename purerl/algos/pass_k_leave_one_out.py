"""Leave-one-out pass@k: Tang et al. 2025, Optimizing Language Models for Inference Time Objectives (2503.19595).

The objective is the maximum reward of a group. The advantage of a row is the amount by which the maximum would fall
without this row. It is 0 for all rows except the best one, whose advantage is its lead over the second best. The
maximum of the other rows is a baseline that does not depend on the row. The expected gradient is therefore the gradient
of the expected maximum over the group.

    A_i  = max_g(s) - M_i

M_i is the maximum of s over the other rows of the group. The rest is as in `rloo`.

Choices that differ between libraries:

- k is the size of the group.
- The advantage is not divided by the standard deviation of the group. verl divides by it (ddof 1, plus 1e-6), unless
  `norm_adv_by_std_in_grpo=False`.
- If two rows share the maximum, every advantage of the group is 0.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import rloo
from purerl.algos.algebra import Algorithm
from purerl.algos.estimators.pass_k import leave_one_out_max_advantage
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """Hyperparameters of leave-one-out pass@k."""


def algorithm(config: Config = Config()) -> Algorithm:
    """Build leave-one-out pass@k from `config`."""
    return rloo.algorithm()._replace(advantage=outcome_advantage(leave_one_out_max_advantage))
