"""Results of an evaluation: completions with their rewards, and the metrics computed from them.

docs/reference/metrics.md lists the metrics, docs/how-to/evaluation.md explains how they are estimated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from attrs import field, frozen

from purerl.evaluation.settings import Evaluate
from purerl.evaluation.statistics import accuracy_interval, majority_vote, pass_at_k
from purerl.images import Image
from purerl.rewards.components import added
from purerl.rewards.results import RewardResult, component_columns, fractions, logged_metrics, reward_values

__all__ = ["Attempt", "Problem", "as_json", "as_rows", "dataset_metrics", "is_measurement", "metrics"]


@frozen
class Attempt:
    """One completion of a problem.

    completion  its text
    tokens      number of its tokens
    finish      why it ended, for example "stop" or "length"
    answer      what the answer extractor returned for it; None without an answer or without an extractor
    result      result of the reward functions
    is_correct  whether it is correct; None if it has no reward, or the function that decides does not apply to it
    messages    the whole conversation as JSON, if it has several turns
    images      content ids of the images of the prompt or the conversation as JSON; None without images
    counts      what else is counted in an episode of several turns, by the name of the metric
    """

    completion: str
    tokens: int
    finish: str
    answer: str | None
    result: RewardResult
    is_correct: bool | None = None
    messages: str | None = None
    images: str | None = None
    counts: Mapping[str, float] = field(factory=dict)


@frozen
class Problem:
    """One problem and its completions.

    index         row index in the data set
    prompt        text of the prompt, after the chat template
    attempts      the completions
    ground_truth  the ground truth of the row; None if it has none
    images        of the prompt
    """

    index: int
    prompt: str
    attempts: tuple[Attempt, ...]
    ground_truth: str | None = None
    images: tuple[Image, ...] = ()

    @property
    def graded(self) -> list[Attempt]:
        """The attempts that are known to be correct or incorrect."""
        return [attempt for attempt in self.attempts if attempt.is_correct is not None]

    @property
    def scored(self) -> list[Attempt]:
        """The attempts that have a reward."""
        return [attempt for attempt in self.attempts if attempt.result.reward is not None]


def dataset_metrics(problems: Sequence[Problem], settings: Evaluate) -> dict[str, float]:
    """Compute the metrics of one data set.

    Accuracy, pass@k and maj@k are means over problems, and each problem is the mean over its graded attempts. A problem
    without a graded attempt is left out, and a problem with fewer than k graded attempts is left out of pass@k. The
    reward and its components are means over the scored attempts in the same way. A metric is omitted if no problem
    remains. Length and all fractions are computed over all attempts, and counts over all that have them.
    """
    attempts = [attempt for problem in problems for attempt in problem.attempts]
    graded = [problem.graded for problem in problems if problem.graded]
    correct = [[bool(attempt.is_correct) for attempt in group] for group in graded]
    values = {"length": fmean(attempt.tokens for attempt in attempts)}
    values["truncated"] = fmean(attempt.finish == "length" for attempt in attempts)
    results = [attempt.result for attempt in attempts]
    names = dict.fromkeys(name for attempt in attempts for name in attempt.counts)
    values |= {name: fmean(each.counts[name] for each in attempts if name in each.counts) for name in names}
    values |= fractions(results) | _mean_rewards(problems) | logged_metrics(results)
    values |= {f"reward/{name}": total for name, total in added(*(each.totals for each in results)).items()}
    if correct:
        accuracies = [fmean(group) for group in correct]
        low, high = accuracy_interval(accuracies, num_samples=settings.samples_per_prompt)
        values["accuracy"] = fmean(accuracies)
        values["accuracy_low"], values["accuracy_high"] = low, high
    for k in settings.pass_ks:
        if estimates := [pass_at_k(sum(group), len(group), k=k) for group in correct if len(group) >= k]:
            values[f"pass@{k}"] = fmean(estimates)
    if settings.answer_extractor and correct:
        answers = [[attempt.answer for attempt in group] for group in graded]
        values[f"maj@{settings.samples_per_prompt}"] = fmean(map(majority_vote, answers, correct))
    return values


def _mean_rewards(problems: Sequence[Problem]) -> dict[str, float]:
    """Means of the reward and of each component: over the problems, and in each over the attempts that have it."""
    groups = [[reward_values(attempt.result) for attempt in problem.scored] for problem in problems]
    names = dict.fromkeys(name for group in groups for values in group for name in values)
    columns = {name: [[values[name] for values in group if name in values] for group in groups] for name in names}
    return {name: fmean(fmean(values) for values in column if values) for name, column in columns.items()}


def metrics(results: Mapping[str, Sequence[Problem]], settings: Evaluate) -> dict[str, float]:
    """Compute the metrics of all data sets.

    With one data set the names are ``eval/accuracy`` and so on. With several they are ``eval/<data set>/accuracy`` and
    so on, and ``eval/accuracy`` is the mean of the accuracies, if every data set has one.
    """
    by_dataset = {name: dataset_metrics(problems, settings) for name, problems in results.items()}
    if len(by_dataset) == 1:
        [values] = by_dataset.values()
        return {f"eval/{metric}": value for metric, value in values.items()}
    flat = {f"eval/{name}/{metric}": value for name, values in by_dataset.items() for metric, value in values.items()}
    accuracies = [values["accuracy"] for values in by_dataset.values() if "accuracy" in values]
    return flat | ({"eval/accuracy": fmean(accuracies)} if len(accuracies) == len(by_dataset) else {})


def is_measurement(name: str) -> bool:
    """Whether the metric `name` is one of an evaluation or of a validation."""
    return name.startswith(("eval/", "validation/"))


def as_json(problems: Sequence[Problem], settings: Evaluate) -> dict[str, Any]:
    """Convert one data set to JSON values: its metrics, and every problem with its attempts."""
    return {"metrics": dataset_metrics(problems, settings), "problems": [_problem(problem) for problem in problems]}


def as_rows(results: Mapping[str, Sequence[Problem]]) -> list[dict[str, Any]]:
    """Convert all attempts at all problems to rows of a table, as `purerl.store.evaluations` stores them."""
    attempts = [
        (name, problem, number, attempt)
        for name, problems in results.items()
        for problem in problems
        for number, attempt in enumerate(problem.attempts)
    ]
    components = component_columns([attempt.result for *_, attempt in attempts])
    has_messages = any(attempt.messages is not None for *_, attempt in attempts)
    has_images = any(attempt.images is not None for *_, attempt in attempts)
    return [
        {
            "data_set": name,
            "index": problem.index,
            "attempt": number,
            "prompt": problem.prompt,
            "completion": attempt.completion,
            "tokens": attempt.tokens,
            "finish": attempt.finish,
            "answer": attempt.answer,
            "correct": attempt.is_correct,
            "reward": attempt.result.reward,
            "ground_truth": problem.ground_truth,
            **({"messages": attempt.messages} if has_messages else {}),
            **({"images": attempt.images} if has_images else {}),
            **values,
        }
        for (name, problem, number, attempt), values in zip(attempts, components, strict=True)
    ]


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "index": problem.index,
        "prompt": problem.prompt,
        "ground_truth": problem.ground_truth,
        "num_correct": sum(bool(attempt.is_correct) for attempt in problem.attempts),
        "attempts": [_attempt(attempt) for attempt in problem.attempts],
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    failure = attempt.result.failure
    values = {
        "completion": attempt.completion,
        "answer": attempt.answer,
        "finish": attempt.finish,
        "tokens": attempt.tokens,
        **attempt.counts,
        "correct": attempt.is_correct,
        "reward": attempt.result.reward,
        "components": dict(attempt.result.components),
        **({"logged": dict(attempt.result.columns)} if attempt.result.columns else {}),
    }
    for name in ("messages", "images"):
        if (text := getattr(attempt, name)) is not None:
            values[name] = json.loads(text)
    if failure:
        values |= {"failure": f"{failure.function} {failure.kind}", "traceback": failure.traceback}
    return values
