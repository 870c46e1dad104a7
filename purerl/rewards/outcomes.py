"""Calls of a reward function. The outcome is a mapping of components, None, or a `Failure`; never an exception."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from threading import Thread
from typing import Any, Literal

from attrs import evolve, field, frozen

from purerl.rewards.adapters import NO_RUN, Call, LoadedReward, RewardInput, RunLength
from purerl.rewards.components import added, to_components
from purerl.seeds import seed_everything
from purerl.system.credentials import hide_credentials

__all__ = [
    "INTERNAL_FILES",
    "CallOutcomes",
    "FailedPart",
    "Failure",
    "FailureKind",
    "Logged",
    "Measured",
    "Outcome",
    "awaiting_stack",
    "call_reward",
    "failure_of_exception",
    "has_failed",
    "shorten",
    "start_calls",
    "totals_of",
    "with_totals",
]

INTERNAL_FILES = (
    *(f"purerl/rewards/{name}.py" for name in ("adapters", "conventions", "outcomes", "worker", "endpoint/client")),
    *(f"purerl/rewards/kinds/{name}.py" for name in ("judge", "remote_classifier")),
    *(f"purerl/system/workers/{name}.py" for name in ("guard", "status")),
)
"""Files whose frames are removed from tracebacks, because they only call the reward functions."""
_LOG = logging.getLogger(__name__)
_MAX_TRACEBACK_CHARACTERS = 4000
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)

FailureKind = Literal[
    "raised", "ran out of memory", "returned an invalid value", "timed out", "died", "failed", "do not apply"
]
"""The kind of a failure. An engine that has no completion for a request "failed", and so did an undecodable image.
The rewards of a run "do not apply" to a row if none is for its data source. All other kinds are of a function."""


FailedPart = Literal["reward", "environment", "engine", "workflow", "data"]
"""The part of the run that failed. Each has a remedy of its own."""


def _without_credentials(text: Any) -> Any:
    return hide_credentials(text) if isinstance(text, str) else text  # code of users may give anything


@frozen
class Failure:
    """The failure because of which a completion has no reward.

    function   name of the reward function, environment, ... that failed
    kind       what happened
    traceback  the traceback, or a message, without passwords and keys that can be recognized: it is written to files
    part       what `function` is
    """

    function: str
    kind: FailureKind
    traceback: str = field(converter=_without_credentials)
    part: FailedPart = field(default="reward", eq=False)


@frozen
class Measured:
    """A value that a reward function returns, with numbers that are logged, and have no effect on the reward.

    An exception may have such `totals` too: what a call that failed has cost.

    value   what the function could return without them
    totals  numbers by name. Their sums over all completions of a step are metrics, ``reward/<function>/<name>``

    >>> def judge(completion, example):
    ...     return Measured(0.5, {"tokens": 120})
    """

    value: Any
    totals: Mapping[str, float]


@frozen
class Logged:
    """An outcome, and what the function has logged for the completion.

    metrics  the sum and the number of the values of each metric, by name
    columns  texts for the table of completions, by the name of their column
    totals   what it has measured: numbers by name, which are added up over completions
    """

    outcome: Mapping[str, float] | Failure | None
    metrics: Mapping[str, tuple[float, int]] = field(factory=dict)
    columns: Mapping[str, str] = field(factory=dict)
    totals: Mapping[str, float] = field(factory=dict)


Outcome = Mapping[str, float] | None | Failure | Logged


def has_failed(outcome: Outcome) -> bool:
    """Whether `outcome` is a failure, with or without what was logged before it."""
    return isinstance(outcome.outcome if isinstance(outcome, Logged) else outcome, Failure)


def totals_of(outcome: Outcome) -> Mapping[str, float]:
    """The numbers measured for the completion."""
    return outcome.totals if isinstance(outcome, Logged) else {}


def with_totals(outcome: Outcome, totals: Mapping[str, float]) -> Logged:
    """`outcome` with `totals` added."""
    logged = outcome if isinstance(outcome, Logged) else Logged(outcome)
    return evolve(logged, totals=added(logged.totals, totals))


CallOutcomes = list[Outcome] | Future[list[Outcome]]
"""The outcomes of one call, one per input; a Future, if the function has returned an awaitable."""


def call_reward(
    reward: LoadedReward, inputs: Sequence[RewardInput], *, timeout: float, length: RunLength = NO_RUN
) -> list[Outcome]:
    """Call `reward` on `inputs`, and wait for the outcomes: one per input, in their order. See `start_calls`."""
    calls = start_calls(reward, inputs, timeout=timeout, length=length)
    return [outcome for call in calls for outcome in (call.result() if isinstance(call, Future) else call)]


def start_calls(
    reward: LoadedReward,
    inputs: Sequence[RewardInput],
    *,
    timeout: float,
    length: RunLength = NO_RUN,
    before_call: Callable[[int], None] = lambda index: None,
    stop_at: float = math.inf,
) -> list[CallOutcomes]:
    """Call `reward` on `inputs`. Returns the outcomes of each call, in the order of the inputs.

    Before each call, the global random generators are seeded with the seed of the first input of the call. An async
    function runs after its call has returned an awaitable, so its random numbers are not determined by the seed.

    Awaitables run concurrently, each for at most `timeout` seconds, after all calls have returned. `before_call` gets
    the index of the first input of each call, and -1 before awaitables run. No call starts after ``time.monotonic()``
    has reached `stop_at`, except the first one: the result then covers only the first inputs. `length` is that of the
    run.

    A KeyboardInterrupt or SystemExit is a failure like any other exception, unless this process got a signal during the
    call. Then it is raised here.
    """
    returned: list[tuple[Call, Any]] = []
    max_inputs = reward.convention.max_inputs
    with _received_signals() as signals:
        for start in range(0, len(inputs), max_inputs):
            if returned and time.monotonic() > stop_at:
                break
            before_call(start)
            batch = inputs[start : start + max_inputs]
            call = Call(len(batch), length)
            returned.append((call, _call(reward, batch, call, signals)))
    if any(inspect.isawaitable(value) for _, value in returned):
        before_call(-1)
    return [_outcomes(reward, value, call, timeout) for call, value in returned]


def _outcomes(reward: LoadedReward, returned: Any, call: Call, timeout: float) -> CallOutcomes:
    if inspect.isawaitable(returned):
        return asyncio.run_coroutine_threadsafe(_await_outcomes(reward, returned, call, timeout), _event_loop())
    return _parse(reward, returned, call)


@contextmanager
def _received_signals() -> Iterator[list[int]]:
    """The signals that stop this process and arrive during the block, except for ignored ones.

    SIGALRM is one of them, because the command line raises an interruption that was ignored again with it. Only the
    main thread receives signals. In any other thread the list stays empty.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    handlers = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}

    def handle(number: int, frame: Any) -> None:
        received.append(number)
        handlers[signal.Signals(number)](number, frame)

    try:
        for number in handlers:
            signal.signal(number, handle)
        yield received
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)


