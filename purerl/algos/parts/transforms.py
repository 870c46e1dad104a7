"""Transforms of a batch: estimators, and what can be chained before and after them.

Each docstring names the fields that a transform reads and writes. `compute_advantages` sets every float outside of
`action`, and in rows without a counted token, to 0 before it calls a transform.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict

from purerl.algos.algebra import Transform, bind, of_fields, stateless, write_field
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
    "kl_in_advantage",
    "kl_in_reward",
    "outcome_advantage",
    "return_advantage",
    "whiten_advantage",
]

whiten_advantage = stateless(write_field("advantage", of_fields(whiten, "advantage", "mask")))
"""A transform that replaces `advantage` by `whiten` of it, over the counted tokens of the whole batch."""


def kl_in_reward(*, kl_reward_coef: float, estimate: Callable = k1) -> Transform:
    """Return a transform that replaces `reward` by `kl_reward` of it. Reads `reward`, `old_logp` and `ref_logp`."""
    settings = {"kl_reward_coef": kl_reward_coef, "estimate": estimate}
    return stateless(write_field("reward", of_fields(kl_reward, "reward", "old_logp", "ref_logp", **settings)))


def kl_in_advantage(*, kl_reward_coef: float, estimate: Callable = k1) -> Transform:
    """Return a transform that subtracts the KL penalties from a token on from its `advantage`, at each counted token.

    Reads `advantage`, `old_logp` and `ref_logp`.
    """
    settings = {"kl_reward_coef": kl_reward_coef, "estimate": estimate}
    return stateless(write_field("advantage", bind(_kl_in_advantage, **settings)))


def _kl_in_advantage(batch: TensorDict, *, kl_reward_coef: float, estimate: Callable) -> TokenFloat:
    kl = estimate(batch["old_logp"], batch["ref_logp"])
    penalty = kl_reward_coef * discounted_returns(kl, batch["action"], discount=1.0)
    return torch.where(batch["mask"], batch["advantage"] - penalty, 0)


def adaptive_kl_in_reward(*, kl_reward_coef: float, target: float, horizon: float) -> Transform:
    """Return the transform `kl_in_reward` with an adaptive coefficient, which is its state.

    The first coefficient is `kl_reward_coef`. After each batch, `adapt_kl_coef` adapts it to the divergence of that
    batch: the mean over counted rows of the sum of k1 over their counted tokens. Without counted rows, the coefficient
    does not change. `target` is in nats, `horizon` in rows. Reads `reward`, `old_logp` and `ref_logp`.
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
    penalized = reward - coefficient.to(reward.dtype) * divergence
    return adapt_kl_coef(coefficient, mean, rows, target=target, horizon=horizon), with_fields(batch, reward=penalized)


def outcome_advantage(estimator: Callable) -> Transform:
    """Return a transform that writes `advantage`: estimator(score, group, counted) of the row, at each counted token.

    The score of a row is the sum of `reward` over all of its positions. Reads `reward`.
    """
    return stateless(write_field("advantage", bind(_outcome_advantage, estimator=estimator)))


def _outcome_advantage(batch: TensorDict, *, estimator: Callable) -> TokenFloat:
    score, mask = batch["reward"].sum(-1), batch["mask"]
    return broadcast_to_tokens(estimator(score, batch["group"], any_true(mask)), mask)


def return_advantage(*, discount: float) -> Transform:
    """Return a transform that writes `advantage`: `discounted_returns` at each counted token. Reads `reward`."""
    return stateless(write_field("advantage", bind(_return_advantage, discount=discount)))


def _return_advantage(batch: TensorDict, *, discount: float) -> TokenFloat:
    returns = discounted_returns(batch["reward"], batch["action"], discount=discount)
    return torch.where(batch["mask"], returns, 0)


def gae_advantage(*, discount: float, lambda_: float) -> Transform:
    """Return a transform that writes `advantage`, by `gae`, and `returns` = A + V, the target of the critic.

    Both are 0 at tokens that are not counted. Reads `reward` and `old_value`.
    """
    return stateless(bind(_gae_advantage, discount=discount, lambda_=lambda_))


def _gae_advantage(batch: TensorDict, *, discount: float, lambda_: float) -> TensorDict:
    mask, value = batch["mask"], batch["old_value"]
    advantage = gae(batch["reward"], value, batch["action"], discount=discount, lambda_=lambda_)
    return with_fields(
        batch, advantage=torch.where(mask, advantage, 0), returns=torch.where(mask, advantage + value, 0)
    )
