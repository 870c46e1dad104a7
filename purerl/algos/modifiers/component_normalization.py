"""Normalization of each component of the reward, before they are added up.

    c'_ik = (c_ik - mean(c_k)) / (std(c_k) + 1e-6)
    s'_i  = sum_k w_k c'_ik

    group     mean and standard deviation are over the rows of the group that the component applies to
    batch     over the rows of the batch that it applies to

c_ik is reward k of row i, from the field `components`, and s'_i replaces the total reward of the row: the difference is
added to the reward of its last action token. Without it a reward with a large range dominates the others, whatever its
weight. w_k is the weight of reward k. Standard deviations divide by the number of rows minus 1. A component that does
not apply to a row adds nothing to it.

`gdpo` is GRPO with ``by = "group"`` and a whitened advantage. TRL calls it `multi_objective_aggregation =
"normalize_then_sum"`, with 1e-4 in place of 1e-6. With ``by = "batch"``, it is the normalization of each reward for
algorithms that do not compare the rows of a group, such as PPO.

Modifiers of rewards that are later in the list run earlier.

Source: GDPO, 2026 (2601.05242).
"""

from __future__ import annotations

import torch
from attrs import frozen

from purerl.algos.algebra import Algorithm, bind, stateless
from purerl.algos.estimators.components import component_normalized_advantage
from purerl.algos.parts.editing import add_reads, prepend_transform, require_field
from purerl.algos.parts.rows import at_last_action
from purerl.algos.parts.settings import choice, numbers
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.kernels.masks import any_true, masked
from purerl.types import TensorDict

__all__ = ["EXEMPTIONS", "Config", "exemptions", "modify"]

EXEMPTIONS = {
    "no_reward_lost": "the law changes the reward of a row without its components, which take the place of the reward",
    "reward_scale_equivariance": "normalized components do not scale",
}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `component_normalization`."""

    by: str = choice("the rows that the mean and the standard deviation are over", ("group", "batch"), "group")
    weights: tuple[float, ...] = numbers(
        "weight of each reward, in the order of the reward functions; by default each is 1"
    )


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with normalized components of the reward.

    Raises: ConfigError for an algorithm that does not compute advantages from the total reward.
    """
    require_field(algorithm, "reward", "an algorithm that computes advantages from rewards")
    if "components" in algorithm.reads:
        got = "an algorithm that normalizes each component itself"
        raise ConfigError("has no effect", got=got, need="an algorithm that reads the total reward")
    if "greedy_score" in algorithm.reads:
        got = "an algorithm with the reward of a greedy completion, whose components are not known"
        raise ConfigError("cannot be used", got=got, need="an algorithm without it")
    normalize = stateless(bind(_normalized, by=config.by, weights=config.weights))
    return add_reads(prepend_transform(algorithm, normalize), "components")


def exemptions(config: Config) -> dict[str, str]:
    """The laws that do not hold with `config`, and why."""
    if config.by == "group":
        return EXEMPTIONS
    return EXEMPTIONS | {
        "group_independence": "the moments are over the whole batch",
        "reward_shift_invariance": "a shift of the components of one group changes the moments of the batch",
    }


def _normalized(batch: TensorDict, *, by: str, weights: tuple[float, ...]) -> TensorDict:
    components, counted = batch["components"], any_true(batch["mask"])
    group = batch["group"] if by == "group" else torch.zeros_like(batch["group"])
    score = component_normalized_advantage(components, group, counted, weights=weights)
    change = masked(score - components.nan_to_num().sum(-1), counted)
    return with_fields(
        batch, reward=batch["reward"] + at_last_action(change.to(batch["reward"].dtype), batch["action"])
    )
