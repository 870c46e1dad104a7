"""The tokens of the first attempt at the first problem of an evaluation, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from purerl.data.examples import extract_prompt, prompts_at, rows_at
from purerl.data.row_settings import chat_of_row
from purerl.data.shown_tokens import ShownEnding, ShownRow, endings_of, show_sampled
from purerl.rollouts.opened import Task
from purerl.rollouts.types import Group

__all__ = ["FirstAttempt", "ShownAttempt"]


class ShownAttempt(NamedTuple):
    """The data set and the index of a problem, the tokens of an attempt at it, and how completions end."""

    data_set: str
    index: int
    row: ShownRow
    endings: Sequence[ShownEnding]


class FirstAttempt:
    """Keeps the group of the first problem of `task`. It is a callback `on_group` of an evaluation."""

    def __init__(self, task: Task) -> None:
        self._task, self._name = task, next(iter(task.problems))
        self._group: Group | None = None

    def __call__(self, name: str, group: Group) -> None:
        if name == self._name and group.draw == 0:
            self._group = group

    def show(self, stop_strings: Sequence[str]) -> ShownAttempt | None:
        """The tokens of its first row; None if its workflow has failed."""
        if self._group is None or not self._group.trajectories:
            return None
        data, chat = self._task.problems[self._name], self._task.chat
        index = data.indices[0]
        examples = rows_at(data, [index])
        [prompt] = prompts_at(chat, data, [index], examples)
        fields, messages = self._group.trajectories[0].fields, extract_prompt(data.example_format, examples[0])
        chat = chat_of_row(chat, examples[0])
        row = show_sampled(chat, messages, prompt, [*fields["tokens"]], [*fields["action"]])
        return ShownAttempt(self._name, index, row, endings_of(chat, stop_strings))
