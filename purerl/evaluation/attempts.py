"""Evaluation: completions of every problem, and their rewards. The same code runs inside and outside of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial

from purerl.data.chat import Chat
from purerl.data.examples import DataSet, prompts_at, rows_at
from purerl.evaluation.accuracy import describe_components, is_correct
from purerl.evaluation.problem_results import Attempt, Problem
from purerl.evaluation.sampling import sampling_of
from purerl.evaluation.settings import Evaluate
from purerl.plugins import locate
from purerl.ranks import ONE_RANK, Ranks
from purerl.rewards.ground_truth import find_ground_truth
from purerl.rewards.results import RewardResult
from purerl.rollouts.custom_workflow import close_workflow
from purerl.rollouts.distributed import Supplier, distributed
from purerl.rollouts.episode_rows import episodes_of, results_of_episodes
from purerl.rollouts.interaction import open_workflow, with_limit
from purerl.rollouts.opened import Engines, Task
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.scoring.models import OnMissing
from purerl.rollouts.types import Draw, Group

__all__ = ["OnGroup", "attempt_problems", "num_attempts"]

OnGroup = Callable[[str, Group], object]

_LOG = logging.getLogger(__name__)
_COUNTS = {name: f"environment/{name}" for name in ("turns", "tool_calls", "tool_errors")}


def attempt_problems(
    task: Task,
    engines: Engines,
    settings: Evaluate,
    *,
    accuracy_rewards: Sequence[str],
    seed: int,
    on_group: OnGroup = lambda name, group: None,
    on_missing: OnMissing = lambda missing: None,
    ranks: Ranks = ONE_RANK,
) -> dict[str, list[Problem]]:
    """Attempts at every problem of `task`; `is_correct` of `accuracy_rewards` says which ones are correct.

    The seed of an attempt depends only on `seed`, the index of the problem and the number of the attempt. So the same
    model makes the same attempts inside and outside of a run. The weights of the engine must not change meanwhile.
    All `ranks` call it: each makes a share of the attempts, and gets all of them. `on_group` is called with the name of
    the data set and the group of each problem, as soon as it is finished, before models score it; `on_missing` with
    each sample that a model could not score.
    """
    interaction = with_limit(task.interaction, *engines.capabilities().sampling)
    sampling = sampling_of(settings, task.chat.stop_tokens)
    extract, results = _extractor(settings.answer_extractor), {}
    for name, data in task.problems.items():
        workflow = open_workflow(
            interaction,
            task.chat,
            data.example_format,
            sampling=sampling,
            samples=settings.samples_per_prompt,
            rewards=task.rewards,
            row_fields=lambda draw: {"group": draw.number, "example": draw.index},
            runtime=engines.runtime,
        )
        draws = _draws(name, data, task.chat, seed)
        rollouts = distributed(Rollouts(engines.runtime, workflow), ranks)
        finished = sorted(_all_groups(rollouts, draws, partial(on_group, name)), key=lambda group: group.draw)
        scored = engines.scorers(finished, data, settings.samples_per_prompt, on_missing)
        groups = {group.draw: group for group in scored}
        results[name] = [
            Problem(
                draw.index,
                draw.prompt.text,
                _attempts(groups[draw.number], settings.samples_per_prompt, extract, accuracy_rewards),
                find_ground_truth(draw.example),
                tuple(draw.prompt.images),
            )
            for draw in draws
        ]
        close_workflow(workflow, engines.runtime)
    graded = (each.result for problems in results.values() for problem in problems for each in problem.attempts)
    if note := describe_components(graded, accuracy_rewards):
        _warn_once(note)
    return results


@cache
def _warn_once(text: str) -> None:
    _LOG.warning("%s", text)


def _draws(name: str, data: DataSet, chat: Chat, seed: int) -> list[Draw]:
    """Every problem of the data set `name`."""
    indices = data.indices
    examples = rows_at(data, indices)
    prompts = prompts_at(chat, data, indices, examples)
    columns = zip(range(len(indices)), indices, examples, prompts, strict=True)
    return [
        Draw(number, index, example, prompt, key=f"{name}/{index}", seeds=(seed, "eval", index))
        for number, index, example, prompt in columns
    ]


def _all_groups(rollouts: Supplier, draws: Sequence[Draw], on_group: Callable[[Group], object]) -> Iterator[Group]:
    """The groups of `draws`, as they finish."""
    rollouts.submit(draws)
    while groups := rollouts.collect():
        for group in groups:
            on_group(group)
            yield group


def _attempts(
    group: Group, samples: int, extract: Callable[[str], str | None], accuracy_rewards: Sequence[str]
) -> list[Attempt]:
    """An attempt for each episode of `group`. If its workflow failed, `samples` empty ones with the failure."""
    if group.failure is not None:
        result = RewardResult(failure=group.failure)
        return [Attempt("", 0, "error", None, result, is_correct=None)] * samples
    episodes = episodes_of(group.trajectories)
    return [
        Attempt(
            completion=rows[-1].texts["completion"],
            tokens=sum(sum(row.fields["action"]) for row in rows),
            finish=rows[-1].texts["finish"],
            answer=extract(rows[-1].texts["completion"]),
            result=result,
            is_correct=is_correct(result, accuracy_rewards),
            messages=rows[-1].texts.get("messages"),
            images=rows[-1].texts.get("images"),
            counts=_counts(rows[-1].metrics),
        )
        for rows, result in zip(episodes, results_of_episodes(group.trajectories), strict=True)
    ]


def _counts(metrics: Mapping[str, float]) -> dict[str, float]:
    """The numbers of an episode that an evaluation shows; the last one of its rows has them."""
    return {name: metrics[key] for name, key in _COUNTS.items() if key in metrics}


def num_attempts(problems: Mapping[str, DataSet], settings: Evaluate) -> int:
    """The number of completions of an evaluation."""
    return sum(data.num_rows for data in problems.values()) * settings.samples_per_prompt


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