def _call(reward: LoadedReward, inputs: Sequence[RewardInput], call: Call, signals: Sequence[int]) -> Any:
    seed_everything(inputs[0].seed)
    try:
        returned = reward.convention.call(reward, inputs, call)
        return list(returned) if isinstance(returned, Iterator) else returned
    except BaseException as error:
        if signals and not isinstance(error, Exception):
            raise
        return _outcome_of_exception(reward.name, error)


def _parse(reward: LoadedReward, returned: Any, call: Call) -> list[Outcome]:
    if isinstance(returned, Failure):
        return [returned] * call.count
    if isinstance(returned, Logged):  # of a call that failed
        return [returned, *([returned.outcome] * (call.count - 1))]
    try:
        outcomes = [_make_outcome(reward.name, value) for value in reward.convention.parse(returned, call)]
    except Exception as error:  # noqa: BLE001 -- returned objects of any class may raise while they are read
        return [Failure(reward.name, "returned an invalid value", str(error))] * call.count
    if not (call.metrics or call.columns):
        return outcomes
    return [_with_log(outcome, call, row) for row, outcome in enumerate(outcomes)]


def _with_log(outcome: Outcome, call: Call, row: int) -> Outcome:
    """`outcome` with what was logged for the input `row`; a failure stays as it is."""
    logged = outcome if isinstance(outcome, Logged) else Logged(outcome)
    metrics, columns = call.metrics.get(row, {}), call.columns.get(row, {})
    if isinstance(logged.outcome, Failure) or not (metrics or columns):
        return outcome
    return evolve(logged, metrics=metrics, columns=columns)


def _make_outcome(name: str, value: Any) -> Outcome:
    if not isinstance(value, Measured):
        return _without_log(name, value)
    try:
        return Logged(_without_log(name, value.value), totals=to_components(name, dict(value.totals)))
    except ValueError as error:
        return Failure(name, "returned an invalid value", str(error))


def _without_log(name: str, value: Any) -> Mapping[str, float] | Failure | None:
    try:
        return None if value is None else to_components(name, value)
    except ValueError as error:
        return Failure(name, "returned an invalid value", str(error))


