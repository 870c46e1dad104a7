"""Inputs that wait to be scored by worker processes, and those that are being scored.

A *job* is one request for the outcomes of some inputs. It consists of *parts*, which can be scored independently: for
each function, one input; or several inputs, if the function takes several at once. A *task* is what a worker gets:
parts of one function, of one or more jobs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import count

from attrs import define, field

from purerl.rewards.adapters import RewardInput
from purerl.rewards.components import added
from purerl.rewards.outcomes import Outcome, has_failed, totals_of, with_totals

__all__ = ["Job", "Part", "Queue", "Task"]

_FIRST_TASK_SIZE, _MAX_TASK_SIZE = 16, 256

Outcomes = dict[str, list[Outcome]]


@define(eq=False)
class Job:
    """Inputs of each function whose outcomes somebody waits for: a list per function, in the order of its inputs.

    `when_finished` is called with the job when all parts have outcomes.
    """

    number: int
    inputs: Mapping[str, Sequence[RewardInput]]
    when_finished: Callable[[Job], None]
    future: Future[Outcomes] = field(factory=Future)
    parts: list[Part] = field(factory=list)
    _num_finished: int = 0

    def add(self, function: str, size: int) -> list[Part]:
        """Parts of at most `size` inputs for `function`."""
        inputs = self.inputs.get(function, ())
        parts = [Part(self, function, inputs[start : start + size]) for start in range(0, len(inputs), size)]
        self.parts += parts
        return parts

    def finish_part(self) -> None:
        self._num_finished += 1
        if self._num_finished == len(self.parts):
            self.when_finished(self)

    def deliver(self) -> None:
        """Set the result of the future, unless nobody waits for it anymore."""
        outcomes: Outcomes = {}
        for part in self.parts:
            outcomes.setdefault(part.function, []).extend(part.outcomes or ())
        if self._is_awaited():
            self.future.set_result(outcomes)
        self.parts = []

    def fail(self, error: BaseException) -> None:
        """Raise `error` where the outcomes are awaited."""
        if self._is_awaited():
            self.future.set_exception(error)

    def _is_awaited(self) -> bool:
        return not self.future.done() and self.future.set_running_or_notify_cancel()


@define(eq=False)
class Part:
    """Inputs of a job that one call can score.

    idle_deaths  number of workers that got the part and ended before they made a call
    is_alone     no other part may be on the same worker, because one of several parts has ended a worker
    totals       what a call has measured that failed with other parts
    """

    job: Job
    function: str
    inputs: Sequence[RewardInput]
    outcomes: Sequence[Outcome] | None = None
    idle_deaths: int = 0
    is_alone: bool = False
    totals: Mapping[str, float] = field(factory=dict)

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        """Set the outcomes. A part may be scored twice; then the first outcomes count."""
        if self.outcomes is None:
            if self.totals:
                outcomes = [with_totals(outcomes[0], self.totals), *outcomes[1:]]
            self.outcomes = outcomes
            self.job.finish_part()


@define(eq=False)
class Task:
    """Parts that a worker scores with one function.

    is_one_call   whether they are the inputs of a single call, instead of one call for each part
    deadline      when the worker must have sent the next report, in ``time.monotonic()``
    overdue       when the parts that are not in the current call are given to other workers
    """

    number: int
    function: str
    parts: Sequence[Part]
    is_one_call: bool
    deadline: float = math.inf
    overdue: float = math.inf
    _starts: dict[int, Part] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        start = 0
        for part in self.parts:
            self._starts[start] = part
            start += len(part.inputs)

    @property
    def inputs(self) -> list[RewardInput]:
        return [item for part in self.parts for item in part.inputs]

    @property
    def remaining(self) -> list[Part]:
        """Parts without outcomes."""
        return [part for part in self.parts if part.outcomes is None]

    @property
    def num_inputs(self) -> int:
        """The number of inputs that the worker has got."""
        return sum(len(part.inputs) for part in self._starts.values())

    def has_parts(self, indices: Collection[int]) -> bool:
        """Whether inputs have these `indices`, and those of each part are all there."""
        wanted = {
            start + k for start, part in self._starts.items() if start in indices for k in range(len(part.inputs))
        }
        return wanted == {*indices}

    def parts_of_call(self, index: int) -> list[Part]:
        """The parts that are scored by the call whose first input has this index; none, if there is no such call."""
        if index < 0 or not self.is_one_call:
            return [self._starts[index]] if index in self._starts else []
        return [*self.parts]

    def split(self, called: int) -> list[Part]:
        """Keep the parts of the first `called` inputs, and return the others."""
        first = {part for start, part in self._starts.items() if start < called}
        rest = [part for part in self.parts if part not in first]
        self.parts = [part for part in self.parts if part in first]
        return rest

    def finish(self, outcomes: Mapping[int, Outcome]) -> list[Part]:
        """Set the outcomes of inputs, by their index. Returns parts that have to be scored again, each alone.

        If a call with parts of several jobs fails, one of the jobs may be the reason. What it has measured counts.
        """
        is_joint = self.is_one_call and len(self.parts) > 1
        if is_joint and outcomes and all(has_failed(outcome) for outcome in outcomes.values()):
            self.parts[0].totals = added(self.parts[0].totals, *map(totals_of, outcomes.values()))
            return [*self.parts]
        for start in outcomes:
            part = self._starts.get(start)
            if part is not None:
                part.finish([outcomes[start + k] for k in range(len(part.inputs))])
        return []


class Queue:
    """Parts that wait for a worker, in the order of their jobs.

    jobs  the jobs whose outcomes somebody waits for, by number. Parts of other jobs are dropped
    """

    def __init__(self, jobs: Mapping[int, Job]):
        self._jobs = jobs
        self._max_inputs: Mapping[str, int] = {}
        self._waiting: dict[str, list[tuple[int, int, Part]]] = {}
        self._sizes: dict[str, int] = {}
        self._counter = count()

    @property
    def is_open(self) -> bool:
        """Whether jobs can be added."""
        return bool(self._max_inputs)

    def open(self, max_inputs: Mapping[str, int]) -> None:
        """Take jobs from now on: for the functions with these names, and maximum numbers of inputs of one call."""
        self._max_inputs = max_inputs
        self._waiting = {name: [] for name in max_inputs}
        self._sizes = dict.fromkeys(max_inputs, _FIRST_TASK_SIZE)

    def add(self, parts: Iterable[Part]) -> None:
        for part in parts:
            heapq.heappush(self._waiting[part.function], (part.job.number, next(self._counter), part))

    def add_job(self, job: Job) -> None:
        for name, size in self._max_inputs.items():
            self.add(job.add(name, size))
        if not job.parts:
            job.when_finished(job)

    def adapt_size(self, function: str, *, called: int, given: int) -> None:
        """Make the tasks of a function smaller if one did not fit into a time slice, and larger if it did."""
        size = self._sizes[function]
        self._sizes[function] = max(called, 1) if called < given else max(size, min(2 * given, _MAX_TASK_SIZE))

    def head(self) -> Part | None:
        """The part that is next; None if nothing waits."""
        heads = [self._waiting[name][0] for name in self._waiting if self._prune(name)]
        return min(heads, key=lambda entry: entry[0])[2] if heads else None

    def share(self, function: str, num_workers: int) -> int:
        """The number of inputs of a task, so that all workers get a share of what waits now."""
        waiting = self._waiting[function]
        if self._max_inputs[function] == 1:
            return min(math.ceil(len(waiting) / num_workers), self._sizes[function])
        return math.ceil(sum(len(part.inputs) for _, _, part in waiting) / num_workers)

    def take(self, function: str, size: int) -> tuple[list[Part], bool]:
        """Parts of `function` with at most `size` inputs, but at least one part; and whether they are one call."""
        waiting, taken, number = self._waiting[function], [], 0
        max_inputs = self._max_inputs[function]
        while self._prune(function):
            part = waiting[0][2]
            number += len(part.inputs)
            if taken and (number > (size if max_inputs == 1 else min(size, max_inputs)) or part.is_alone):
                break
            taken.append(heapq.heappop(waiting)[2])
            if part.is_alone:
                break
        return taken, max_inputs > 1

    def _prune(self, function: str) -> bool:
        """Remove parts at the head that nobody wants. Returns whether any part is left."""
        waiting = self._waiting[function]
        while waiting and (waiting[0][0] not in self._jobs or waiting[0][2].outcomes is not None):
            heapq.heappop(waiting)
        return bool(waiting)
