"""RAE, role-conditioned advantage estimation: Liu et al. 2025, SPIRAL (2506.24119).

In self-play a game may favor one player. A baseline for each role, that is for each game and seat, takes that out: a
moving average of the scores that the role has had, kept from batch to batch.

    A_i  = s_i - b_role                                          b as it was before the batch; 0 at first
    b    = decay^n b + (1 - decay^n) (mean score of the role's n rows)
    loss = -(1 / rows) sum_i A_i sum_t logp_it

`role` numbers the roles from 0 on: a field, which the environment has to supply. Numbers from `roles` on share the
places of earlier ones.

Choices, where libraries differ: the baseline is used before it is updated, as in the authors' code (the paper updates
first, so that its advantage is decay times this one). There is no ratio and nothing is clipped, so one optimizer step
for each batch is the algorithm.

Differences from the paper:

1. The rows of a batch update the average at once, as n updates with their mean would; the authors' code takes them one
   after the other, so that the result depends on their order.
2. Log-probabilities are summed over tokens [unverified], and an entropy bonus may be added.
"""

from __future__ import annotations

import torch
from attrs import frozen
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm, Transform, bind, of_fields
from purerl.algos.estimators.trackers import table_lookup, update_moving_average
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import integer, number
from purerl.algos.parts.surrogates import policy_gradient
from purerl.batch import with_fields
from purerl.kernels.masks import any_true

__all__ = ["EXEMPTIONS", "Config", "algorithm", "role_advantage"]

EXEMPTIONS = {"reward_shift_invariance": "the baseline is the role's mean so far, and does not see the shift"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of RAE."""

    decay: float = number("what is kept of a baseline with each row of its role", 0.95, min=0, max=1)
    roles: int = integer("how many roles have a baseline of their own", 64, min=1)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, min=0)


def role_advantage(*, decay: float, roles: int) -> Transform:
    """Writes `advantage`: the score less the baseline of the row's role. State: the baselines, [roles].

    Reads `reward` and `role`.
    """
    return Transform(bind(_no_baseline, roles=roles), bind(_role_advantage, decay=decay, roles=roles))


def _no_baseline(*, roles: int) -> Tensor:
    return torch.zeros(roles, dtype=torch.float64)


def _role_advantage(table: Tensor, batch: TensorDict, *, decay: float, roles: int) -> tuple[Tensor, TensorDict]:
    score, mask, key = batch["reward"].sum(-1), batch["mask"], batch["role"] % roles
    advantage = score - table_lookup(table, key).to(score.dtype)
    table = update_moving_average(table, score, key, any_true(mask), decay=decay)
    return table, with_fields(batch, advantage=broadcast_to_tokens(advantage, mask))


def algorithm(config: Config = Config()) -> Algorithm:
    """RAE as `config` sets it."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        sequence_mean_of_token_sum,
        reads=("advantage",),
        metrics={},
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward", "role"), role_advantage(decay=config.decay, roles=config.roles), (policy,))
