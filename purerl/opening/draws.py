"""Drawing examples from the training data. The order is a function of the seed, so the only state is a number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from attrs import frozen

from purerl.config.requirements import Requirements
from purerl.data.answers import TokenizedExample
from purerl.data.chat import Chat, Prompt
from purerl.data.examples import DataSet, Example, indices_of_draws, prompts_at, rows_at, tokenized_at
from purerl.errors import ImageError
from purerl.rollouts.examples import Demonstrations, LabeledCompletions, Preferences, scored_at_end
from purerl.rollouts.opened import Task
from purerl.rollouts.row_images import RowImages
from purerl.rollouts.types import Draw, Trajectory

__all__ = ["Sampler", "all_rows", "examples_workflow"]


@frozen
class Sampler:
    """Draws examples from `data`.

    teachers  the names of several teachers
    columns   columns of numbers that are fields of the rows
    """

    data: DataSet
    chat: Chat
    seed: int
    teachers: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def draw(self, first: int, count: int) -> list[Draw]:
        """The draws `first`, ..., `first + count - 1`."""
        indices = indices_of_draws(self.data, self.seed, first, count)
        examples = rows_at(self.data, indices)
        return self._draws(indices, first, examples, prompts_at(self.chat, self.data, indices, examples))

    def draw_examples(self, first: int, count: int) -> list[Draw]:
        """The same draws with empty prompts: `answers` tokenizes an example with its prompt."""
        return self.examples_at(indices_of_draws(self.data, self.seed, first, count), first)

    def examples_at(self, indices: Sequence[int], first: int) -> list[Draw]:
        """The examples at `indices` as the draws `first`, `first + 1`, ..., with empty prompts."""
        return self._draws(indices, first, rows_at(self.data, indices), [Prompt("", [])] * len(indices))

    def _draws(
        self, indices: Sequence[int], first: int, examples: Sequence[Example], prompts: Sequence[Prompt]
    ) -> list[Draw]:
        columns = zip(range(first, first + len(indices)), indices, examples, prompts, strict=True)
        return [Draw(number, *columns, key=str(number), seeds=(self.seed, number)) for number, *columns in columns]

    def row_fields(self, draw: Draw) -> dict[str, Any]:
        """The fields of a row that depend only on its draw."""
        teacher = {"teacher_index": self.teachers.index(draw.example["data_source"])} if self.teachers else {}
        numbers = {name: float(draw.example[name]) for name in self.columns}
        return {"group": draw.number, "example": draw.index, **teacher, **numbers}

    def answers(self, draw: Draw) -> list[TokenizedExample]:
        """The prompt of `draw` with each of its answers."""
        return tokenized_at(self.chat, self.data, draw.index, draw.example)

    def labeled_fields(self, draw: Draw) -> dict[str, Any]:
        """The fields of the rows of a labeled completion."""
        return {**self.row_fields(draw), "desirable": draw.example[self.data.example_format.label]}

    def mismatched_answer(self, draw: Draw) -> TokenizedExample:
        """The prompt of `draw` with the answer of the next draw.

        If that has the same example, as at the end of an epoch, it is the answer of the draw after it.
        """
        following = indices_of_draws(self.data, self.seed, draw.number + 1, 2)
        [other] = rows_at(self.data, [next((index for index in following if index != draw.index), draw.index)])
        columns = self.data.example_format.columns[1:]
        mixed = {**draw.example, **{name: other[name] for name in columns}}
        [answer] = tokenized_at(self.chat, self.data, draw.index, mixed)
        return answer

    def scored_answers(self, draw: Draw) -> list[TokenizedExample]:
        """The same for a classifier, which is scored at the last token."""
        return [scored_at_end(answer) for answer in self.answers(draw)]


def examples_workflow(needs: Requirements, sampler: Sampler) -> Demonstrations | Preferences | LabeledCompletions:
    """The workflow of an algorithm that learns from the data of `sampler`."""
    images = RowImages(sampler.chat)
    if needs.example_type == "demonstrations":
        return Demonstrations(sampler.answers, sampler.row_fields, images)
    if needs.example_type == "labels":
        return LabeledCompletions(sampler.answers, sampler.mismatched_answer, sampler.labeled_fields, images)
    answers = sampler.scored_answers if needs.trains_classifier else sampler.answers
    return Preferences(answers, sampler.row_fields, images)


def all_rows(needs: Requirements, task: Task, seed: int) -> Iterator[list[Trajectory]]:
    """The rows of every step of a run on data, and those of its validation, in parts of a step.

    An example is read once, unless its rows depend on the next draw, as those of labeled completions do.
    """
    training, size = task.training, needs.schedule.batch_size
    total = needs.schedule.num_steps(training.examples.num_rows) * size
    for data in filter(None, (training.examples, training.held_out)):
        sampler = Sampler(data, task.chat, seed, needs.teachers, needs.number_columns)
        workflow, seen = examples_workflow(needs, sampler), set[int]()
        indices = None if data is training.examples else data.indices
        for first in range(0, total if indices is None else len(indices), size):
            part = None if indices is None else indices[first : first + size]
            draws = sampler.draw_examples(first, size) if part is None else sampler.examples_at(part, first)
            rows = list[Trajectory]()
            for draw in draws:
                if needs.example_type == "labels" or draw.index not in seen:
                    with suppress(ImageError):  # its rows are left out of their step
                        rows += workflow.rows(draw)
            seen.update(draw.index for draw in draws)
            yield rows
