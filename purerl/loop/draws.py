"""Drawing examples from the training data. The order is a function of the seed, so the only state is a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from purerl.data.chat import Chat, TokenizedExample
from purerl.data.examples import DataSet, indices_of_draws, prompts_at, rows_at, tokenized_at
from purerl.rollouts.types import Draw

__all__ = ["Sampler"]


@frozen
class Sampler:
    """Draws examples from `data`; `teachers` are the names of several teachers."""

    data: DataSet
    chat: Chat
    seed: int
    teachers: tuple[str, ...] = ()

    def draw(self, first: int, count: int) -> list[Draw]:
        """The draws `first`, ..., `first + count - 1`."""
        return self.draws_of(indices_of_draws(self.data, self.seed, first, count), first)

    def draws_of(self, indices: Sequence[int], first: int) -> list[Draw]:
        """The examples at `indices` as the draws `first`, `first + 1`, ..."""
        examples = rows_at(self.data, indices)
        prompts = prompts_at(self.chat, self.data, indices, examples)
        columns = zip(range(first, first + len(indices)), indices, examples, prompts, strict=True)
        return [Draw(number, *columns, key=str(number), seeds=(self.seed, number)) for number, *columns in columns]

    def row_fields(self, draw: Draw) -> dict[str, Any]:
        """The fields of a row that depend only on its draw."""
        teacher = {"teacher_index": self.teachers.index(draw.example["data_source"])} if self.teachers else {}
        return {"group": draw.number, "example": draw.index, **teacher}

    def answers(self, draw: Draw) -> list[TokenizedExample]:
        """The prompt of `draw` with each of its answers."""
        return tokenized_at(self.chat, self.data, draw.index, draw.example)
