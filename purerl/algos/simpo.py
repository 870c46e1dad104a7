"""SimPO, simple preference optimization with a reference-free reward: Meng et al. 2024 (2405.14734).

The implicit reward of SimPO is the mean log-probability of a completion, which is also what decoding maximizes. It
needs no reference model, and long completions have no larger rewards. The reward of the chosen completion has to be
larger by a target margin.

    L_i  = (1 / n_i) sum_t logp_it
    D_g  = L_chosen - L_rejected
    loss = -(1 / pairs) sum_g log sigmoid(beta * D_g - target_margin)

L_chosen and L_rejected are those of the two rows of pair g, and n_i is the number of tokens of row i. The rest is as in
`dpo`.

Choices that differ between libraries:

- `target_margin` is that of beta * D_g. The paper calls it gamma, and TRL `simpo_gamma`, with the default 0.5 and a
  `beta` of 0.1. The authors' code sets its ratio to beta. The defaults here are those of this code: a beta of 2 and a
  ratio of 0.25.

Metrics, means over the pairs:

- `policy/accuracy`: fraction of pairs with D_g > 0.
- `policy/margin`: beta * D_g. `policy/chosen_reward` and `policy/rejected_reward` are beta * L of the two rows.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import dpo
from purerl.algos.algebra import Algorithm, bind, identity
from purerl.algos.parts.elementwise import logsigmoid
from purerl.algos.parts.preferences import pair_objective, per_token, without_anchor
from purerl.algos.parts.settings import number
from purerl.types import RowFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm", "target_margin_loss"]

EXEMPTIONS = dpo.EXEMPTIONS


@frozen(kw_only=True)
class Config:
    """Hyperparameters of SimPO."""

    beta: float = number("scale of the reward, the mean log-probability of a completion", 2.0, above=0)
    target_margin: float = number("by how much the reward of the chosen completion should be larger", 0.5, min=0)


def target_margin_loss(chosen: RowFloat, rejected: RowFloat, *, beta: float, target_margin: float) -> RowFloat:
    """Compute the loss of SimPO.

        l = -log sigmoid(beta (c - r) - target_margin)

    c and r are mean log-probabilities, nats per token. Shapes: [rows] each. Source: SimPO (2405.14734, eq. 6).

    >>> import torch
    >>> target_margin_loss(torch.tensor([-1.0]), torch.tensor([-2.0]), beta=2.0, target_margin=2.0)
    tensor([0.6931])
    """
    return -logsigmoid(beta * (chosen - rejected) - target_margin)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build SimPO from `config`."""
    loss = ("preference", bind(target_margin_loss, beta=config.beta, target_margin=config.target_margin), 1.0)
    objective = pair_objective(per_token(without_anchor), loss, reads=(), beta=config.beta)
    return Algorithm(reads=(), advantage=identity, objectives=(objective,))
