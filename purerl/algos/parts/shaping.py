"""Reward shaping: penalties for overlong completions, and weighted sums of reward components."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from purerl.algos.algebra import Bound, Transform, bind, stateless, write_field
from purerl.algos.estimators.components import weighted_sum
from purerl.algos.parts.rows import at_last_action
from purerl.batch import with_fields
from purerl.kernels.masks import count_true
from purerl.types import RowFloat, TensorDict, TokenFloat

__all__ = [
    "component_reward",
    "mask_truncated_rows",
    "overlong_in_reward",
    "overlong_penalty",
    "without_truncated_rows",
]


def overlong_penalty(length: RowFloat, *, max_length: float, buffer: float, factor: float) -> RowFloat:
    """Compute the soft overlong penalty, which is added to the reward.

        p_i = -factor * clip((length_i - (max_length - buffer)) / buffer, 0, 1)

    It is 0 up to max_length - buffer tokens, then falls linearly, and is -factor from `max_length` tokens on. Shapes:
    [rows] each; `length`, `max_length` and `buffer` in tokens, `factor` and the result in units of reward.
    Source: DAPO (2503.14476, eq. 13).

    >>> import torch
    >>> overlong_penalty(torch.tensor([50.0, 90.0, 100.0, 300.0]), max_length=100.0, buffer=20.0, factor=1.0)
    tensor([ 0.0000, -0.5000, -1.0000, -1.0000])
    """
    return factor * (-(length - (max_length - buffer)) / buffer).clamp(-1, 0)


def overlong_in_reward(*, max_length: float, buffer: float, factor: float) -> Transform:
    """Return a transform that adds `overlong_penalty` to `reward`, at the last action token of each row.

    The length of a row is the number of its action tokens.
    """
    settings = {"max_length": max_length, "buffer": buffer, "factor": factor}
    return stateless(write_field("reward", bind(_overlong_in_reward, **settings)))


def _overlong_in_reward(batch: TensorDict, *, max_length: float, buffer: float, factor: float) -> TokenFloat:
    reward, action = batch["reward"], batch["action"]
    length = count_true(action).to(reward.dtype)
    penalty = overlong_penalty(length, max_length=max_length, buffer=buffer, factor=factor)
    return reward + at_last_action(penalty, action)


def component_reward(*, weights: tuple[float, ...]) -> Transform:
    """Return a transform that writes `reward`: `weighted_sum` of `components`, at the last action token of each row.

    If `weights` is empty, every component has the weight 1.
    """
    return stateless(write_field("reward", bind(_component_reward, weights=weights)))


def _component_reward(batch: TensorDict, *, weights: tuple[float, ...]) -> TokenFloat:
    return at_last_action(weighted_sum(batch["components"], weights=weights), batch["action"])


def _mask_truncated_rows(batch: TensorDict) -> TensorDict:
    return with_fields(batch, mask=batch["mask"] & ~batch["truncated"].unsqueeze(-1))


mask_truncated_rows = stateless(_mask_truncated_rows)
"""A transform that masks out rows that ended at the length limit.

These rows then have no effect on losses, denominators and baselines. It must come before an estimator. Reads
`truncated`.
Source: overlong filtering in DAPO (2503.14476).
"""


def without_truncated_rows(function: Callable[[TensorDict], Any]) -> Bound:
    """Return `function` on a batch in which `mask_truncated_rows` has masked out rows. Reads `truncated`."""
    return bind(_without_truncated_rows, function=function)


def _without_truncated_rows(batch: TensorDict, *, function: Callable) -> Any:
    return function(_mask_truncated_rows(batch))
