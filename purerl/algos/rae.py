"""RAE, role-conditioned advantage estimation: Liu et al. 2025, SPIRAL (2506.24119).

In self-play, a game can favor one of the players. RAE has one baseline per role, that is, per game and player: a moving
average of the scores of this role, which is kept from batch to batch.

    A_i    = s_i - b_role
    b_role <- decay^n b_role + (1 - decay^n) mean_role

s_i is the sum of all rewards of row i. mean_role is the mean score of the n rows of the role in the batch. b_role is 0
at first, and it is updated after the advantages are computed. The loss is as in `rloo`.

The field `role` is the index of the role, from 0 on. The environment has to supply it. Indices from `roles` on share
the baselines of earlier ones (`role` modulo `roles`).

Choices that differ between libraries:

- The baseline is used before it is updated, as in the authors' code. The paper updates it first, so its advantage is
  `decay` times this one.

Differences from the paper:

1. All rows of a batch update the average in one step, as n updates with their mean would. The authors' code updates it
   row by row, so the result depends on the order of the rows.
2. Log-probabilities are summed over tokens (unverified).
"""

from __future__ import annotations

import torch
from attrs import frozen

from purerl.algos import rloo
from purerl.algos.algebra import Algorithm, Transform, bind
from purerl.algos.estimators.trackers import table_lookup, update_moving_average
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import integer, number
from purerl.batch import with_fields
from purerl.kernels.masks import any_true
from purerl.types import TensorDict

__all__ = ["EXEMPTIONS", "Config", "algorithm", "role_advantage"]

EXEMPTIONS = {"reward_shift_invariance": "the baseline comes from earlier batches and does not depend on the shift"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of RAE."""

    decay: float = number("decay of a baseline per row of its role", 0.95, min=0, max=1)
    roles: int = integer("number of roles that have their own baseline", 64, min=1)


def role_advantage(*, decay: float, roles: int) -> Transform:
    """Write `advantage`: the score minus the baseline of the row's role.

    Reads `reward` and `role`. State: the baselines, float64 [roles].
    """
    return Transform(bind(_initial_baselines, roles=roles), bind(_role_advantage, decay=decay, roles=roles))


def _initial_baselines(*, roles: int) -> torch.Tensor:
    return torch.zeros(roles, dtype=torch.float64)


def _role_advantage(
    table: torch.Tensor, batch: TensorDict, *, decay: float, roles: int
) -> tuple[torch.Tensor, TensorDict]:
    score, mask, key = batch["reward"].sum(-1), batch["mask"], batch["role"] % roles
    advantage = score - table_lookup(table, key).to(score.dtype)
    table = update_moving_average(table, score, key, any_true(mask), decay=decay)
    return table, with_fields(batch, advantage=broadcast_to_tokens(advantage, mask))


def algorithm(config: Config = Config()) -> Algorithm:
    """Build RAE from `config`."""
    advantage = role_advantage(decay=config.decay, roles=config.roles)
    return rloo.algorithm()._replace(reads=("reward", "role"), advantage=advantage, min_group_size=1)
