"""Rows that models score: what a model reads of them, and how its scores become a component of their rewards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from attrs import evolve, frozen

from purerl.data.chat import Messages, TextOrMessages
from purerl.data.columns import PromptFormat
from purerl.data.examples import DataSet, extract_prompt, rows_at
from purerl.rewards.components import added
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult, checked_sums, is_blocked
from purerl.rewards.settings import Gate, Reward
from purerl.rollouts.types import Trajectory

__all__ = ["ScoredRow", "Scores", "ScoringModel", "failed", "last_action", "open_rows", "with_scores"]

Scores = Sequence[tuple[int, float]]
"""The scores of a row: one, or one for each step, each with the position of the token whose reward it is."""


@frozen
class ScoredRow:
    """The part of a row that a model may read.

    example   its row of the data
    prompt    of the example
    messages  after the prompt, up to the last one of the policy
    """

    row: Trajectory
    example: Mapping[str, Any]
    prompt: TextOrMessages
    messages: Messages

    @property
    def is_episode(self) -> bool:
        """Whether the row is one of an environment, which has its own tools."""
        return "messages" in self.row.texts

    @property
    def completion(self) -> str:
        """The text of the policy in its last turn."""
        return self.row.texts["completion"]


class ScoringModel(Protocol):
    """A model whose scores are rewards; `name` is the one in `roles.rewards`."""

    @property
    def name(self) -> str: ...

    def __call__(self, rows: Sequence[ScoredRow]) -> list[Scores | Failure]:
        """The scores of all `rows`. Collective: every rank calls it with the same rows, and gets the same scores."""
        ...


def open_rows(rows: Sequence[Trajectory], data: DataSet, prompt_format: PromptFormat) -> list[ScoredRow]:
    """`rows`, whose examples are rows of `data`, as models read them."""
    examples = rows_at(data, [row.fields["example"] for row in rows])
    prompts = [extract_prompt(data.example_format, example) for example in examples]
    return [
        ScoredRow(row, example, *_conversation(prompt_format, prompt, row))
        for row, example, prompt in zip(rows, examples, prompts, strict=True)
    ]


def _conversation(
    prompt_format: PromptFormat, prompt: TextOrMessages, row: Trajectory
) -> tuple[TextOrMessages, Messages]:
    """The prompt of `row`, and the messages after it up to the last one of the policy."""
    if "messages" not in row.texts:
        return prompt, [{"role": "assistant", "content": row.texts["completion"]}]
    stored = json.loads(row.texts["messages"])  # with what purerl has added to them
    messages = [{key: value for key, value in message.items() if key not in ("reward", "player")} for message in stored]
    while messages[-1]["role"] != "assistant":
        messages.pop()
    if isinstance(prompt, str) and prompt_format == "text":
        return prompt, messages[1:]
    count = 1 if isinstance(prompt, str) else len(prompt)
    return messages[:count], messages[count:]


def last_action(row: Trajectory) -> int:
    """The position of the last token of the policy."""
    return max(k for k, action in enumerate(row.fields["action"]) if action)


def failed(row: Trajectory, failure: Failure) -> Trajectory:
    """`row` without a reward, masked out."""
    length = len(row.fields["tokens"])
    fields = {**row.fields, "mask": [False] * length, "reward": [0.0] * length}
    return evolve(row, fields=fields, result=RewardResult(failure=failure, totals=row.result.totals))


def with_scores(
    rows: Sequence[Trajectory], scores: Mapping[str, Scores], rewards: Mapping[str, Reward], gates: Mapping[str, Gate]
) -> list[Trajectory]:
    """The `rows` of an episode with the scores of models in the last one.

    scores   of the last row, by the name of the reward or gate that reads them
    rewards  all rewards of the run by name: functions and models
    gates    all gates of the run by name

    Every score adds its `Reward.contribution` to the reward of its token. The component is the sum of the scores. If a
    gate is closed, functions and models contribute nothing. In a row that is not the last one each contribution is 0. A
    sum that float32 cannot hold is a failure.
    """
    *others, last = rows
    old, values = last.result, {name: sum(value for _, value in pairs) for name, pairs in scores.items()}
    by_function = {**old.by_function, **{name: {name: value} for name, value in values.items()}}
    reward, weighted = [*last.fields["reward"]], old.weighted_components
    if is_blocked(by_function, gates):
        weighted, removed = _without_functions(old, rewards)
        reward[last_action(last)] -= removed
        contributions: dict[str, float] = dict.fromkeys((name for name in scores if name in rewards), 0.0)
    else:
        placed = [
            (name, position, rewards[name].contribution(value))
            for name, pairs in scores.items()
            if name in rewards
            for position, value in pairs
        ]
        contributions = added(*({name: value} for name, _, value in placed))
        for _, position, value in placed:
            reward[position] += value
    result = evolve(
        old,
        components=added(old.components, values),
        weighted_components=added(weighted, contributions),
        by_function=by_function,
    )
    result = checked_sums(result)
    if result.failure is not None:
        return [failed(row, result.failure) for row in rows]
    empty = dict.fromkeys(contributions, 0.0)
    return [
        *(_with_result(row, row.fields["reward"], _with_weighted(row.result, empty)) for row in others),
        _with_result(last, reward, result),
    ]


def _without_functions(result: RewardResult, rewards: Mapping[str, Reward]) -> tuple[dict[str, float], float]:
    """The weighted components of `result` with 0 for those of `rewards`, and the sum of what this removes."""
    own = {component for name in rewards for component in result.by_function.get(name, {})}
    weighted = result.weighted_components
    removed = sum(value for name, value in weighted.items() if name in own)
    return {name: 0.0 if name in own else value for name, value in weighted.items()}, removed


def _with_weighted(result: RewardResult, components: Mapping[str, float]) -> RewardResult:
    return evolve(result, weighted_components=added(result.weighted_components, components))


def _with_result(row: Trajectory, reward: Sequence[float], result: RewardResult) -> Trajectory:
    """`row` with this reward of its tokens, which are trained if it has one."""
    is_new = row.result.reward is None and result.reward is not None
    mask = row.fields["action"] if is_new else row.fields["mask"]
    return evolve(row, fields={**row.fields, "reward": [*reward], "mask": [*mask]}, result=result)
