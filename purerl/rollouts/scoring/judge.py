"""Judges in the process of a run: language models that are asked about completions, with a generator of their own.

The question, and how a number is read from the answers, are those of the kind of reward `judge`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from attrs import frozen
from jinja2 import TemplateError

from purerl.data.chat import Chat, tokenize_prompts
from purerl.data.encoding import decode
from purerl.errors import DataError
from purerl.protocols import Completion, Generator, Request, generate
from purerl.ranks import ONE_RANK, Ranks
from purerl.rewards.endpoint.errors import UnusableAnswerError
from purerl.rewards.judges.answers import combine, parse_score
from purerl.rewards.judges.question import Question
from purerl.rewards.judges.scores import is_tag_of_thoughts
from purerl.rewards.outcomes import Failure
from purerl.rollouts.scoring.rows import ScoredRow, Scores, last_action
from purerl.sampling import Sampling
from purerl.seeds import derive_seed

__all__ = ["ModelJudge"]


@frozen
class ModelJudge:
    """A `ScoringModel` that is a language model.

    question   what it is asked
    generator  samples its answers; every rank has one, and asks about its share of the rows
    chat       how it reads questions
    seed       of the run. An answer depends on it, on the question, and on the number of the sample
    """

    name: str
    question: Question
    generator: Generator
    chat: Chat
    seed: int
    ranks: Ranks = ONE_RANK

    def __call__(self, rows: Sequence[ScoredRow]) -> list[Scores | Failure]:
        own = rows[self.ranks.rank :: self.ranks.size]
        parts = self.ranks.on_all(lambda: [*self._scores(own)], f"the answers of {self.name}")
        results: list[float | Failure] = [0.0] * len(rows)
        for rank, part in enumerate(parts):
            results[rank :: self.ranks.size] = part
        return [
            result if isinstance(result, Failure) else [(last_action(row.row), result)]
            for row, result in zip(rows, results, strict=True)
        ]

    def _scores(self, rows: Sequence[ScoredRow]) -> Iterator[float | Failure]:
        asked = [self._asked(row) for row in rows]
        numbers = range(self.question.judge.samples)
        requests = [
            Request(f"{row}/{number}", tokens, self._sampling, derive_seed(self.seed, self.name, str(tokens), number))
            for row, tokens in enumerate(asked)
            if not isinstance(tokens, Failure)
            for number in numbers
        ]
        answers = {answer.key: answer for answer in generate(self.generator, requests)} if requests else {}
        for row, tokens in enumerate(asked):
            if isinstance(tokens, Failure):
                yield tokens
            else:
                yield self._score([answers[f"{row}/{number}"] for number in numbers])

    def _asked(self, row: ScoredRow) -> list[int] | Failure:
        """The tokens of the question about `row`; a failure if it cannot be asked."""
        try:
            messages = self.question(row.completion, row.example, row.messages)
            is_text = self.chat.prompt_format == "text"
            tokens = tokenize_prompts(self.chat, [messages[-1]["content"] if is_text else messages])[0].tokens
        except (DataError, TemplateError, TypeError) as error:
            return Failure(self.name, "raised", f"{type(error).__name__}: {error}\n")
        longest = self.generator.capabilities.max_sequence_length
        length = len(tokens) + self.question.judge.max_tokens
        if longest is not None and length > longest:
            text = f"the question and judge.max_tokens are {length:,} tokens, and the model reads at most {longest:,}\n"
            return Failure(self.name, "failed", text)
        return tokens

    @property
    def _sampling(self) -> Sampling:
        judge = self.question.judge
        return Sampling(temperature=judge.temperature, max_tokens=judge.max_tokens, stop_tokens=self.chat.stop_tokens)

    def _score(self, answers: Sequence[Completion]) -> float | Failure:
        """The score that `answers` give; a failure if at most half of them have one."""
        judge, scores, errors = self.question.judge, list[float](), list[str]()
        for answer in answers:
            try:
                scores.append(parse_score(judge.answer, self._text(answer)))
            except UnusableAnswerError as error:
                cut = f" (the answer was cut at max_tokens, {judge.max_tokens})" if answer.finish == "length" else ""
                errors.append(f"{error}{cut}")
        score = combine(scores, judge)
        return Failure(self.name, "failed", f"{errors[0]}\n") if score is None else score

    def _text(self, answer: Completion) -> str:
        if answer.finish == "error":
            raise UnusableAnswerError(f"no answer: {answer.error}")
        return decode(
            self.chat, [token for token in answer.tokens if token not in self._unread], skip_special_tokens=False
        )

    @cached_property
    def _unread(self) -> frozenset[int]:
        """Special tokens that are no text. Those that begin or end thoughts stay, because thoughts are no answer."""
        added = self.chat.tokenizer.added_tokens_decoder.items()
        return frozenset(k for k, token in added if token.special and not is_tag_of_thoughts(token.content))
