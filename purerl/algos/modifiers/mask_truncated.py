"""Rows that ended at the length limit have no effect.

    mask_it = 0    if row i is truncated

A truncated row is incomplete, so its reward says little about it. With this modifier it enters no loss, no denominator,
no baseline of its group, no statistic of the batch and no choice of groups. The row is masked out before everything
else that the algorithm and other modifiers do, wherever this modifier is in the list.

TRL calls it `mask_truncated_completions`, NeMo-RL `overlong_filtering`, ROLL `max_len_mask`. In TRL the reward of a
truncated row stays in the baseline of its group.

Source: overlong filtering, DAPO (2503.14476).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, chain, identity, keep_all, roles, stages_of
from purerl.algos.modifiers.truncation_bootstrap import is_bootstrapped
from purerl.algos.parts.editing import add_reads, masks_truncated_rows
from purerl.algos.parts.shaping import mask_truncated_rows, without_truncated_rows
from purerl.batch import FIELDS
from purerl.errors import ConfigError

__all__ = ["EXEMPTIONS", "Config", "modify"]

EXEMPTIONS = {
    "no_reward_lost": "the rewards of truncated rows have no effect on purpose",
    "small_groups_have_zero_advantage": "if a group has one row that is not truncated, every advantage is 0",
}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `mask_truncated`: none."""


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` without an effect of truncated rows.

    Raises: ConfigError for an algorithm that learns from data instead of completions, if it already masks truncated
    rows, and together with `truncation_bootstrap`.
    """
    if algorithm.advantage == identity and "teacher" not in roles(algorithm, FIELDS):
        need = "an algorithm that learns from completions of the policy"
        raise ConfigError("has no effect", got="an algorithm that learns from data", need=need)
    if masks_truncated_rows(algorithm):
        need = "an algorithm in which they have an effect"
        raise ConfigError("has no effect", got="an algorithm that masks truncated rows", need=need)
    if is_bootstrapped(algorithm):
        got, do = "returns of truncated rows that are bootstrapped", "remove mask_truncated or truncation_bootstrap"
        raise ConfigError("cannot be used", got=got, need="returns that are not bootstrapped", do=do)
    select = algorithm.select
    masked = algorithm._replace(
        advantage=chain(mask_truncated_rows, *stages_of(algorithm.advantage)),
        select=select if select is keep_all else without_truncated_rows(select),
        before=tuple(map(_masked, algorithm.before)),
    )
    return add_reads(masked, "truncated")


def _masked(objective: Objective) -> Objective:
    """`objective`, which is minimized before the advantage is computed, without an effect of truncated rows."""
    return add_reads(objective._replace(prepare=without_truncated_rows(objective.prepare)), "truncated")
