"""Rewards for something else than the answer: how long it is, and several rewards as one."""

from __future__ import annotations

from tensordict import TensorDict

from purerl.algos.algebra import Transform, bind, stateless, writes
from purerl.algos.estimators.components import weighted_sum
from purerl.algos.parts.rows import at_last_action
from purerl.batch import with_fields
from purerl.kernels.masks import count_true
from purerl.types import RowFloat, TokenFloat

__all__ = ["component_reward", "leave_out_truncated", "overlong_in_reward", "overlong_penalty"]


def overlong_penalty(length: RowFloat, *, longest: float, buffer: float, factor: float) -> RowFloat:
    """-factor * clip((length - (longest - buffer)) / buffer, 0, 1): to be added to the reward.

    Nothing up to longest - buffer tokens, then linearly down, to -factor at `longest` and beyond.
    Source: DAPO (2503.14476, eq. 13).

    >>> import torch
    >>> overlong_penalty(torch.tensor([50.0, 90.0, 100.0, 300.0]), longest=100.0, buffer=20.0, factor=1.0)
    tensor([ 0.0000, -0.5000, -1.0000, -1.0000])
    """
    return factor * (-(length - (longest - buffer)) / buffer).clamp(-1, 0)


def overlong_in_reward(*, longest: float, buffer: float, factor: float) -> Transform:
    """Adds `overlong_penalty` of a row's action tokens to `reward`, at the last of them."""
    return stateless(writes("reward", bind(_overlong, longest=longest, buffer=buffer, factor=factor)))


def _overlong(batch: TensorDict, *, longest: float, buffer: float, factor: float) -> TokenFloat:
    reward, action = batch["reward"], batch["action"]
    penalty = overlong_penalty(count_true(action).to(reward.dtype), longest=longest, buffer=buffer, factor=factor)
    return reward + at_last_action(penalty, action)


def component_reward(*, weights: tuple[float, ...]) -> Transform:
    """Writes `reward`: `weighted_sum` of `components`, at the last action token. Without weights each weighs 1."""
    return stateless(writes("reward", bind(_component_reward, weights=weights)))


def _component_reward(batch: TensorDict, *, weights: tuple[float, ...]) -> TokenFloat:
    return at_last_action(weighted_sum(batch["components"], weights=weights), batch["action"])


def _leave_out_truncated(batch: TensorDict) -> TensorDict:
    return with_fields(batch, mask=batch["mask"] & ~batch["truncated"].unsqueeze(-1))


leave_out_truncated = stateless(_leave_out_truncated)
"""Rows that the length limit has ended leave: losses, denominators and baselines. Reads `truncated`.

Source: overlong filtering in DAPO (2503.14476). It has to come before an estimator.
"""
