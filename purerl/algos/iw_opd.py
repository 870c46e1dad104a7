"""IW-OPD, importance-weighted on-policy distillation: Xie et al. 2026 (2606.22600).

In a long completion, the policy leaves the prefixes that the teacher would write. What the teacher says about later
tokens is then less useful. IW-OPD is `opd` with a weight for each token, which falls with the discrepancy of policy and
teacher that has accumulated before it.

    a_it = teacher_logp_it - old_logp_it
    w_it = 1 + weight_coef (1 - sum_{s<t} abs(a_is) / sum_s abs(a_is))
    A_it = w_it a_it
    r_it = exp(logp_it - old_logp_it)
    loss = -(1 / tokens) sum_it A_it r_it

The rest is as in `opd`.

Differences from the paper:

1. The equations are those of TRL's trainer; the paper's were not read. TRL has the loss -A_it logp_it, whose gradient
   is the same in the first optimizer step of an update.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import opd
from purerl.algos.algebra import Algorithm, chain, of_fields, stateless, write_field
from purerl.algos.parts.distillation import prefix_weight
from purerl.algos.parts.settings import number
from purerl.types import TokenBool, TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """Hyperparameters of IW-OPD."""

    weight_coef: float = number("how much larger the weight of the first token is than 1", 0.5, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build IW-OPD from `config`."""
    unweighted = opd.algorithm()
    weighting = stateless(
        write_field("advantage", of_fields(_weighted, "advantage", "mask", weight_coef=config.weight_coef))
    )
    return unweighted._replace(advantage=chain(unweighted.advantage, weighting))


def _weighted(advantage: TokenFloat, mask: TokenBool, *, weight_coef: float) -> TokenFloat:
    return prefix_weight(advantage, mask, weight_coef=weight_coef) * advantage
