"""Spread of rewards, advantages and lengths in a step: standard deviation, minimum and maximum; a critic's fit."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt

from torch import Tensor

from purerl.algos.diagnostics import explained_variance
from purerl.types import TensorDict

__all__ = ["advantage_metrics", "critic_metrics", "length_metrics", "reward_spread"]


def reward_spread(rewards: Sequence[float | None], groups: Sequence[int]) -> dict[str, float]:
    """The spread of the rewards of a step, and the fraction of groups in which all rewards are equal.

    `rewards` and `groups` have an entry for each completion; None is a completion without a reward, which is left out.
    The standard deviation divides by the number of completions. A group with fewer than two rewards is left out; if
    every group is, there is no ``zero_std_fraction``.

    >>> reward_spread([1.0, 0.0, 2.0, 2.0, 0.0, None], [0, 0, 1, 1, 2, 2])
    {'reward/std': 0.8944271909999159, 'reward/min': 0.0, 'reward/max': 2.0, 'reward/zero_std_fraction': 0.5}
    """
    by_group: dict[int, list[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        if reward is not None:
            by_group.setdefault(group, []).append(reward)
    values = [reward for members in by_group.values() for reward in members]
    if not values:
        return {}
    compared = [len(set(members)) == 1 for members in by_group.values() if len(members) > 1]
    spread = {"std": _deviation(values), "min": min(values), "max": max(values)}
    spread |= {"zero_std_fraction": sum(compared) / len(compared)} if compared else {}
    return {f"reward/{name}": value for name, value in spread.items()}


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation; exactly 0 if all values are equal."""
    if min(values) == max(values):
        return 0.0
    mean = fsum(values) / len(values)
    return sqrt(fsum((value - mean) ** 2 for value in values) / len(values))


def advantage_metrics(batch: TensorDict) -> dict[str, Tensor]:
    """Mean, standard deviation, minimum and maximum of the advantage over counted tokens; empty without any."""
    counted = batch["advantage"][batch["mask"]].double() if "advantage" in batch.keys() else batch["mask"][:0]
    if not counted.numel():
        return {}
    low, high = counted.aminmax()
    values = {"mean": counted.mean(), "std": counted.std(correction=0), "min": low, "max": high}
    return {f"advantage/{name}": value for name, value in values.items()}


def critic_metrics(batch: TensorDict) -> dict[str, Tensor]:
    """The explained variance of the critic's values before the update; empty without a critic or counted tokens."""
    if not {"returns", "old_value"} <= set(batch.keys()) or not bool(batch["mask"].any()):
        return {}
    value, returns = batch["old_value"].double(), batch["returns"].double()
    return {"critic/explained_variance": explained_variance(value, returns, batch["mask"])}


def length_metrics(batch: TensorDict) -> dict[str, Tensor]:
    """Mean, minimum and maximum over rows: of the action tokens, and of the tokens before the first of them."""
    is_prompt = batch["attention_mask"] & (batch["action"].cumsum(-1) == 0)
    lengths = {"rollout/length": batch["action"].sum(-1), "rollout/prompt_length": is_prompt.sum(-1)}
    metrics = {}
    for name, values in lengths.items():
        low, high = values.aminmax()
        metrics |= {name: values.double().mean(), f"{name}_min": low, f"{name}_max": high}
    return metrics
