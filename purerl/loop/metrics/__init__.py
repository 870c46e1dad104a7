"""Metrics of a step as plain numbers. docs/reference/metrics.md explains each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from purerl.algos.algebra import Weighted
from purerl.loop.metrics.distributions import advantage_metrics, critic_metrics, length_metrics
from purerl.loop.metrics.mismatch import from_moments, mismatch_metrics
from purerl.loop.state import Clock
from purerl.rewards.components import added
from purerl.rewards.results import RewardResult, fractions, logged_metrics
from purerl.types import TensorDict

__all__ = ["batch_metrics", "mean_metrics", "means", "reward_metrics", "time_metrics"]


def means(metrics: Mapping[str, Weighted]) -> dict[str, float]:
    """Totals divided by weights. A metric with weight 0 is left out. The training-inference mismatch has no role."""
    pairs = {name: (float(total), float(weight)) for name, (total, weight) in metrics.items()}
    return from_moments({name: total / weight for name, (total, weight) in pairs.items() if weight})


def reward_metrics(results: Sequence[RewardResult]) -> dict[str, float]:
    """Means of the reward and of each component over the rows with a reward that have it; `fractions` of all rows.

    And the sums over all rows of what functions have measured, and the means of what they logged.
    """
    valid = [{"mean": result.reward, **result.components} for result in results if result.reward is not None]
    averages = mean_metrics(valid)
    totals = added(*(result.totals for result in results))
    metrics = {f"reward/{name}": value for name, value in (averages | fractions(results) | totals).items()}
    return metrics | logged_metrics(results)


def mean_metrics(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the rows that have it.

    >>> mean_metrics([{"environment/turns": 2.0}, {"environment/turns": 3.0}, {}])
    {'environment/turns': 2.5}
    """
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row[name] for row in rows if name in row] for name in names}
    return {name: sum(column) / len(column) for name, column in columns.items()}


def batch_metrics(batch: TensorDict) -> dict[str, float]:
    """Lengths, advantages, the critic's fit, the fraction of truncated rows, and the training-inference mismatch."""
    metrics = length_metrics(batch) | advantage_metrics(batch) | critic_metrics(batch)
    if "truncated" in batch.keys():
        metrics["rollout/truncated"] = batch["truncated"].float().mean()
    values = {name: value.item() for name, value in metrics.items()}
    has_both = "rollout_logp" in batch.keys() and "old_logp" in batch.keys()
    return values | (mismatch_metrics(batch) if has_both else {})


def time_metrics(clock: Clock, tokens: float, *, is_sampling: bool) -> dict[str, float]:
    """Seconds by phase, CPU seconds, and `tokens` per second of the whole step.

    If completions are sampled, also the fractions of the step in which the trainer waited for them, and in which the
    generator had nothing to do.
    """
    metrics = {f"time/{phase}": seconds for phase, seconds in clock.seconds.items()}
    step = clock.seconds["step"]
    if is_sampling:
        metrics["time/trainer_idle_fraction"] = clock.seconds.get("rollout", 0.0) / step
        metrics["time/generator_idle_fraction"] = max(0.0, 1 - clock.seconds.get("generate", 0.0) / step)
    return metrics | {"time/cpu": clock.cpu, "time/tokens_per_second": tokens / step}
