"""Transforms of a batch: estimators, and what comes before and after them, as parts of a `chain`.

Each says which fields it reads and writes. `advantages` has neutralized the batch: outside `action`, and in rows where
nothing counts, every float is 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict

from purerl.algos.algebra import Transform, bind, of_fields, stateless, writes
from purerl.algos.estimators.returns import discounted_returns, gae
from purerl.algos.parts.divergences import adapt_kl_coef, k1, kl_reward
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.whiten import whiten
from purerl.batch import with_fields
from purerl.kernels.masks import any_true, count_true
from purerl.types import Scalar, TokenFloat

__all__ = [
    "adaptive_kl_in_reward",
    "gae_advantage",
    "kl_in_reward",
    "outcome_advantage",
    "return_advantage",
    "whitened",
]

whitened = stateless(writes("advantage", of_fields(whiten, "advantage", "mask")))
"""Replaces `advantage` by `whiten` of it, over the whole batch."""


def kl_in_reward(*, kl_reward_coef: float) -> Transform:
    """Replaces `reward` by `kl_reward` of it; reads `old_logp` and `ref_logp`."""
    return stateless(
        writes("reward", of_fields(kl_reward, "reward", "old_logp", "ref_logp", kl_reward_coef=kl_reward_coef))
    )


def adaptive_kl_in_reward(*, kl_reward_coef: float, target: float, horizon: float) -> Transform:
    """`kl_in_reward` with a coefficient that is the transform's state: `kl_reward_coef` at first, then `adapt_kl_coef`.

    After the rewards of a batch have been reduced, the coefficient is adapted to the divergence of that batch: the mean
    over counted rows of the sum of k1 over their counted tokens. Without a counted row it stays what it was.
    """
    return Transform(
        bind(_coefficient, kl_reward_coef=kl_reward_coef), bind(_adaptive_kl, target=target, horizon=horizon)
    )


def _coefficient(*, kl_reward_coef: float) -> Scalar:
    return torch.tensor(kl_reward_coef, dtype=torch.float64)


def _adaptive_kl(coefficient: Scalar, batch: TensorDict, *, target: float, horizon: float) -> tuple[Scalar, TensorDict]:
    divergence, mask, reward = k1(batch["old_logp"], batch["ref_logp"]), batch["mask"], batch["reward"]
    rows = count_true(any_true(mask))
    mean = torch.where(mask, divergence, 0).sum((-2, -1)) / rows.clamp(min=1)
    reduced = reward - coefficient.to(reward.dtype) * divergence
    return adapt_kl_coef(coefficient, mean, rows, target=target, horizon=horizon), with_fields(batch, reward=reduced)


def outcome_advantage(estimator: Callable) -> Transform:
    """Writes `advantage`: at each counted token that of its row, estimator(score, group, counted); reads `reward`.

    A row's score is its reward, summed over all positions.
    """
    return stateless(writes("advantage", bind(_outcome_advantage, estimator=estimator)))


def _outcome_advantage(batch: TensorDict, *, estimator: Callable) -> TokenFloat:
    score, mask = batch["reward"].sum(-1), batch["mask"]
    return broadcast_to_tokens(estimator(score, batch["group"], any_true(mask)), mask)


def return_advantage(*, discount: float) -> Transform:
    """Writes `advantage`: `discounted_returns` at each counted token; reads `reward`."""
    return stateless(writes("advantage", bind(_return_advantage, discount=discount)))


def _return_advantage(batch: TensorDict, *, discount: float) -> TokenFloat:
    returns = discounted_returns(batch["reward"], batch["action"], discount=discount)
    return torch.where(batch["mask"], returns, 0)


def gae_advantage(*, discount: float, lambda_: float) -> Transform:
    """Writes `advantage`, by `gae`, and `returns`, the critic's target A + V; reads `reward` and `old_value`."""
    return stateless(bind(_gae_advantage, discount=discount, lambda_=lambda_))


def _gae_advantage(batch: TensorDict, *, discount: float, lambda_: float) -> TensorDict:
    mask, value = batch["mask"], batch["old_value"]
    advantage = gae(batch["reward"], value, batch["action"], discount=discount, lambda_=lambda_)
    return with_fields(
        batch, advantage=torch.where(mask, advantage, 0), returns=torch.where(mask, advantage + value, 0)
    )