def _outcome_of_exception(name: str, error: BaseException) -> Failure | Logged:
    failure, totals = failure_of_exception(name, error), getattr(error, "totals", None)
    try:
        return Logged(failure, totals=to_components(name, dict(totals))) if totals else failure
    except (TypeError, ValueError):  # an attribute of this name that is something else
        return failure


def failure_of_exception(
    name: str, error: BaseException, *, internal_files: tuple[str, ...] = INTERNAL_FILES
) -> Failure:
    """The failure of the reward function or environment `name`, which has raised `error`.

    Frames of files whose names end with one of `internal_files` are left out, also of its causes.
    """
    exception = traceback.TracebackException.from_exception(error)
    chained: list[traceback.TracebackException | None] = [exception]
    while chained:
        if (one := chained.pop()) is not None:
            frames = [frame for frame in one.stack if not frame.filename.endswith(internal_files)]
            one.stack = traceback.StackSummary.from_list(frames)
            chained += [one.__cause__, one.__context__]
    text = shorten("".join(exception.format()))
    if isinstance(error, MemoryError):
        return Failure(name, "ran out of memory", text + _describe_memory_limit())
    return Failure(name, "raised", text)


def _describe_memory_limit() -> str:
    """A line with the memory limit of this process; empty if it has none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    limit_in_mib = limit // 2**20
    return "" if limit == resource.RLIM_INFINITY else f"the process may use {limit_in_mib:,} MiB of memory\n"


def shorten(text: str, max_characters: int = _MAX_TRACEBACK_CHARACTERS) -> str:
    """Remove the middle of `text` if it is longer than `max_characters`.

    >>> shorten("0123456789", 4)
    '01 [6 characters left out] 89'
    """
    half = max_characters // 2
    removed = len(text) - 2 * half
    return text if len(text) <= max_characters else f"{text[:half]} [{removed} characters left out] {text[-half:]}"


def is_closable(function: Any) -> bool:
    """Whether `function` is an object with a method `close` or `aclose`."""
    return callable(getattr(function, "aclose", None)) or callable(getattr(function, "close", None))


def close_reward(reward: LoadedReward, *, timeout: float) -> None:
    """Call `aclose` of the reward function in the event loop of its calls, or `close`. An exception is a warning."""
    close = getattr(reward.function, "aclose", None) or getattr(reward.function, "close", None)
    if not callable(close):
        return
    try:
        closed = close()
        if inspect.isawaitable(closed):
            closed = asyncio.run_coroutine_threadsafe(_await(reward.name, closed), _event_loop()).result(timeout)
    except Exception as error:  # noqa: BLE001 -- nothing depends on it anymore
        closed = failure_of_exception(reward.name, error)
    if isinstance(closed, Failure):
        _LOG.warning("the reward %s was not closed:\n%s", reward.name, closed.traceback)


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The one event loop of all async reward functions, in a thread of its own: the caller's may already run one."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="purerl rewards", daemon=True).start()
    return loop


async def _await_outcomes(reward: LoadedReward, awaitable: Any, call: Call, timeout: float) -> list[Outcome]:
    task = asyncio.ensure_future(_await(reward.name, awaitable))
    try:
        await asyncio.wait([task], timeout=timeout)
        if task.done():
            return _parse(reward, task.result(), call)
        stack = "".join(awaiting_stack(awaitable).format())
        text = shorten(f"{reward.name} did not finish within {timeout:g} seconds\n{stack}")
        return [Failure(reward.name, "timed out", text)] * call.count
    except asyncio.CancelledError:
        return [Failure(reward.name, "raised", f"{reward.name} cancelled all tasks of its event loop")] * call.count
    finally:
        task.cancel()


async def _await(name: str, awaitable: Any) -> Any:
    """The result of `awaitable`, or a failure. asyncio would end the event loop on KeyboardInterrupt and SystemExit."""
    try:
        return await awaitable
    except asyncio.CancelledError:
        return Failure(name, "raised", f"{name} cancelled itself")
    except BaseException as error:  # noqa: BLE001 -- every exception of a reward function is a failure of its row
        return _outcome_of_exception(name, error)


def awaiting_stack(awaitable: Any) -> traceback.StackSummary:
    """The stack of a coroutine that awaits another one, which awaits a third, and so on."""
    frames = []
    while (frame := getattr(awaitable, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        awaitable = awaitable.cr_await
    return traceback.StackSummary.extract(iter(frames))
