"""OAPL, optimal advantage-based policy optimization: as in NeMo-RL, 2026.

OAPL is `a_star_po` without completions that are sampled beforehand: the optimal value of a prompt is estimated from the
group itself. The loss has a target for the log-ratio of whole rows, at which it is 0, and needs neither a clip nor a
correction for stale rows.

    Z_g  = (1 / N_g) sum_g exp(s_j / beta)
    A_i  = s_i - beta log Z_g
    L_i  = sum_t (logp_it - ref_logp_it)
    l_i  = (beta L_i - A_i)^2
    loss = (1 / rows) sum_i l_i

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `rows` is the number of rows of the
optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- Log-probabilities are summed over tokens (NeMo-RL: unverified).
- In a group of one row the advantage is 0, and the loss pulls the row to the reference model.
- The estimate of Z_g is exact for rows of the reference model. With rows of another policy, A_i is relative to the
  value of their own distribution. `roles.reference.update_every` lets the reference model follow the policy.

Metrics, means over the tokens where `mask` is 1:

- `policy/ref_kl`: k3 estimate of KL(policy || reference), nats.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the source:

1. Only the equation of the loss was read. The default of `beta` is ours (unverified).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import a_star_po
from purerl.algos.algebra import Algorithm, bind
from purerl.algos.estimators.optimal_value import optimal_group_advantage
from purerl.algos.parts.settings import base_settings, number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    **a_star_po.EXEMPTIONS,
    "reward_scale_equivariance": "beta is in units of reward, and does not scale with the rewards",
}


@frozen(kw_only=True)
class Config(a_star_po.Config):
    """Hyperparameters of OAPL: that of A*-PO, with another default."""

    beta: float = number("weight of the KL penalty, in reward per nat", 0.1, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build OAPL from `config`."""
    advantage = outcome_advantage(bind(optimal_group_advantage, beta=config.beta))
    base = a_star_po.algorithm(base_settings(config, a_star_po.Config))
    return base._replace(reads=("reward",), advantage=advantage, min_group_size=2)
