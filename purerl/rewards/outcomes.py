"""What comes of calling a reward function: components, nothing, or a failure that says why; never an exception."""

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

__all__ = ["OWN", "Failure", "Kind", "Outcome", "call_reward", "short_name", "shorten"]

OWN = tuple(f"purerl/rewards/{name}.py" for name in ("adapters", "outcomes", "workers"))
"""Files whose frames nobody wants to see: they only call the functions that failed."""
_LONGEST = 4000

Kind = Literal["raised", "no reward", "timed out", "died"]


@frozen
class Failure:
    """Why a reward function has nothing to say about a completion: which function, what happened, and where."""

    function: str
    kind: Kind
    traceback: str


Outcome = Mapping[str, float] | None | Failure


def call_reward(
    scorer: LoadedReward,
    cases: Sequence[RewardInput],
    *,
    deadline: float,
    before: Callable[[int], None] = lambda first: None,
    until: float = math.inf,
) -> list[Outcome]:
    """What `scorer` says of `cases`, in their order; of fewer, but one call's at least, once the clock is at `until`.

    Awaitables are awaited together, each at most `deadline` seconds. `before` is told the place in `cases` of each
    call, and -1 before awaiting.
    """
    returned: list[tuple[int, Any]] = []
    for first in range(0, len(cases), scorer.convention.most):
        if returned and time.monotonic() > until:
            break
        before(first)
        group = cases[first : first + scorer.convention.most]
        returned.append((len(group), _called(scorer, group)))
    before(-1)
    values = _awaited(scorer.name, [value for _, value in returned], deadline)
    return [one for (count, _), value in zip(returned, values, strict=True) for one in _read(scorer, value, count)]


def _called(scorer: LoadedReward, group: Sequence[RewardInput]) -> Any:
    try:
        returned = scorer.convention.call(scorer.function, group)
        return list(returned) if isinstance(returned, Iterator) else returned
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 -- whatever it raises is what we are here to tell
        return _raised(scorer.name, error)


def _read(scorer: LoadedReward, returned: Any, count: int) -> list[Outcome]:
    if isinstance(returned, Failure):
        return [returned] * count
    try:
        return [_outcome(scorer.name, value) for value in scorer.convention.read(returned, count)]
    except Exception as error:  # noqa: BLE001 -- what it returned may be anything, and raise when it is looked at
        return [Failure(scorer.name, "no reward", str(error))] * count


def _outcome(name: str, value: Any) -> Outcome:
    """A number is a component that is named after its function; a function may name several by a mapping.

    >>> _outcome("module:Class.length", 3)
    {'length': 3.0}
    """
    if value is None:
        return None
    named = value if isinstance(value, Mapping) else {short_name(name): value}
    # Numbers of numpy and torch have no axes and an item().
    parts = {str(key): part.item() if getattr(part, "shape", None) == () else part for key, part in named.items()}
    if not all(isinstance(part, Real) and math.isfinite(part) for part in parts.values()):
        need = "a number, a mapping of names to numbers, or None"
        return Failure(name, "no reward", f"returned {value!r:.200}; needed is {need}")
    return {key: float(part) for key, part in parts.items()}


def short_name(name: str) -> str:
    """What a reward function is called where it stands: ``module:Class.length`` is ``length``."""
    return re.split("[:.]", name)[-1]


def _raised(name: str, error: BaseException) -> Failure:
    told = traceback.TracebackException.from_exception(error)
    told.stack = traceback.StackSummary.from_list([one for one in told.stack if not one.filename.endswith(OWN)])
    return Failure(name, "raised", shorten("".join(told.format())))


def shorten(text: str, longest: int = _LONGEST) -> str:
    """The beginning and the end of `text`, where it is longer.

    >>> shorten("0123456789", 4)
    '01 [6 characters left out] 89'
    """
    half, left = longest // 2, len(text) - 2 * (longest // 2)
    return text if len(text) <= longest else f"{text[:half]} [{left} characters left out] {text[-half:]}"


# --- awaiting ----------------------------------------------------------------------------------------------------


def _awaited(name: str, values: Sequence[Any], deadline: float) -> list[Any]:
    """`values` with results, or failures, in the place of awaitables."""
    waiting = {k: value for k, value in enumerate(values) if inspect.isawaitable(value)}
    if not waiting:
        return list(values)
    done = asyncio.run_coroutine_threadsafe(_together(name, list(waiting.values()), deadline), _loop()).result()
    results = dict(zip(waiting, done, strict=True))
    return [results.get(k, value) for k, value in enumerate(values)]


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One event loop for the life of the process, so that clients that a module keeps stay usable from call to call.

    It runs in a thread of its own: the caller's may have a loop that runs, as notebooks do.
    """
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="purerl rewards", daemon=True).start()
    return loop


async def _together(name: str, waiting: Sequence[Any], deadline: float) -> list[Any]:
    tasks = [asyncio.ensure_future(one) for one in waiting]
    await asyncio.wait(tasks, timeout=deadline)
    return [_result(name, task, deadline) for task in tasks]


def _result(name: str, task: asyncio.Future[Any], deadline: float) -> Any:
    if not task.done():
        where = io.StringIO()
        if isinstance(task, asyncio.Task):
            task.print_stack(file=where)
        task.cancel()
        return Failure(name, "timed out", shorten(f"{name} was awaited for {deadline:g} seconds\n{where.getvalue()}"))
    if task.cancelled():
        return Failure(name, "raised", f"{name} cancelled itself")
    error = task.exception()
    return task.result() if error is None else _raised(name, error)
