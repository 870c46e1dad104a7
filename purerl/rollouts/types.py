"""Values that pass between the training loop, workflows and engines.

A *draw* is one example of the data, drawn for one step. A *workflow* turns it into a *group*: all trajectories of this
draw, with their rewards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from purerl.data.chat import Prompt
from purerl.data.examples import Example
from purerl.protocols import Completion, Request
from purerl.rewards.adapters import RewardInput
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult

__all__ = ["Draw", "Generate", "Group", "Score", "Trajectory", "Workflow"]


@frozen
class Draw:
    """An example that was drawn.

    number   of the draw; unique among those that are in flight
    index    of the example in its data set
    example  the row of the data set
    prompt   its text and tokens
    key      start of the keys of its requests
    seeds    what the seeds of its samples are derived from; the first one is the seed of the run
    """

    number: int
    index: int
    example: Example
    prompt: Prompt
    key: str
    seeds: tuple[Any, ...]


@frozen
class Trajectory:
    """One row of a batch.

    fields   the fields of the schema: one value each, or one for each token. A workflow may give the experts of tokens
             as `routes`, [n, layers, k]; the run stores them, and puts the number of the record in their place
    texts    what people read: "prompt", "completion", "finish" and "ground_truth"; and of an episode of several turns
             "messages", its conversation from the prompt on as JSON
    result   of the reward functions. A row with a failure has no reward, and is masked out
    metrics  numbers whose mean over the trajectories of a step is logged, by the names of the metrics
    """

    fields: Mapping[str, Any]
    texts: Mapping[str, Any] = field(factory=dict)
    result: RewardResult = RewardResult()
    metrics: Mapping[str, float] = field(factory=dict)


@frozen
class Group:
    """All trajectories of the draw with this number. If the workflow itself failed there are none, and a `failure`."""

    draw: int
    trajectories: tuple[Trajectory, ...]
    failure: Failure | None = None

    def oldest_version(self, default: int) -> int:
        """The version of the oldest weights that sampled one of its tokens; `default` if none was sampled."""
        rows = [trajectory.fields for trajectory in self.trajectories]
        versions = [v for row in rows for v, sampled in zip(row["version"], row["action"], strict=True) if sampled]
        return min(versions, default=default)


Generate = Callable[[Sequence[Request]], Awaitable[list[Completion]]]
"""Completions of requests, in the same order. A request on which the engine failed has finish "error"."""

Score = Callable[[Sequence[RewardInput]], Awaitable[list[RewardResult]]]
"""The results of all reward functions for each input, in the same order. Failures are part of the results."""

Workflow = Callable[[Draw, Generate], Awaitable[list[Trajectory]]]
"""Makes all trajectories of a draw. It knows nothing else about engines."""
