"""Rows that models score: what a model reads of them, and how its scores become a component of their rewards."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from attrs import evolve, frozen

from purerl.data.chat import Messages, TextOrMessages
from purerl.data.columns import PromptFormat
from purerl.data.examples import DataSet, extract_prompt, rows_at
from purerl.rewards.outcomes import Failure
from purerl.rewards.runner import RewardResult
from purerl.rollouts.types import Trajectory

__all__ = ["ScoredRow", "Scores", "ScoringModel", "failed", "is_blocked", "last_action", "open_rows", "with_component"]

Scores = Mapping[int, float]
"""Rewards of tokens of a row, by their positions. Their sum is the score of the row."""


@frozen
class ScoredRow:
    """What a model may read of a row.

    example   its row of the data
    prompt    of the example
    messages  after the prompt, up to the last one of the policy
    """

    row: Trajectory
    example: Mapping[str, Any]
    prompt: TextOrMessages
    messages: Messages

    @property
    def completion(self) -> str:
        """The text of the policy in its last turn."""
        return self.row.texts["completion"]


class ScoringModel(Protocol):
    """A model whose scores are rewards: the component `name`, with this factor in the weighted sum."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float: ...

    def __call__(self, rows: Sequence[ScoredRow]) -> list[Scores | Failure]:
        """The scores of all `rows`. Collective: every rank calls it with the same rows, and gets the same scores."""
        ...

    def close(self) -> None:
        """Release what the model itself has opened."""
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
    messages = [_without_notes(message) for message in json.loads(row.texts["messages"])]
    while messages[-1]["role"] != "assistant":
        messages.pop()
    if isinstance(prompt, str) and prompt_format == "text":
        return prompt, messages[1:]
    count = 1 if isinstance(prompt, str) else len(prompt)
    return messages[:count], messages[count:]


def _without_notes(message: Mapping[str, Any]) -> dict[str, Any]:
    """A stored message without what purerl has added to it."""
    return {key: value for key, value in message.items() if key not in ("reward", "player")}


def last_action(row: Trajectory) -> int:
    """The position of the last token of the policy."""
    return max(k for k, action in enumerate(row.fields["action"]) if action)


def is_blocked(result: RewardResult, gates: Collection[str]) -> bool:
    """Whether one of `gates` has returned less than 1."""
    return any(value < 1 for gate in gates for value in result.by_function.get(gate, {}).values())


def failed(row: Trajectory, failure: Failure) -> Trajectory:
    """`row` without a reward, masked out."""
    length = len(row.fields["tokens"])
    fields = {**row.fields, "mask": [False] * length, "reward": [0.0] * length}
    return evolve(row, fields=fields, result=RewardResult(failure=failure, totals=row.result.totals))


def with_component(row: Trajectory, name: str, scores: Scores, weight: float) -> Trajectory:
    """`row` with the component `name`: the sum of `scores`.

    A row that is not the last one of its episode has no scores, and the component has only the weighted value 0.
    """
    old, value = row.result, sum(scores.values())
    own = {name: value} if scores else {}
    result = evolve(
        old,
        components={**old.components, **{n: old.components.get(n, 0.0) + v for n, v in own.items()}},
        weighted_components={
            **old.weighted_components,
            name: old.weighted_components.get(name, 0.0) + weight * value,
        },
        by_function={**old.by_function, **({name: own} if own else {})},
    )
    reward = [value + weight * scores.get(k, 0.0) for k, value in enumerate(row.fields["reward"])]
    mask = row.fields["mask"] if old.reward is not None else row.fields["action"]
    return evolve(row, fields={**row.fields, "reward": reward, "mask": [*mask]}, result=result)
