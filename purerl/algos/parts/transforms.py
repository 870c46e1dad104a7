"""Transforms of a batch: estimators, and what can be chained before and after them.

Each docstring names the fields that a transform reads and writes. `compute_advantages` sets every float outside of
`action`, and in rows without a counted token, to 0 before it calls a transform.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from purerl.algos.algebra import Bound, Transform, bind, of_fields, stateless, write_field
from purerl.algos.estimators.returns import discounted_returns, gae
from purerl.algos.parts.divergences import k1, kl_reward
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.whiten import whiten
from purerl.batch import with_fields
from purerl.kernels.masks import any_true, masked
from purerl.types import RowFloat, TensorDict, TokenFloat

__all__ = [
    "gae_advantage",
    "kl_in_advantage",
    "kl_in_reward",
    "outcome_advantage",
    "return_advantage",
    "whiten_advantage",
    "whitening",
]


def whitening(**settings: float) -> Transform:
    """Return a transform that replaces `advantage` by `whiten` of it, over the counted tokens of the whole batch.

    `settings` are those of `whiten`.
    """
    return stateless(write_field("advantage", of_fields(whiten, "advantage", "mask", **settings)))


whiten_advantage = whitening()
"""The transform `whitening` with the default settings."""


def kl_in_reward(*, kl_reward_coef: float | str, estimate: Callable = k1) -> Transform:
    """Return a transform that replaces `reward` by `kl_reward` of it.

    `kl_reward_coef` is a number, or the name of a field [rows]. Reads `reward`, `old_logp`, `ref_logp`, and this field.
    """
    return stateless(write_field("reward", _penalized(kl_reward_coef, estimate)))


def _penalized(coef: float | str, estimate: Callable) -> Bound:
    fields = ("reward", "old_logp", "ref_logp")
    if isinstance(coef, str):
        return of_fields(_adaptive_kl_reward, *fields, coef, estimate=estimate)
    return of_fields(kl_reward, *fields, kl_reward_coef=coef, estimate=estimate)


def _adaptive_kl_reward(
    reward: TokenFloat, logp: TokenFloat, ref_logp: TokenFloat, coef: RowFloat, *, estimate: Callable
) -> TokenFloat:
    return kl_reward(reward, logp, ref_logp, kl_reward_coef=coef.unsqueeze(-1), estimate=estimate)


def kl_in_advantage(*, kl_reward_coef: float | str, estimate: Callable = k1) -> Transform:
    """Return a transform that subtracts the KL penalties from a token on from its `advantage`, at each counted token.

    `kl_reward_coef` is as in `kl_in_reward`. Reads `advantage`, `old_logp`, `ref_logp`, and this field.
    """
    return stateless(write_field("advantage", bind(_kl_in_advantage, reward=_penalized(kl_reward_coef, estimate))))


def _kl_in_advantage(batch: TensorDict, *, reward: Callable) -> TokenFloat:
    penalties = reward(with_fields(batch, reward=torch.zeros_like(batch["advantage"])))
    return torch.where(
        batch["mask"], batch["advantage"] + discounted_returns(penalties, batch["action"], discount=1.0), 0
    )


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
    return masked(returns, batch["mask"])


def gae_advantage(*, discount: float, lambda_: float) -> Transform:
    """Return a transform that writes `advantage`, by `gae`, and `returns` = A + V, the target of the critic.

    Both are 0 at tokens that are not counted. Reads `reward` and `old_value`.
    """
    return stateless(bind(_gae_advantage, discount=discount, lambda_=lambda_))


def _gae_advantage(batch: TensorDict, *, discount: float, lambda_: float) -> TensorDict:
    mask, value = batch["mask"], batch["old_value"]
    advantage = gae(batch["reward"], value, batch["action"], discount=discount, lambda_=lambda_)
    return with_fields(batch, advantage=masked(advantage, mask), returns=masked(advantage + value, mask))
