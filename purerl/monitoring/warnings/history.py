"""Inputs of the checks of a run: facts about the run, and a bounded part of its metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = [
    "START",
    "Accuracy",
    "Best",
    "Facts",
    "History",
    "Record",
    "add",
    "has_improved",
    "is_solved",
    "mean",
    "recent",
    "recent_known",
    "start",
]

Record = Mapping[str, Any]

_FIRST_STEPS = 5
_BEST_STEPS = 3  # whose mean is compared with the best one
_RECENT_STEPS = 20
_MIN_IMPROVEMENT = 0.2  # standard deviations of the reward in the first steps
_SOLVED = 0.9  # of the way from the lowest to the highest reward of the run


class Facts(NamedTuple):
    """Facts about a run that its checks need beside the metrics.

    learns_from_rewards  whether the algorithm reads rewards; if not, they are only logged
    max_failure_rate     `reward_workers.max_failure_rate`
    max_tokens           `rollout.max_tokens`; None if the run does not sample
    max_staleness        `rollout.max_staleness`; 1 with `rollout.recorded`
    mismatch_level       mean difference of the log-probabilities of sampler and trainer before the first step, in nats
    mismatch_limit       in nats: above it, the mismatch has grown; None: not known
    """

    learns_from_rewards: bool = True
    max_failure_rate: float = 0.1
    max_tokens: int | None = None
    max_staleness: int = 0
    mismatch_level: float | None = None
    mismatch_limit: float | None = None


class Best(NamedTuple):
    """The best value of a metric so far, and the step in which it was measured."""

    step: int
    value: float


class Accuracy(NamedTuple):
    """An evaluation: its step, the accuracy, and the upper bound of its 95% confidence interval, or infinity."""

    step: int
    value: float
    high: float = math.inf


class History(NamedTuple):
    """The part of a run's metrics that the checks read. Its size does not grow with the length of the run.

    facts          about the run
    first          the first records of policy updates
    recent         the last records of policy updates
    lowest         reward of any completion so far; infinite before the first
    highest        reward of any completion so far; minus infinity before the first
    best_reward    the greatest mean of the rewards of three steps in a row, and the last one of them
    best_accuracy  of all evaluations
    accuracies     the last two evaluations
    """

    facts: Facts
    first: tuple[Record, ...] = ()
    recent: tuple[Record, ...] = ()
    lowest: float = math.inf
    highest: float = -math.inf
    best_reward: Best | None = None
    best_accuracy: Best | None = None
    accuracies: tuple[Accuracy, ...] = ()


START = History(Facts())
"""The history of a run without records, and with the default facts."""


def add(history: History, record: Record) -> History:
    """Return `history` with `record`, the metrics of the step after its last one.

    Step 0 has no policy update; of its record, only the evaluation counts. A metric that is null, which stands for NaN
    and infinity, has no value.
    """
    record = {name: value for name, value in record.items() if isinstance(value, int | float)}
    history = _with_accuracy(history, record)
    if record["step"] == 0:
        return history
    history = history._replace(
        first=history.first if len(history.first) == _FIRST_STEPS else (*history.first, record),
        recent=(*history.recent, record)[-_RECENT_STEPS:],
        lowest=min(history.lowest, record.get("reward/min", math.inf)),
        highest=max(history.highest, record.get("reward/max", -math.inf)),
    )
    reward = mean(recent(history, "reward/mean", _BEST_STEPS))
    return history._replace(best_reward=_best(history.best_reward, record["step"], reward))


def _with_accuracy(history: History, record: Record) -> History:
    if "eval/accuracy" not in record:
        return history
    accuracy = Accuracy(record["step"], record["eval/accuracy"], record.get("eval/accuracy_high", math.inf))
    best = _best(history.best_accuracy, accuracy.step, accuracy.value)
    return history._replace(best_accuracy=best, accuracies=(*history.accuracies, accuracy)[-2:])


def _best(best: Best | None, step: int, value: float) -> Best | None:
    """The better one of `best` and `value`; the earlier one of equals. A value that is not finite does not count."""
    is_better = math.isfinite(value) and (best is None or value > best.value)
    return Best(step, value) if is_better else best


def recent(history: History, name: str, steps: int) -> Sequence[float]:
    """The values of the metric `name` in the last `steps` steps; empty if there are fewer, or if one has no value."""
    records = history.recent[-steps:]
    is_complete = len(records) == steps and all(name in record for record in records)
    return [record[name] for record in records] if is_complete else []


def recent_known(history: History, name: str, steps: int) -> Sequence[float]:
    """The values of the metric `name` in the last `steps` steps; empty if there are fewer, or if most have no value.

    It is for metrics that do not exist in a step that trains on no row.
    """
    records = history.recent[-steps:]
    values = [record[name] for record in records if name in record]
    return values if len(records) == steps and 2 * len(values) > steps else []


def start(history: History, name: str) -> Sequence[float]:
    """The values of the metric `name` in the first steps of the run."""
    return [record[name] for record in history.first if name in record]


def mean(values: Sequence[float]) -> float:
    """The mean of `values`; NaN without any, for which every comparison is false."""
    return sum(values) / len(values) if values else math.nan


def has_improved(history: History) -> bool:
    """Whether the mean reward of the last steps is clearly above that of the first steps.

    Clearly means by more than a fifth of a standard deviation of the rewards of the first steps.
    """
    before, after = mean(start(history, "reward/mean")), mean(recent(history, "reward/mean", _FIRST_STEPS))
    deviation = mean(start(history, "reward/std") or [0.0])
    return after > before + max(_MIN_IMPROVEMENT * deviation, 1e-6 * abs(before))


def is_solved(history: History) -> bool:
    """Whether the mean reward of the last steps is near the highest reward of the run, and above its first steps."""
    after = mean(recent(history, "reward/mean", _FIRST_STEPS))
    enough = history.lowest + _SOLVED * (history.highest - history.lowest)
    return after >= enough and after > mean(start(history, "reward/mean"))
