"""Only some groups are kept: the loop samples other prompts for the rest, up to `rollout.max_resample_rounds`.

    variance      the scores of the group differ
    mean_range    low < mean_g(s) < high

s is the total reward of a row, and g its group: the rows of one prompt. A group with equal scores has no gradient in a
group-relative algorithm. A group with a low or a high mean is too hard or too easy for the policy, and has a gradient
from few rows. Groups that the algorithm itself does not keep, as in DAPO, are not kept either.

variance needs several rows per prompt: the scores of a single row do not differ. Rewards are those of the reward
functions, without a KL penalty. `rollout.filter_metric` names one component of the reward that takes the place of s, as
`algorithm.filter_groups.metric` of verl does.

verl calls it `algorithm.filter_groups` (variance), ROLL `difficulty_mask` (mean_range, which masks the rows out instead
of sampling others).

Sources: dynamic sampling, DAPO (2503.14476) for variance; PRIME (2502.01456) for mean_range.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_

from attrs import fields_dict, frozen

from purerl.algos.algebra import Algorithm, Bound, bind, keep_all
from purerl.algos.parts.editing import masks_truncated_rows, require_field
from purerl.algos.parts.selection import groups_with_mean_in_range, groups_with_variance
from purerl.algos.parts.settings import choice, number, require_below
from purerl.algos.parts.shaping import without_truncated_rows
from purerl.errors import ConfigError
from purerl.types import RowBool, TensorDict

__all__ = ["Config", "exemptions", "modify"]


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `group_filter`."""

    by: str = choice("what decides whether a group is kept", ("variance", "mean_range"), "variance")
    low: float = number("mean_range: the mean score of a group is above this", 0.0, unit="reward")
    high: float = number("mean_range: the mean score of a group is below this", 1.0, unit="reward")

    def __attrs_post_init__(self) -> None:
        for name in ("low", "high"):
            if self.by == "variance" and getattr(self, name) != fields_dict(Config)[name].default:
                got = f"{getattr(self, name):g}, with by = variance"
                raise ConfigError(name, got=got, need="mean_range: variance has no bounds")
        require_below(self, "low", "high")


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with a filter of groups, beside its own.

    Raises: ConfigError for an algorithm that reads no rewards, and if it has this filter.
    """
    require_field(algorithm, "reward", "an algorithm that computes advantages from rewards")
    new = groups_with_variance
    if config.by == "mean_range":
        new = bind(groups_with_mean_in_range, low=config.low, high=config.high)
    if masks_truncated_rows(algorithm):
        new = without_truncated_rows(new)
    own = _filters(algorithm.select)
    if new in own:
        got = f"an algorithm that keeps only groups by {config.by}"
        raise ConfigError("has no effect", got=got, need="an algorithm that keeps other groups")
    return algorithm._replace(select=bind(_all_of, filters=(*own, new)) if own else new)


def exemptions(config: Config) -> dict[str, str]:
    """The laws that need not hold for an algorithm with this modifier."""
    reason = "the bounds of the mean do not change with the rewards"
    names = ("reward_shift_invariance", "reward_scale_equivariance") if config.by == "mean_range" else ()
    return dict.fromkeys(names, reason)


def _filters(select: Callable) -> tuple[Callable, ...]:
    """The filters that `select` combines; none for an algorithm that keeps every group."""
    if isinstance(select, Bound) and select.function is _all_of:
        return dict(select.keywords)["filters"]
    return () if select is keep_all else (select,)


def _all_of(batch: TensorDict, *, filters: tuple[Callable, ...]) -> RowBool:
    return reduce(and_, (keep(batch) for keep in filters))
