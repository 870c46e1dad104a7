"""What became of problems: completions and what was said of them, and the numbers that they come to.

docs/metrics.md explains each number, docs/evaluation.md how it is estimated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from attrs import frozen

from purerl.config.schema import Evaluate
from purerl.evaluation.statistics import interval, majority, pass_at
from purerl.rewards.runner import RewardResult, fractions

__all__ = ["Attempt", "Problem", "as_json", "dataset_metrics", "metrics"]


@frozen
class Attempt:
    """One completion of a problem: its text, its tokens, why it ended, the answer found in it, and what was said."""

    completion: str
    tokens: int
    finish: str
    answer: str | None
    verdict: RewardResult

    @property
    def is_right(self) -> bool:
        """Whether every component of the reward is at least 1."""
        return self.verdict.reward is not None and min(self.verdict.components.values()) >= 1.0


@frozen
class Problem:
    """One problem: its index in the data set, its prompt as the model saw it, and the attempts at it."""

    index: int
    prompt: str
    attempts: tuple[Attempt, ...]

    @property
    def judged(self) -> list[Attempt]:
        """Those whose reward was told."""
        return [attempt for attempt in self.attempts if attempt.verdict.reward is not None]


def dataset_metrics(problems: Sequence[Problem], settings: Evaluate) -> dict[str, float]:
    """The numbers of one data set: means over problems of what their judged completions come to.

    A problem without a judged completion has no part in them, nor one of fewer than k in pass@k; where no problem is
    left, a number is left out. Length and shares are of all completions.
    """
    every = [attempt for problem in problems for attempt in problem.attempts]
    judged = [problem.judged for problem in problems if problem.judged]
    right = [[attempt.is_right for attempt in attempts] for attempts in judged]
    found = {"length": fmean(attempt.tokens for attempt in every)}
    found["truncated"] = fmean(attempt.finish == "length" for attempt in every)
    found |= fractions([attempt.verdict for attempt in every])
    if judged:
        solved = [fmean(one) for one in right]
        found["reward"] = fmean(fmean(attempt.verdict.reward or 0.0 for attempt in attempts) for attempts in judged)
        found["accuracy"] = fmean(solved)
        found["accuracy_low"], found["accuracy_high"] = interval(solved, samples=settings.samples_per_prompt)
    for k in settings.passes:
        if enough := [pass_at(sum(one), len(one), k=k) for one in right if len(one) >= k]:
            found[f"pass@{k}"] = fmean(enough)
    if settings.answer_extractor and judged:
        answers = [[attempt.answer for attempt in attempts] for attempts in judged]
        found[f"maj@{settings.samples_per_prompt}"] = fmean(map(majority, answers, right))
    return found


def metrics(results: Mapping[str, Sequence[Problem]], settings: Evaluate) -> dict[str, float]:
    """The numbers of each data set, ``eval/accuracy`` for one; for several ``eval/<name>/accuracy``, and their mean."""
    measures = {name: dataset_metrics(problems, settings) for name, problems in results.items()}
    if len(measures) == 1:
        [only] = measures.values()
        return {f"eval/{name}": value for name, value in only.items()}
    found = {f"eval/{name}/{key}": value for name, one in measures.items() for key, value in one.items()}
    accuracies = [one["accuracy"] for one in measures.values() if "accuracy" in one]
    return found | ({"eval/accuracy": fmean(accuracies)} if len(accuracies) == len(measures) else {})


def as_json(problems: Sequence[Problem], settings: Evaluate) -> dict[str, Any]:
    """A data set's numbers, and each problem with its attempts, as JSON has them."""
    return {"metrics": dataset_metrics(problems, settings), "problems": [_problem(problem) for problem in problems]}


def _problem(problem: Problem) -> dict[str, Any]:
    right = sum(attempt.is_right for attempt in problem.judged)
    attempts = [_attempt(attempt, attempt.verdict) for attempt in problem.attempts]
    return {"index": problem.index, "prompt": problem.prompt, "right": right, "attempts": attempts}


def _attempt(attempt: Attempt, verdict: RewardResult) -> dict[str, Any]:
    said = {"reward": verdict.reward, "components": dict(verdict.components)}
    one = verdict.failure
    failure = {"failure": f"{one.function} {one.kind}", "traceback": one.traceback} if one else {}
    texts = {"completion": attempt.completion, "answer": attempt.answer, "finish": attempt.finish}
    return texts | {"tokens": attempt.tokens, "right": attempt.is_right} | said | failure
