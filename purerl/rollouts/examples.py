"""Workflows that request nothing: demonstrations, preference pairs and labeled completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from purerl.data.answers import TokenizedExample
from purerl.rollouts.row_images import NO_IMAGES, RowImages
from purerl.rollouts.single_turn import RowFields
from purerl.rollouts.types import Draw, Generate, Trajectory

__all__ = ["Answers", "Demonstrations", "LabeledCompletions", "Preferences", "scored_at_end"]

Answers = Callable[[Draw], list[TokenizedExample]]
"""The prompt of a draw with each of its answers."""


def scored_at_end(answer: TokenizedExample) -> TokenizedExample:
    """`answer` for a classifier: its last token, which may come after the answer, is an action token too.

    A classifier is scored at the last token of a conversation as the chat template writes it. Many templates add a line
    break after the token that ends a turn. An EOS token that the template does not write is left out.

    >>> scored_at_end(TokenizedExample([5, 6, 2, 9], [False, True, True, False])).action
    [False, True, True, True]
    """
    length = len(answer.tokens) - answer.added_end
    return answer._replace(tokens=answer.tokens[:length], action=[*answer.action[: length - 1], True])


@frozen
class Demonstrations:
    """A workflow: one row for each demonstration."""

    answers: Answers
    row_fields: RowFields
    images: RowImages = NO_IMAGES

    async def __call__(self, draw: Draw, generate: Generate) -> list[Trajectory]:
        return self.rows(draw)

    def rows(self, draw: Draw) -> list[Trajectory]:
        """The rows of `draw`. Raises ImageError for an image that cannot be decoded."""
        fields = self.row_fields(draw)
        return [Trajectory({**fields, **_row(answer, draw.number, self.images)}) for answer in self.answers(draw)]


@frozen
class Preferences:
    """A workflow: two rows for each pair, the prompt with the chosen answer, and with the rejected one."""

    answers: Answers
    row_fields: RowFields
    images: RowImages = NO_IMAGES

    async def __call__(self, draw: Draw, generate: Generate) -> list[Trajectory]:
        return self.rows(draw)

    def rows(self, draw: Draw) -> list[Trajectory]:
        """The rows of `draw`. Raises ImageError for an image that cannot be decoded."""
        fields = self.row_fields(draw)
        return [
            Trajectory({**fields, **_row(answer, 2 * draw.number + k, self.images), "chosen": k == 0})
            for k, answer in enumerate(self.answers(draw))
        ]


@frozen
class LabeledCompletions:
    """A workflow: two rows for each labeled completion, its prompt with it, and with the completion of another prompt.

    The second row is `mismatched`.
    """

    answers: Answers
    mismatched_answer: Callable[[Draw], TokenizedExample]
    row_fields: RowFields
    images: RowImages = NO_IMAGES

    async def __call__(self, draw: Draw, generate: Generate) -> list[Trajectory]:
        return self.rows(draw)

    def rows(self, draw: Draw) -> list[Trajectory]:
        """The rows of `draw`. Raises ImageError for an image that cannot be decoded."""
        fields = self.row_fields(draw)
        return [
            Trajectory({**fields, **_row(answer, 2 * draw.number + k, self.images), "mismatched": k == 1})
            for k, answer in enumerate([*self.answers(draw), self.mismatched_answer(draw)])
        ]


def _row(answer: TokenizedExample, row: int, images: RowImages) -> dict[str, Any]:
    images.store(answer.images)
    image = images.ids(answer.tokens, answer.images)
    fields = {"tokens": answer.tokens, "action": answer.action, "row": row, "temperature": 1.0}
    return fields | ({"image": image} if image else {})
