"""Metrics of a step as plain numbers. docs/metrics.md explains each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Objective, Weighted, bind
from purerl.kernels.masks import count_true
from purerl.loop.run import Clock
from purerl.rewards.runner import RewardResult, fractions

__all__ = ["batch_metrics", "means", "reward_metrics", "time_metrics", "with_gap"]


def means(metrics: Mapping[str, Weighted]) -> dict[str, float]:
    """Totals over weights; a metric that nothing was counted for is left out."""
    pairs = {name: (float(total), float(weight)) for name, (total, weight) in metrics.items()}
    return {name: total / weight for name, (total, weight) in pairs.items() if weight}


def reward_metrics(verdicts: Sequence[RewardResult]) -> dict[str, float]:
    """Mean reward and mean components over the rows that have a reward; over all rows, `fractions`."""
    told = [verdict.components for verdict in verdicts if verdict.reward is not None]
    names = dict.fromkeys(name for components in told for name in components)
    parts = {name: sum(components.get(name, 0.0) for components in told) / len(told) for name in names}
    means = {"mean": sum(verdict.reward or 0.0 for verdict in verdicts) / len(told)} | parts if told else {}
    return {f"reward/{name}": value for name, value in (means | fractions(verdicts)).items()}


def batch_metrics(batch: TensorDict) -> dict[str, float]:
    """Lengths, share of rows cut short, and the gap between sampler and trainer."""
    lengths = batch["action"].sum(-1).float()
    found = {"rollout/length": lengths.mean(), "rollout/length_max": lengths.max()}
    if "truncated" in batch.keys():
        found["rollout/truncated"] = batch["truncated"].float().mean()
    if "rollout_logp" in batch.keys() and "old_logp" in batch.keys():
        found |= _gap(batch["old_logp"] - batch["rollout_logp"], batch["action"])
    return {name: value.item() for name, value in found.items()}


def _gap(difference: Tensor, action: Tensor) -> dict[str, Tensor]:
    gap = difference[action].abs()
    return {"mismatch/logp_abs_diff": gap.mean(), "mismatch/logp_abs_diff_max": gap.max()} if gap.numel() else {}


def with_gap(objective: Objective) -> Objective:
    """`objective` with a metric `gap`: mean |logp - rollout_logp| over counted tokens."""
    return objective._replace(
        reads=tuple(dict.fromkeys((*objective.reads, "rollout_logp"))),
        metrics=bind(_and_gap, metrics=objective.metrics),
    )


def _and_gap(batch: TensorDict, *, metrics: Callable) -> dict[str, Weighted]:
    mask = batch["mask"]
    gap = torch.where(mask, batch["logp"] - batch["rollout_logp"], 0).abs().sum((-2, -1))
    return {**metrics(batch), "logp_abs_diff": Weighted(gap, count_true(mask).sum(-1))}


def time_metrics(clock: Clock, tokens: float) -> dict[str, float]:
    """Seconds by phase, CPU seconds, and of `tokens` how many a second over the whole step."""
    seconds = {f"time/{phase}": seconds for phase, seconds in clock.seconds.items()}
    return seconds | {"time/cpu": clock.cpu, "time/tokens_per_second": tokens / clock.seconds["step"]}
