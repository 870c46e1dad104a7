"""Calls of a reward function. The outcome is a mapping of components, None, or a `Failure`; never an exception."""

from __future__ import annotations

import asyncio
import inspect
import io
import math
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from numbers import Real
from threading import Thread
from typing import Any, Literal

from attrs import frozen

from purerl.rewards.adapters import LoadedReward, RewardInput
from purerl.seeds import seed_everything

__all__ = ["INTERNAL_FILES", "Failure", "FailureKind", "Outcome", "call_reward", "short_name", "shorten"]

INTERNAL_FILES = tuple(f"purerl/rewards/{name}.py" for name in ("adapters", "outcomes", "workers"))
"""Files whose frames are removed from tracebacks, because they only call the reward functions."""
_MAX_TRACEBACK_CHARACTERS = 4000

FailureKind = Literal["raised", "returned an invalid value", "timed out", "died"]


@frozen
class Failure:
    """Why a completion has no reward: the name of the reward function, what happened, and the traceback or message."""

    function: str
    kind: FailureKind
    traceback: str


Outcome = Mapping[str, float] | None | Failure


def call_reward(
    reward: LoadedReward,
    inputs: Sequence[RewardInput],
    *,
    timeout: float,
    before_call: Callable[[int], None] = lambda index: None,
    stop_at: float = math.inf,
) -> list[Outcome]:
    """Call `reward` on `inputs` and return one outcome per input, in their order.

    Before each call, the global random generators are seeded with the seed of the first input of the call. An async
    function runs after its call has returned an awaitable, so its random numbers are not determined by the seed.

    Awaitables run concurrently, each for at most `timeout` seconds. `before_call` gets the index of the first input of
    each call, and -1 before the awaitables run. No call starts after ``time.monotonic()`` has reached `stop_at`, except
    the first one: the result then covers only the first inputs.
    """
    returned: list[tuple[int, Any]] = []
    max_inputs = reward.convention.max_inputs
    for start in range(0, len(inputs), max_inputs):
        if returned and time.monotonic() > stop_at:
            break
        before_call(start)
        batch = inputs[start : start + max_inputs]
        returned.append((len(batch), _call(reward, batch)))
    before_call(-1)
    values = _await_all(reward.name, [value for _, value in returned], timeout)
    outcomes = (_parse(reward, value, count) for (count, _), value in zip(returned, values, strict=True))
    return [outcome for batch_outcomes in outcomes for outcome in batch_outcomes]


def _call(reward: LoadedReward, inputs: Sequence[RewardInput]) -> Any:
    seed_everything(inputs[0].seed)
    try:
        returned = reward.convention.call(reward.function, inputs)
        return list(returned) if isinstance(returned, Iterator) else returned
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 -- every exception of a reward function is a failure of its rows
        return _failure_of_exception(reward.name, error)


def _parse(reward: LoadedReward, returned: Any, count: int) -> list[Outcome]:
    if isinstance(returned, Failure):
        return [returned] * count
    try:
        return [_make_outcome(reward.name, value) for value in reward.convention.parse(returned, count)]
    except Exception as error:  # noqa: BLE001 -- returned objects of any class may raise while they are read
        return [Failure(reward.name, "returned an invalid value", str(error))] * count


def _make_outcome(name: str, value: Any) -> Outcome:
    """Convert a returned number to one component, named after its function. A mapping has several components.

    >>> _make_outcome("module:Class.length", 3)
    {'length': 3.0}
    """
    if value is None:
        return None
    components = value if isinstance(value, Mapping) else {short_name(name): value}
    # Scalars of numpy and torch have the shape () and a method item().
    numbers = {
        str(key): number.item() if getattr(number, "shape", None) == () else number
        for key, number in components.items()
    }
    if not all(isinstance(number, Real) and math.isfinite(number) for number in numbers.values()):
        need = "a number, a mapping of names to numbers, or None"
        return Failure(name, "returned an invalid value", f"returned {value!r:.200}; need {need}")
    return {key: float(number) for key, number in numbers.items()}


def short_name(name: str) -> str:
    """The last part of the name of a reward function: ``module:Class.length`` becomes ``length``."""
    return re.split("[:.]", name)[-1]


def _failure_of_exception(name: str, error: BaseException) -> Failure:
    exception = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in exception.stack if not frame.filename.endswith(INTERNAL_FILES)]
    exception.stack = traceback.StackSummary.from_list(frames)
    return Failure(name, "raised", shorten("".join(exception.format())))


def shorten(text: str, max_characters: int = _MAX_TRACEBACK_CHARACTERS) -> str:
    """Remove the middle of `text` if it is longer than `max_characters`.

    >>> shorten("0123456789", 4)
    '01 [6 characters left out] 89'
    """
    half = max_characters // 2
    removed = len(text) - 2 * half
    return text if len(text) <= max_characters else f"{text[:half]} [{removed} characters left out] {text[-half:]}"


# --- awaiting ----------------------------------------------------------------------------------------------------


def _await_all(name: str, values: Sequence[Any], timeout: float) -> list[Any]:
    """Replace each awaitable in `values` by its result, or by a `Failure`."""
    awaitables = {k: value for k, value in enumerate(values) if inspect.isawaitable(value)}
    if not awaitables:
        return list(values)
    coroutine = _gather(name, list(awaitables.values()), timeout)
    results = dict(zip(awaitables, asyncio.run_coroutine_threadsafe(coroutine, _event_loop()).result(), strict=True))
    return [results.get(k, value) for k, value in enumerate(values)]


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of all async reward functions in this process.

    There is only one, so that clients stored in a module can be used in every call. It runs in its own thread, because
    the calling thread may already run an event loop, for example in a notebook.
    """
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="purerl rewards", daemon=True).start()
    return loop


async def _gather(name: str, awaitables: Sequence[Any], timeout: float) -> list[Any]:
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    await asyncio.wait(tasks, timeout=timeout)
    return [_task_result(name, task, timeout) for task in tasks]


def _task_result(name: str, task: asyncio.Future[Any], timeout: float) -> Any:
    if not task.done():
        stack = io.StringIO()
        if isinstance(task, asyncio.Task):
            task.print_stack(file=stack)
        task.cancel()
        message = f"{name} did not finish within {timeout:g} seconds\n{stack.getvalue()}"
        return Failure(name, "timed out", shorten(message))
    if task.cancelled():
        return Failure(name, "raised", f"{name} cancelled itself")
    error = task.exception()
    return task.result() if error is None else _failure_of_exception(name, error)
