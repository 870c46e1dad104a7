"""Normalization of the total reward of a row, before advantages are computed.

    s'_i = (s_i - m) / d          d = std(s) + eps

    batch     m and std(s) are over the counted rows of the batch
    running   over the counted rows of all batches up to and including this one

s_i is the total reward of row i. Every reward of the row is divided by d, and m / d is subtracted from the reward of
its last action token. With ``keep_mean = true``, m is 0: rewards are only scaled. The standard deviation of n scores
has the divisor n - 1. If it is at most 1e-6 abs(mean(s)), which is only rounding error, d is 1. The state of running is
n, the mean, and the sum of squared deviations. The greedy score of ReMax is normalized like the scores.

Modifiers of rewards that are later in the list run earlier. With ["kl_reward", "reward_normalization"], the KL penalty
is subtracted from normalized rewards, as in TRL and ROLL; in the other order, it is normalized too. Thresholds in units
of reward, such as `correct_above` of VAPO, apply to normalized rewards.

TRL's first PPO trainer calls running `use_score_scaling`, ROLL `norm_std_type`; AReaL calls batch `reward_norm`.

Differences from the paper:

1. The paper divides each reward by the running standard deviation of the discounted sums of rewards up to it. Here the
   sum of the rewards of a row takes their place.

Sources: reward scaling, Engstrom et al. 2020 (2005.12729); Chan et al. 1983 for the update of the moments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen

from purerl.algos.algebra import Algorithm, State, Transform, bind, compute_advantages, stateless
from purerl.algos.estimators.trackers import update_moments
from purerl.algos.parts.editing import prepend_transform, require_field
from purerl.algos.parts.rows import at_last_action
from purerl.algos.parts.settings import choice, flag, number
from purerl.batch import FIELDS, with_fields
from purerl.errors import ConfigError
from purerl.kernels.masks import any_true
from purerl.types import Scalar, TensorDict

__all__ = ["EXEMPTIONS", "Config", "modify"]

EXEMPTIONS = {
    "group_independence": "the moments are over the whole batch",
    "reward_shift_invariance": "a shift of the scores of one group changes the moments of the batch",
    "reward_scale_equivariance": "normalized rewards do not scale, and a critic's estimate does",
}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `reward_normalization`."""

    by: str = choice("the rows that the mean and the standard deviation are over", ("batch", "running"), "batch")
    keep_mean: bool = flag("the mean is not subtracted: rewards are only scaled")
    eps: float = number("added to the standard deviation before the division", 1e-8, above=0, max=1e-3)


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with normalized rewards.

    Raises: ConfigError for an algorithm whose advantage does not depend on the scale of rewards, and for
    ``keep_mean = true`` if it does not depend on their mean.
    """
    require_field(algorithm, "reward", "an algorithm that computes advantages from rewards")
    if _is_unchanged(algorithm, scale=8, shift=0):
        got = "an advantage that does not depend on the scale of rewards"
        raise ConfigError("has no effect", got=got, need="an algorithm in which the scale of rewards matters")
    if config.keep_mean and _is_unchanged(algorithm, scale=1, shift=1):
        need = "false: the advantage does not depend on the mean of the rewards"
        raise ConfigError("keep_mean", got="true", need=need)
    fields = tuple(name for name in ("greedy_score",) if name in algorithm.reads)
    settings = {"center": torch.zeros_like if config.keep_mean else _identity, "eps": config.eps, "fields": fields}
    if config.by == "running":
        return prepend_transform(algorithm, Transform(_no_scores, bind(_normalize_by_history, **settings)))
    return prepend_transform(algorithm, stateless(bind(_normalize_by_batch, **settings)))


def _is_unchanged(algorithm: Algorithm, scale: float, shift: float) -> bool:
    """Whether other rewards, scale * reward + shift at the last token of a row, give the same advantages."""
    # Two groups of eight rows and a single row. The two policies are equal, so that no correction rejects a row.
    rng, row, mask = torch.Generator().manual_seed(0), torch.arange(17), torch.arange(3).expand(17, 3) > 0
    score = torch.tensor([1, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3], dtype=torch.float64)
    values = {"attention_mask": mask | True, "action": mask, "mask": mask, "row": row, "group": row // 8}
    for field in (FIELDS[name] for name in algorithm.reads):
        shape = [{"rows": 17, "time": 3}.get(axis, 3) for axis in field.axes.split()]
        is_float = field.dtype.is_floating_point
        value = torch.zeros(shape, dtype=torch.float64 if is_float else field.dtype)
        is_random = is_float and field.name not in ("old_logp", "rollout_logp")
        values[field.name] = value.normal_(generator=rng) if is_random else value
    from tensordict import TensorDict

    batch, last = TensorDict(values | {"reward": at_last_action(score, mask)}, batch_size=[17]), torch.tensor([0, 0, 1])
    batches = (batch, with_fields(batch, reward=scale * batch["reward"] + shift * last))
    results = [compute_advantages(algorithm, algorithm.advantage.init(), b)[1] for b in batches]
    before, after = (result["advantage"] for result in results)
    return bool(before.any()) and torch.allclose(before, after, rtol=1e-3)


def _no_scores() -> State:
    return torch.zeros(3, dtype=torch.float64).unbind()


def _normalize_by_history(state: State, batch: TensorDict, **settings: Any) -> tuple[State, TensorDict]:
    score, counted = batch["reward"].double().sum(-1), any_true(batch["mask"])
    count, mean, squares = update_moments(*state, score=score, counted=counted)
    return (count, mean, squares), _normalized(batch, count, mean, squares, **settings)


def _normalize_by_batch(batch: TensorDict, **settings: Any) -> TensorDict:
    return _normalize_by_history(_no_scores(), batch, **settings)[1]


def _normalized(
    batch: TensorDict,
    count: Scalar,
    mean: Scalar,
    squares: Scalar,
    *,
    center: Callable,
    eps: float,
    fields: tuple[str, ...],
) -> TensorDict:
    std, dtype = (squares / (count - 1).clamp(min=1)).sqrt(), batch["reward"].dtype
    divisor = torch.where(std > 1e-6 * mean.abs(), std + eps, 1).unsqueeze(-1)
    shift = (center(mean).unsqueeze(-1) / divisor).to(dtype)
    divisor = divisor.to(dtype)
    last = at_last_action(torch.where(any_true(batch["mask"]), shift, 0), batch["action"])
    rows = {name: batch[name] / divisor - shift for name in fields}
    return with_fields(batch, reward=batch["reward"] / divisor.unsqueeze(-1) - last, **rows)


def _identity(mean: Scalar) -> Scalar:
    return mean
