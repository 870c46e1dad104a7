"""The return of a truncated row continues with the critic's estimate.

    G_T = reward_T + discount * V_T    at the last action token T of a truncated row

A row that reached the length limit is incomplete: more tokens and rewards would have followed. Without this modifier
its return after the last token is 0, so the target of the critic depends on the limit. With it, the estimate V_T takes
the place of the rewards that would have followed. Only advantages and targets of the critic see the estimate: the total
reward of the row, which for example `correct_above` of VAPO is compared with, does not contain it.

`discount` is that of the algorithm. AReaL does the same. verl, as purerl without this modifier, does not bootstrap.

Differences from the paper:

1. The paper, and AReaL, take the estimate after the last token. A batch has one estimate per action token, that before
   the token, so V_T is the estimate before the last token. Both differ by the change of the estimate in one token.

Source: partial-episode bootstrapping, Pardo et al. 2018 (1712.00378).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen

from purerl.algos.algebra import Algorithm, Bound, _stateless, bind
from purerl.algos.parts.editing import add_reads, contains, map_bound, masks_truncated_rows, require_field
from purerl.algos.parts.rows import at_last_action
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.types import TensorDict, TokenFloat

__all__ = ["Config", "is_bootstrapped", "modify"]


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `truncation_bootstrap`: none."""


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with returns of truncated rows that continue with the critic's estimate.

    Raises: ConfigError for an algorithm without a critic, without an estimator that discounts, and together with
    `mask_truncated`.
    """
    require_field(algorithm, "old_value", "an algorithm with a critic, as PPO")
    if masks_truncated_rows(algorithm):
        got, do = "an algorithm that masks truncated rows", "remove mask_truncated or truncation_bootstrap"
        raise ConfigError("has no effect", got=got, need="an algorithm in which they have an effect", do=do)
    discounts = []

    def replace(bound: Bound) -> Bound:
        estimate = dict(bound.keywords).get("function")
        discount = dict(estimate.keywords).get("discount") if isinstance(estimate, Bound) else None
        if bound.function is not _stateless or not discount:
            return bound
        discounts.append(discount)
        return bind(_stateless, function=bind(_bootstrapped, estimate=estimate, discount=discount))

    advantage = map_bound(algorithm.advantage, replace)
    if len(discounts) != 1 or is_bootstrapped(algorithm):
        got, need = "an algorithm with another estimator", "returns with a discount above 0 that end at the last token"
        raise ConfigError("has no effect", got=got, need=need)
    return add_reads(algorithm._replace(advantage=advantage), "truncated")


def is_bootstrapped(algorithm: Algorithm) -> bool:
    """Whether the returns of truncated rows in `algorithm` continue with the critic's estimate."""
    return contains(algorithm.advantage, lambda bound: bound.function is _bootstrapped)


def _bootstrapped(batch: TensorDict, *, estimate: Callable, discount: float) -> TensorDict:
    result = estimate(batch)
    continued = estimate(with_fields(batch, reward=batch["reward"] + discount * _last_value(batch)))
    return with_fields(result, advantage=continued["advantage"], returns=continued["returns"])


def _last_value(batch: TensorDict) -> TokenFloat:
    """The critic's estimate at the last action token of truncated rows, and 0 elsewhere."""
    value, action = batch["old_value"], batch["action"]
    is_last = at_last_action(torch.ones_like(value[..., 0]), action) > 0
    return torch.where(is_last & batch["truncated"].unsqueeze(-1), value, 0)
