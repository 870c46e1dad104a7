"""Evaluation: completions of every problem, and their rewards. The same code runs inside and outside of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from purerl.data.chat import Chat
from purerl.data.examples import DataSet, prompts_at, rows_at
from purerl.evaluation.accuracy import is_correct
from purerl.evaluation.results import Attempt, Problem
from purerl.evaluation.settings import Evaluate
from purerl.plugins import locate
from purerl.protocols import Generator, Request, Sampling
from purerl.rewards.adapters import RewardInput
from purerl.rewards.ground_truth import find_ground_truth
from purerl.rewards.runner import RewardResult
from purerl.rollouts.complete import complete
from purerl.seeds import derive_seed

__all__ = ["attempt_problems", "num_attempts", "request_key"]

_LOG = logging.getLogger(__name__)


def attempt_problems(
    problems: Mapping[str, DataSet],
    settings: Evaluate,
    *,
    generator: Generator,
    chat: Chat,
    rewards: Callable[[Sequence[RewardInput]], list[RewardResult]],
    accuracy_reward: str | None,
    seed: int,
) -> dict[str, list[Problem]]:
    """Attempts at every problem of every data set. The function `accuracy_reward` decides which ones are correct.

    The seed of an attempt depends only on `seed`, the index of the problem and the number of the attempt. So the same
    model makes the same attempts inside and outside of a run.
    """
    sampling = Sampling(settings.temperature, settings.max_tokens, chat.stop_tokens, settings.stop_strings)
    extract = _extractor(settings.answer_extractor)
    samples, results = settings.samples_per_prompt, {}
    for name, data in problems.items():
        indices = data.indices
        examples = rows_at(data, indices)
        prompts = prompts_at(chat, data, indices, examples)
        requests = [
            Request(request_key(name, index, k), prompt.tokens, sampling, derive_seed(seed, "eval", index, k))
            for index, prompt in zip(indices, prompts, strict=True)
            for k in range(samples)
        ]
        completed = complete(generator, chat.tokenizer, requests)
        origins = [example for example in examples for _ in range(samples)]
        inputs = [
            RewardInput(completion.key, text, example, derive_seed(seed, "reward", completion.key))
            for (completion, text), example in zip(completed, origins, strict=True)
        ]
        attempts = [
            Attempt(
                completion=text,
                tokens=len(completion.tokens),
                finish=completion.finish,
                answer=extract(text),
                result=result,
                is_correct=is_correct(result, accuracy_reward),
            )
            for (completion, text), result in zip(completed, rewards(inputs), strict=True)
        ]
        rows = zip(*[iter(attempts)] * samples, strict=True)
        truths = map(find_ground_truth, examples)
        columns = zip(indices, prompts, rows, truths, strict=True)
        results[name] = [Problem(index, prompt.text, row, truth) for index, prompt, row, truth in columns]
    return results


def num_attempts(problems: Mapping[str, DataSet], settings: Evaluate) -> int:
    """The number of completions of an evaluation."""
    return sum(len(data.indices) for data in problems.values()) * settings.samples_per_prompt


def request_key(name: str, index: int, attempt: int) -> str:
    """The key of an attempt at a problem of the data set `name`; up to the last "/" it is that of the problem.

    >>> request_key("test", 7, 0)
    'test/7/0'
    """
    return f"{name}/{index}/{attempt}"


def _extractor(name: str | None) -> Callable[[str], str | None]:
    """The answer extractor called `name`. If it raises, the answer is None, and the first time there is a warning."""
    if name is None:
        return lambda completion: None
    function, warned = locate(name), False

    def extract(completion: str) -> str | None:
        nonlocal warned
        try:
            answer = function(completion)
        except Exception:  # noqa: BLE001 - a completion may be anything, and an evaluation should not be lost
            if not warned:
                _LOG.warning("%s raised, and the answer is None; the first traceback:", name, exc_info=True)
            warned = True
            return None
        return None if answer is None else str(answer)

    return extract
