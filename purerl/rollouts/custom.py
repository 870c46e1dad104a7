"""Workflows of users: the functions that make them, their arguments, and checks of the rows that they return."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from purerl.batch import FIELDS, ROW_FIELDS
from purerl.errors import ConfigError, RolloutError, nearest
from purerl.rewards.ground_truth import find_ground_truth
from purerl.rollouts.row_images import NO_IMAGES, RowImages
from purerl.rollouts.settings import WorkflowSettings
from purerl.rollouts.types import Draw, Generate, Trajectory, Workflow

__all__ = [
    "ARGUMENTS",
    "WORKFLOW",
    "CheckedWorkflow",
    "check_workflow_settings",
    "requested_arguments",
    "requires_score",
]

_LOG = logging.getLogger(__name__)
_CLOSE_TIMEOUT = 20.0  # seconds

WORKFLOW = "workflow"
"""The name in `RewardResult.by_function` of the reward that a workflow of a user gives as a whole."""

ARGUMENTS = ("chat", "messages", "sampling", "samples", "score", "row_fields", "seed", "max_sequence_length")
"""Arguments that a run passes to the function that makes a workflow, if it has parameters with these names."""

_REQUIRED = (
    "tokens", "action", "mask", "reward", "rollout_logp", "version", "row", "group", "example", "temperature",
    "truncated",
)  # fmt: skip
_OPTIONAL = ("turn", "anchor", "role", "episode", "image")


def check_workflow_settings(
    settings: WorkflowSettings, signature: inspect.Signature | None, *, functions: Sequence[str]
) -> None:
    """Refuse a function that cannot be called with what `settings` and a run pass, and settings without effect.

    signature  of the function; None: it is not known
    functions  names of the reward functions and gates of the run

    Raises: ConfigError.
    """
    for name in settings.fields:
        if name not in _OPTIONAL:
            need, do = f"some of {', '.join(_OPTIONAL)}", nearest(name, _OPTIONAL)
            raise ConfigError("fields", got=repr(name), need=need, do=do)
    if passed := [name for name in settings.kwargs if name in ARGUMENTS]:
        raise ConfigError("kwargs", got=passed[0], need="other arguments than those that the run passes")
    if signature is None:
        return
    arguments = {**requested_arguments(signature, dict.fromkeys(ARGUMENTS)), **settings.kwargs}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        need = f"a function that returns a workflow. A run passes {', '.join(ARGUMENTS)}; kwargs has all others"
        raise ConfigError(f"function {settings.function}{signature}", got=str(error), need=need) from error
    if functions and "score" not in arguments:
        need = "a workflow that scores with them: a function with the parameter score"
        got = f"rewards or gates: {functions[0]}"
        raise ConfigError(f"function {settings.function}{signature}", got=got, need=need)


def requested_arguments(signature: inspect.Signature, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `values` for which there is a parameter; all of them if there is a parameter ``**kwargs``.

    >>> requested_arguments(inspect.signature(lambda chat, limit=3: None), {"chat": 1, "seed": 2})
    {'chat': 1}
    """
    parameters = signature.parameters.values()
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return {name: value for name, value in values.items() if takes_all or name in signature.parameters}


def requires_score(signature: inspect.Signature | None) -> bool:
    """Whether the workflow needs reward functions: its function has a parameter `score` without a default."""
    parameter = signature.parameters.get("score") if signature else None
    return parameter is not None and parameter.default is inspect.Parameter.empty


@frozen(eq=False)
class CheckedWorkflow:
    """A workflow of a user, with checks of its rows.

    workflow  what the function `name` has returned. Its method `close`, if it has one, is called once, at the end
    fields    the optional fields that its rows have
    images    of prompts, which are stored before the workflow is called

    Rows get what they lack of the texts `prompt` and `ground_truth`, and their reward as `by_function["workflow"]`,
    which decides what is correct in an evaluation.

    Raises: RolloutError for rows that cannot be used: the run stops, because others will be like them.
    """

    name: str
    workflow: Workflow
    fields: tuple[str, ...] = ()
    images: RowImages = NO_IMAGES

    async def __call__(self, draw: Draw, generate: Generate) -> list[Trajectory]:
        self.images.store(draw.prompt.images)
        trajectories = await self.workflow(draw, generate)
        if problem := _problem_of(trajectories, draw, (*_REQUIRED, *self.fields)):
            what = f"the workflow {self.name} returned rows that cannot be used"
            do = "fix it; see docs/how-to/workflows.md"
            raise RolloutError(what, got=f"draw {draw.number}: {problem}", do=do)
        return [_completed(trajectory, draw) for trajectory in trajectories]

    async def close(self) -> None:
        """Close the workflow. An exception, or a call that takes too long, is only a warning."""
        close: Callable[[], Any] | None = getattr(self.workflow, "close", None)
        if close is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                value = close()
                await value if inspect.isawaitable(value) else None
        except Exception:  # noqa: BLE001 - nothing depends on it anymore
            _LOG.warning("the workflow %s was not closed", self.name, exc_info=True)


def _completed(trajectory: Trajectory, draw: Draw) -> Trajectory:
    result = trajectory.result
    texts = {"prompt": draw.prompt.text, "ground_truth": find_ground_truth(draw.example)}
    by_function = {WORKFLOW: {"reward": result.reward}} if result.reward is not None else {}
    return evolve(
        trajectory,
        texts={**texts, **trajectory.texts},
        result=evolve(result, by_function={**by_function, **result.by_function}),
    )


def _problem_of(trajectories: Any, draw: Draw, names: Sequence[str]) -> str | None:
    """The first problem of the rows of `draw`, which must have the fields `names`."""
    if not isinstance(trajectories, list | tuple) or not trajectories:
        return f"{trajectories!r:.200}; need a list of at least one Trajectory"
    problems = (problem for trajectory in trajectories for problem in _problems(trajectory, draw, names))
    if problem := next(problems, None):
        return problem
    rows = [trajectory.fields["row"] for trajectory in trajectories]
    return None if len({*rows}) == len(rows) else f"the values of the field row are {rows}; need a different one each"


def _problems(trajectory: Any, draw: Draw, names: Sequence[str]) -> Iterator[str]:
    """The problems of a row. Later problems are only meaningful without the earlier ones."""
    if not isinstance(trajectory, Trajectory):
        yield f"{trajectory!r:.200}; need a purerl.rollouts.types.Trajectory"
    fields, texts = trajectory.fields, trajectory.texts
    yield from (f"a row without the field {name}; it has {', '.join(fields)}" for name in names if name not in fields)
    yield from (
        f"a row with the unknown field {name!r}; {nearest(name, FIELDS)}" for name in fields if name not in FIELDS
    )
    length = len(fields["tokens"])
    for name, value in fields.items():
        if name not in ROW_FIELDS and len(value) != length:
            yield f"{len(value)} values in the field {name}, and {length} tokens"
    if not length:
        yield "a row without tokens"
    for name, value in (("group", draw.number), ("example", draw.index)):
        if fields[name] != value:
            yield f"{name} = {fields[name]!r}; need {value!r}, as in row_fields(draw)"
    if any(counted and not action for counted, action in zip(fields["mask"], fields["action"], strict=True)):
        yield "mask is True at a token that is no action"
    if trajectory.result.reward is None and any(fields["mask"]):
        yield "a row without a reward in `result` whose mask is not False everywhere"
    yield from (f"a row without the text {name!r}" for name in ("completion", "finish") if name not in texts)
