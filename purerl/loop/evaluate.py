"""Evaluation: completions of every problem, judged. A run's own, and that of a model outside of any run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from purerl.config.schema import Evaluate
from purerl.data.chat import Chat
from purerl.data.examples import DataSet, prompts_at, rows_at
from purerl.evaluation.results import Attempt, Problem, metrics
from purerl.loop.complete import complete
from purerl.loop.judging import judged
from purerl.loop.run import Run, seed_of
from purerl.plugins import locate
from purerl.protocols import Generator, Heard, Request, Sampling, unheard
from purerl.rewards.adapters import RewardInput
from purerl.rewards.runner import RewardResult

__all__ = ["attempted", "evaluate", "key_of"]

_LOG = logging.getLogger(__name__)


def evaluate(run: Run, *, step: int) -> dict[str, float]:
    """The metrics of an evaluation of the policy as it is after `step`. Raises RewardError where too many failed."""
    settings, judge = run.config.evaluate, partial(judged, run, step=step)
    results = attempted(
        run.data.problems, settings, generator=run.generator, chat=run.data.chat, judge=judge, seed=run.config.seed
    )
    return metrics(results, settings)


def attempted(
    problems: Mapping[str, DataSet],
    settings: Evaluate,
    *,
    generator: Generator,
    chat: Chat,
    judge: Callable[[Sequence[RewardInput]], list[RewardResult]],
    seed: int,
    heard: Heard = unheard,
) -> dict[str, list[Problem]]:
    """Attempts at every problem of every data set; `heard` is told of completions as they come, by `key_of`.

    The seed of an attempt depends on `seed`, the problem's index and the attempt's number, on nothing else: the same
    model makes the same attempts, in a run and outside of it.
    """
    sampling = Sampling(settings.temperature, settings.max_tokens, chat.stop_tokens, settings.stop_strings)
    answer = (
        _Answers(settings.answer_extractor, locate(settings.answer_extractor)) if settings.answer_extractor else _none
    )
    found = {}
    for name, data in problems.items():
        indices = data.indices
        examples = rows_at(data, indices)
        prompts = prompts_at(chat, data, indices, examples)
        requests = [
            Request(key_of(name, index, k), prompt.tokens, sampling, seed_of(seed, "eval", index, k))
            for index, prompt in zip(indices, prompts, strict=True)
            for k in range(settings.samples_per_prompt)
        ]
        completed = complete(generator, chat.tokenizer, requests, heard)
        origins = [example for example in examples for _ in range(settings.samples_per_prompt)]
        cases = [
            RewardInput(one.key, text, example, seed_of(seed, "reward", one.key))
            for (one, text), example in zip(completed, origins, strict=True)
        ]
        attempts = [
            Attempt(text, len(one.tokens), one.finish, answer(text), verdict)
            for (one, text), verdict in zip(completed, judge(cases), strict=True)
        ]
        rows = zip(*[iter(attempts)] * settings.samples_per_prompt, strict=True)
        found[name] = [
            Problem(index, prompt.text, row) for index, prompt, row in zip(indices, prompts, rows, strict=True)
        ]
    return found


def key_of(name: str, index: int, attempt: int) -> str:
    """The key of an attempt at a problem of the data set `name`; before the last "/" it is the problem's.

    >>> key_of("test", 7, 0)
    'test/7/0'
    """
    return f"{name}/{index}/{attempt}"


def _none(completion: str) -> None:
    """No answer is looked for."""


class _Answers:
    """What a function finds in completions, as text. Where it raises there is no answer; the first time it is told."""

    def __init__(self, name: str, find: Callable[[str], object]):
        self._name, self._find, self._told = name, find, False

    def __call__(self, completion: str) -> str | None:
        try:
            found = self._find(completion)
        except Exception:  # noqa: BLE001 -- a completion may be anything, and what was sampled is not to be lost
            if not self._told:
                _LOG.warning("%s raised, so there is no answer; the first time:", self._name, exc_info=True)
            self._told = True
            return None
        return None if found is None else str(found)
