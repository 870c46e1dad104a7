"""The completions that trackers get: some of a step, and some of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from purerl.monitoring.trackers.protocol import Tracker
from purerl.rewards.results import component_columns
from purerl.rollouts.types import Trajectory
from purerl.store.evaluations import read_evaluation
from purerl.store.rollouts import total_reward

__all__ = ["log_completions", "log_evaluation", "texts_and_rewards"]

_MAX_ROWS = 16
T = TypeVar("T")


def texts_and_rewards(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """The texts of each row and the values of its reward components, as ``reward/<name>``."""
    components = component_columns([trajectory.result for trajectory in trajectories])
    names = dict.fromkeys(name for trajectory in trajectories for name in trajectory.texts)
    texts = [{name: trajectory.texts.get(name) for name in names} for trajectory in trajectories]
    return [text | values for text, values in zip(texts, components, strict=True)]


def log_completions(tracker: Tracker, step: int, trajectories: Sequence[Trajectory]) -> None:
    """Log some completions of `step`; nothing if none was sampled."""
    shown = _evenly([trajectory for trajectory in trajectories if trajectory.texts])
    pairs = zip(texts_and_rewards(shown), shown, strict=True)
    rows = [_ordered(row | {"reward": total_reward(trajectory.fields)}) for row, trajectory in pairs]
    if rows:
        tracker.completions(step, rows)


def log_evaluation(tracker: Tracker, step: int, folder: Path) -> None:
    """Log some completions of the evaluation after `step`, which is stored in `folder`; nothing if there was none."""
    if rows := _evenly(read_evaluation(folder, step)):
        tracker.evaluation_completions(step, rows)


def _evenly(rows: Sequence[T]) -> list[T]:
    """At most `_MAX_ROWS` of `rows`, from all over them."""
    return [*rows[:: max(1, len(rows) // _MAX_ROWS)][:_MAX_ROWS]]


def _ordered(row: Mapping[str, Any]) -> dict[str, Any]:
    """`row` with the components after the reward that they are parts of."""
    return dict(sorted(row.items(), key=lambda item: item[0].startswith("reward/")))
