"""Classifiers whose scores are rewards: trainers that are not trained.

A classifier reads the whole conversation as its own tokenizer renders it. A trainer that is divided over ranks scores
like a reference: every rank has all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from attrs import frozen

from purerl.batch import collate
from purerl.data.chat import Chat
from purerl.data.conversations import ReadConversation, read_conversation, read_steps
from purerl.data.row_settings import with_tools_of_row
from purerl.data.special_tokens import mark
from purerl.errors import DataError
from purerl.protocols import Trainer
from purerl.rewards.components import is_valid_number
from purerl.rewards.outcomes import Failure
from purerl.rewards.steps import Steps, aggregate, split_steps
from purerl.rollouts.scoring.rows import ScoredRow, Scores, last_action
from purerl.rollouts.step_ends import step_ends

__all__ = ["Classifier"]

_ROWS = 1024  # that one call of a trainer scores
_SCORE = "classifier_score"


@frozen
class Classifier:
    """A `ScoringModel` that is a classifier.

    chat       how it reads conversations
    policy     the tokenizer of the policy
    pad_token  is no end of a conversation; None: every token may be one
    steps      how the last turn is divided, if each step has a score
    """

    name: str
    trainer: Trainer
    chat: Chat
    policy: Any
    pad_token: int | None
    steps: Steps | None = None

    def __call__(self, rows: Sequence[ScoredRow]) -> list[Scores | Failure]:
        reads = [(row, self._read(row)) for row in rows]
        pairs = [(read, row.row.fields["group"]) for row, read in reads if not isinstance(read, Failure)]
        values = iter(self._scores([read for read, _ in pairs], [group for _, group in pairs]))
        return [read if isinstance(read, Failure) else self._placed(row, next(values)) for row, read in reads]

    def _read(self, row: ScoredRow) -> ReadConversation | Failure:
        """The tokens of the conversation of `row`; a failure if they cannot be scored."""
        messages = [_marked(self.chat, message) for message in row.messages]
        try:
            chat = self.chat if row.is_episode else with_tools_of_row(self.chat, row.example)
            if self.steps is None:
                read = read_conversation(chat, row.prompt, messages, pad_token=self.pad_token)
            else:
                content, ends = _with_markers(self.chat, row.completion, self.steps)
                read = read_steps(chat, row.prompt, [*messages[:-1], {**messages[-1], "content": content}], ends=ends)
        except DataError as error:
            return Failure(self.name, "raised", f"{error}\n")
        limit = self.trainer.capabilities.max_sequence_length
        if limit is not None and len(read.tokens) > limit:
            text = f"the conversation has {len(read.tokens):,} tokens, and the model reads at most {limit:,}\n"
            return Failure(self.name, "failed", text)
        if read.ends[0] < 1:
            return Failure(self.name, "failed", "the conversation has no token before the one that is scored\n")
        return read

    def _scores(self, conversations: Sequence[ReadConversation], groups: Sequence[int]) -> list[list[float]]:
        """The scores of each conversation at its ends. Those with the same number in `groups` have the same prompt."""
        return [
            row
            for first in range(0, len(conversations), _ROWS)
            for row in self._scores_of_batch(conversations[first : first + _ROWS], groups[first : first + _ROWS])
        ]

    def _scores_of_batch(
        self, conversations: Sequence[ReadConversation], groups: Sequence[int]
    ) -> Iterator[list[float]]:
        rows = [
            dict(tokens=read.tokens, action=_at(read.ends, len(read.tokens)), row=row, group=group, temperature=1.0)
            for row, (read, group) in enumerate(zip(conversations, groups, strict=True))
        ]
        scores = self.trainer.score(collate(rows), (_SCORE,))[_SCORE]
        for row, read in enumerate(conversations):
            yield scores[row, read.ends].tolist()

    def _placed(self, row: ScoredRow, values: Sequence[float]) -> Scores | Failure:
        """The scores `values` of `row`, each with its token."""
        wrong = [value for value in values if not is_valid_number(value)]
        if wrong:
            return Failure(self.name, "returned an invalid value", f"the score is {wrong[0]}\n")
        if self.steps is None:
            return [(last_action(row.row), values[0])]
        if self.steps.aggregate != "none":
            return [(last_action(row.row), aggregate(values, self.steps.aggregate))]
        return [*zip(step_ends(self.policy, row.row, self.steps.separator), values, strict=True)]


def _marked(chat: Chat, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """`message` with its text marked, so that special tokens that it spells are read as text, if it is the policy's."""
    content = message.get("content")
    is_text = message["role"] == "assistant" and isinstance(content, str)
    return {**message, "content": mark(chat.tokenizer, content)} if is_text else message


def _with_markers(chat: Chat, completion: str, steps: Steps) -> tuple[str, list[int]]:
    """`completion` with the marker after each step, and the positions of the ends of the markers."""
    marker = steps.separator if steps.marker is None else steps.marker
    parts = [mark(chat.tokenizer, step.text) + marker for step in split_steps(completion, steps.separator)]
    return "".join(parts), [*accumulate(map(len, parts))]


def _at(positions: Sequence[int], length: int) -> list[bool]:
    chosen = {*positions}
    return [position in chosen for position in range(length)]
