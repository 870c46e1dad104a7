"""Evaluation: completions of every problem, and their rewards. The same code runs inside and outside of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from purerl.data.chat import Chat
from purerl.data.examples import DataSet, prompts_at, rows_at
from purerl.evaluation.accuracy import is_correct
from purerl.evaluation.results import Attempt, Problem
from purerl.evaluation.settings import Evaluate
from purerl.plugins import locate
from purerl.protocols import Sampling
from purerl.rewards.ground_truth import find_ground_truth
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.single_turn import SingleTurn
from purerl.rollouts.types import Draw, Group, Score, Trajectory

__all__ = ["OnGroup", "attempt_problems", "num_attempts"]

OnGroup = Callable[[str, Group], object]

_LOG = logging.getLogger(__name__)


def attempt_problems(
    problems: Mapping[str, DataSet],
    settings: Evaluate,
    *,
    runtime: Runtime,
    chat: Chat,
    score: Score,
    accuracy_reward: str | None,
    seed: int,
    on_group: OnGroup = lambda name, group: None,
) -> dict[str, list[Problem]]:
    """Attempts at every problem of every data set. The function `accuracy_reward` decides which ones are correct.

    The seed of an attempt depends only on `seed`, the index of the problem and the number of the attempt. So the same
    model makes the same attempts inside and outside of a run. The weights of the engine must not change meanwhile.
    `on_group` is called with the name of the data set and the group of each problem, as soon as it is finished.
    """
    workflow = SingleTurn(
        tokenizer=chat.tokenizer,
        sampling=Sampling(settings.temperature, settings.max_tokens, chat.stop_tokens, settings.stop_strings),
        samples=settings.samples_per_prompt,
        score=score,
        row_fields=lambda draw: {"group": draw.number, "example": draw.index},
    )
    extract, rollouts, results = _extractor(settings.answer_extractor), Rollouts(runtime, workflow), {}
    for name, data in problems.items():
        draws = _draws(name, data, chat, seed)
        groups = {group.draw: group for group in _all_groups(rollouts, draws, partial(on_group, name))}
        results[name] = [
            Problem(
                draw.index,
                draw.prompt.text,
                [_attempt(trajectory, extract, accuracy_reward) for trajectory in groups[draw.number].trajectories],
                find_ground_truth(draw.example),
            )
            for draw in draws
        ]
    return results


def _draws(name: str, data: DataSet, chat: Chat, seed: int) -> list[Draw]:
    """Every problem of the data set `name`."""
    examples = rows_at(data, data.indices)
    prompts = prompts_at(chat, data, data.indices, examples)
    columns = zip(range(len(data.indices)), data.indices, examples, prompts, strict=True)
    return [
        Draw(number, index, example, prompt, key=f"{name}/{index}", seeds=(seed, "eval", index))
        for number, index, example, prompt in columns
    ]


def _all_groups(rollouts: Rollouts, draws: Sequence[Draw], on_group: Callable[[Group], object]) -> Iterator[Group]:
    """The groups of `draws`, as they finish."""
    rollouts.submit(draws)
    while rollouts.in_flight:
        for group in rollouts.collect():
            on_group(group)
            yield group


def _attempt(trajectory: Trajectory, extract: Callable[[str], str | None], accuracy_reward: str | None) -> Attempt:
    text = trajectory.texts["completion"]
    return Attempt(
        completion=text,
        tokens=sum(trajectory.fields["action"]),
        finish=trajectory.texts["finish"],
        answer=extract(text),
        result=trajectory.result,
        is_correct=is_correct(trajectory.result, accuracy_reward),
        messages=trajectory.texts.get("messages"),
    )


def num_attempts(problems: Mapping[str, DataSet], settings: Evaluate) -> int:
    """The number of completions of an evaluation."""
    return sum(len(data.indices) for data in problems.values()) * settings.samples_per_prompt


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
