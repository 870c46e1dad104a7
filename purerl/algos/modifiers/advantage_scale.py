"""The divisor of the advantage of a row relative to its group, and the baseline that is subtracted first.

    A_i = (s_i - b_i) / d_i

    b_i   group_mean      mean_g(s)
          leave_one_out   the mean score of the other rows of the group
    d_i   group_std       std_g(s) + eps; 1 if all scores are equal
          batch_std       std(s) + eps, over all rows of the batch; 1 if all scores are equal
          mean            mean_g(s); A_i is 0 if it is not above 1e-6 max_g(abs(s))
          none            1

s_i is the score of row i, the sum of its rewards, and g is its group. A standard deviation of n scores has the divisor
n - ddof. With `leave_one_out_std`, std_g is that of the other rows of the group (`group_std_of_others`). In a group of
one row, A_i is 0. With ``singleton = "score"`` it is s_i, as in verl.

For the rewards [1, 0, 0, 0]:

     1.5   -.5     the defaults: GRPO
     1.732 -.577   ddof = 0
      .75  -.25    by = "none": Dr. GRPO
     1.    -.577   baseline = "leave_one_out", leave_one_out_std = true: NeMo-RL's default
     2.    -.667   baseline = "leave_one_out"
     1.    -.333   by = "none", baseline = "leave_one_out": RLOO
     3.   -1.      by = "mean": MaxRL

`eps` is 1e-6 in verl, 1e-4 in TRL and 1e-9 in OpenRLHF. TRL calls `by` `scale_rewards` (group, batch or none), verl
`norm_adv_by_std_in_grpo`. NeMo-RL has `normalize_rewards` and `use_leave_one_out_baseline`.

Sources: GRPO (2402.03300); Dr. GRPO (2503.20783) for none; Liu et al. 2025 (2508.08221) for batch_std; MaxRL
(2602.02710) for mean; RLOO (2402.14740) for leave_one_out.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import fields_dict, frozen

from purerl.algos.algebra import Algorithm, Bound, bind
from purerl.algos.estimators import group_relative
from purerl.algos.parts.editing import map_bound
from purerl.algos.parts.groups import group_max, group_mean, group_std, group_std_of_others
from purerl.algos.parts.settings import choice, flag, integer, number
from purerl.algos.parts.transforms import _outcome_advantage
from purerl.algos.parts.whiten import standard_deviation
from purerl.errors import ConfigError
from purerl.kernels.masks import masked
from purerl.types import RowBool, RowFloat, RowInt

__all__ = ["Config", "exemptions", "modify"]

_CENTERS = {
    "group_mean": group_relative.group_centered_advantage,
    "leave_one_out": group_relative.leave_one_out_advantage,
}
_CENTERED = (
    *_CENTERS.values(),
    group_relative.group_normalized_advantage,
    group_relative.batch_normalized_advantage,
    group_relative.mean_normalized_advantage,
    group_relative.gpg_advantage,
)
_USED = {"group_std": ("eps", "ddof", "leave_one_out_std"), "batch_std": ("eps", "ddof"), "mean": (), "none": ()}
"""The settings that have an effect, for each value of `by`."""


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `advantage_scale`."""

    by: str = choice("what the advantage is divided by", _USED, "group_std")
    baseline: str = choice("what is subtracted from the score of a row", _CENTERS, "group_mean")
    eps: float = number("added to a standard deviation before the division", 1e-6, above=0)
    ddof: int = integer("0 or 1: a standard deviation of n scores has the divisor n - ddof", 1, min=0)
    leave_one_out_std: bool = flag("group_std is that of the other rows of the group")
    singleton: str = choice("the advantage of a row that is alone in its group", ("zero", "score"), "zero")

    def __attrs_post_init__(self) -> None:
        if self.ddof > 1:
            raise ConfigError("ddof", got=self.ddof, need="0 or 1")
        for name in _USED["group_std"]:
            value = getattr(self, name)
            if name not in _USED[self.by] and value != fields_dict(Config)[name].default:
                need = " or ".join(f"by = {by}" for by, names in _USED.items() if name in names)
                raise ConfigError(name, got=f"{value}, with by = {self.by}", need=need)


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with another baseline and another divisor of its advantage.

    Raises: ConfigError for an algorithm whose advantage is not a score minus a mean of its group.
    """
    estimator, replaced = _estimator(config), []

    def replace(bound: Bound) -> Bound:
        if bound.function is not _outcome_advantage or dict(bound.keywords)["estimator"] not in _CENTERED:
            return bound
        replaced.append(bound)
        return bind(_outcome_advantage, estimator=estimator)

    advantage = map_bound(algorithm.advantage, replace)
    if not replaced:
        need = "a score minus a mean of its group, as in GRPO, Dr. GRPO and RLOO"
        raise ConfigError("has no effect", got="an algorithm with another advantage", need=need)
    smallest = 1 if config.singleton == "score" else algorithm.min_group_size
    return algorithm._replace(advantage=advantage, min_group_size=smallest)


def exemptions(config: Config) -> dict[str, str]:
    """The laws that need not hold for an algorithm with this modifier."""
    exempt = {}
    if config.by == "batch_std":
        exempt["group_independence"] = "the standard deviation is over the whole batch"
        exempt["reward_shift_invariance"] = "a shift of the scores of one group changes the standard deviation"
    if config.by == "mean" or config.singleton == "score":
        exempt["reward_shift_invariance"] = "the mean of a group, and the score of a single row, contain the shift"
    if config.by != "none" and (config.leave_one_out_std or config.singleton == "score" or config.eps > 1e-5):
        exempt["reward_scale_equivariance"] = "some advantages are divided, and others are not, or eps is large"
    return exempt


def _estimator(config: Config) -> Callable:
    center = _CENTERS[config.baseline]
    stds = {"group_std": group_std_of_others if config.leave_one_out_std else group_std, "batch_std": _batch_std}
    if config.by in stds:
        divisor = bind(_std_plus_eps, std=bind(stds[config.by], ddof=config.ddof), eps=config.eps)
    else:
        divisor = _mean
    estimator = center if config.by == "none" else bind(_scaled, center=center, divisor=divisor)
    return bind(group_relative.singleton_score, estimator=estimator) if config.singleton == "score" else estimator


def _scaled(score: RowFloat, group: RowInt, counted: RowBool, *, center: Callable, divisor: Callable) -> RowFloat:
    return center(score, group, counted) / divisor(score, group, counted)


def _std_plus_eps(score: RowFloat, group: RowInt, counted: RowBool, *, std: Callable, eps: float) -> RowFloat:
    value = std(score, group, counted)
    return torch.where(value > 0, value + eps, 1)


def _batch_std(score: RowFloat, group: RowInt, counted: RowBool, *, ddof: int) -> RowFloat:
    return standard_deviation(score.unsqueeze(-1), counted.unsqueeze(-1), ddof=ddof).unsqueeze(-1).expand_as(score)


def _mean(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    mean = group_mean(score, group, counted)
    largest = group_max(masked(score.abs(), counted), group)
    return torch.where(mean > group_relative.EPS * largest, mean, torch.inf)
