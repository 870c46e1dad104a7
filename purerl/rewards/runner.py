"""Scoring of completions: calls all reward functions, and combines their outcomes into one result per completion.

Rewards and gates that are models (`role`) are not called here: `purerl.rollouts.scoring.models` scores their
rows later. Here they only count where all rewards count: for the rows that have one, and for names.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from attrs import evolve

from purerl.rewards.adapters import NO_RUN, LoadedReward, RewardFunction, RewardInput, RunLength
from purerl.rewards.components import MAX_COMPONENTS, check_names, check_number
from purerl.rewards.conventions import OPENRLHF
from purerl.rewards.loading import as_reward, row_check
from purerl.rewards.outcomes import CallOutcomes, Failure, Outcome, call_reward, start_calls
from purerl.rewards.results import RewardResult, combine, component_names
from purerl.rewards.routing import COLUMN, applies, check_coverage, check_effect, routes_of
from purerl.rewards.settings import Gate, Reward, by_name, to_gates, to_rewards
from purerl.rewards.sources import (
    check_columns,
    check_images,
    check_running,
    columns_of,
    columns_of_kind,
    load,
    row_check_of_kind,
    source_of,
)
from purerl.rewards.worker import TIME_SLICE
from purerl.rewards.workers import WorkerPool

__all__ = ["RewardRunner", "RunHere"]

T = TypeVar("T")


class RunHere(Protocol):
    """Calls a function in the thread that drives the run, and returns what it returns.

    If the function raises a KeyboardInterrupt or SystemExit, a signal has interrupted it: the exception is raised in
    the thread that calls the function, and the coroutine that awaits the result is cancelled.
    """

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


async def _call_in_this_thread(function: Callable[[], T]) -> T:
    """Call `function` after everything else that is ready in the event loop."""
    await asyncio.sleep(0)
    return function()


class RewardRunner:
    """Scores completions with reward functions.

    Used as a context manager: the worker processes start on entry and stop on exit.

    rewards      the rewards that are added up. A string stands for a function, the Config of a kind for this kind
    gates        what must return at least 1, in the same forms
    needs_reward whether a completion to which no reward applies is a failure; otherwise something else rewards it
    functions    functions that run in this process, by the name of their reward. They cannot be terminated, so the
                 timeout applies only to async functions. All others are loaded and run in worker processes
    timeout      time limit of one call, in seconds
    num_workers  number of worker processes; None for the default of `WorkerPool`
    max_memory   memory limit of each worker process, in MiB; None for no limit

    `names` are those of all functions, without models. `reads_query` says whether a function reads `RewardInput.query`.
    `length` is that of the run; it may be set before the worker processes start.
    """

    def __init__(
        self,
        rewards: Iterable[str | Reward | Any],
        gates: Iterable[str | Gate | Any] = (),
        *,
        functions: Mapping[str, RewardFunction],
        timeout: float,
        num_workers: int | None,
        max_memory: int | None = None,
        needs_reward: bool = True,
    ):
        rewards, gates = to_rewards(rewards), to_gates(gates)
        every = by_name(rewards, gates)
        check_names(every)
        self._components: set[str] = set()
        self._logged: set[str] = set()
        self._rewards = {reward.full_name: reward for reward in rewards}
        self._gates = {gate.full_name: gate for gate in gates}
        self._every, self._needs_reward, self._timeout = every, needs_reward, timeout
        self._routes = {name: routes_of(reward) for name, reward in every.items()}
        self._has_routes = any(self._routes.values())
        self._local = [as_reward(name, functions[name], r.kwargs) for name, r in every.items() if name in functions]
        self._unscored = {name: {} for name, reward in every.items() if reward.role is not None}
        self.names = tuple(name for name in every if name not in self._unscored)
        remote = {name: every[name] for name in self.names if name not in functions}
        known = [*self._local, *(load(source_of(reward)) for reward in remote.values() if reward.config is None)]
        self._columns = {reward.name: columns_of(reward) for reward in known}
        self._configs = {name: reward.config for name, reward in remote.items() if reward.config is not None}
        self._columns |= {name: columns_of_kind(config) for name, config in self._configs.items()}
        checks = {reward.name: row_check(reward.function) for reward in known}
        checks |= {name: row_check_of_kind(config) for name, config in self._configs.items()}
        self._row_checks = {name: check for name, check in checks.items() if check is not None}
        for name, routes in self._routes.items():
            self._columns.setdefault(name, []).extend([(COLUMN,)] if routes else [])
        self.reads_query = any(reward.convention is OPENRLHF for reward in known)
        options = {"num_workers": num_workers, "timeout": timeout, "max_memory": max_memory}
        self._pool = WorkerPool([*map(source_of, remote.values())], **options) if remote else None
        self._run_here: RunHere = _call_in_this_thread
        self.length: RunLength = NO_RUN

    @property
    def components(self) -> Mapping[str, str]:
        """The component that is named after each reward, by its name, in their order; without gates."""
        own = component_names(tuple(self._every))
        return {name: name if name in self._unscored else own[name] for name in self._rewards}

    @property
    def routed(self) -> frozenset[str]:
        """The names of those that apply to some data sources only."""
        return frozenset(name for name, routes in self._routes.items() if routes)

    def check_sources(self, sources: Mapping[Any, int], path: str) -> None:
        """Raise ConfigError if no reward applies to a row of the file `path`.

        `sources` are the values of its column `data_source`, with their numbers of rows. A reward with weight 0 is only
        logged, unless all weights are 0.
        """
        names = [name for name, reward in self._rewards.items() if reward.weight] or [*self._rewards]
        if self._needs_reward and names:
            check_coverage([self._routes[name] for name in names], sources, path)

    def check_effect(self, sources: Collection[Any]) -> None:
        """Raise ConfigError if a name or pattern in a setting `data_source` is in none of `sources`, all data."""
        check_effect(self._every.values(), sources)

    @property
    def columns(self) -> frozenset[str]:
        """The columns that reward functions require, and the alternatives to them."""
        return frozenset(name for needed in self._columns.values() for names in needed for name in names)

    def check_columns(self, columns: Collection[str]) -> None:
        """Raise ConfigError if a reward function requires a column that is not in `columns`."""
        for name, needed in self._columns.items():
            check_columns(name, needed, columns)

    @property
    def checks_rows(self) -> bool:
        """Whether `find_problem` has anything to check."""
        return bool(self._row_checks)

    def find_problem(self, example: Mapping[str, Any]) -> tuple[str, str] | None:
        """The name of a reward that fails on the row `example` for every completion, and why; None if none does."""
        for name, check in self._row_checks.items():
            if applies(self._routes[name], example):
                try:
                    check(example)
                except (ValueError, KeyError, TypeError) as error:
                    return name, str(error.args[0] if error.args else error)
        return None

    def check_images(self) -> None:
        """Raise ConfigError if a kind of reward cannot score completions of prompts with images."""
        for name, config in self._configs.items():
            check_images(name, config)

    def check_running(self) -> None:
        """Raise ConfigError if a server that a kind of reward asks does not answer."""
        for name, config in self._configs.items():
            check_running(name, config)

    def start(self, run_here: RunHere | None = None) -> None:
        """Start the worker processes, unless they run already.

        `run_here` is how `score` calls functions of this process. They may need the main thread: some use signals, and
        they are seeded by global random generators. Without it they are called in the thread of the event loop.
        """
        self._run_here = run_here or self._run_here
        if self._pool is not None:
            self._pool.start(self.length)

    def close(self) -> None:
        """Stop the worker processes. What waits for results is cancelled."""
        self._run_here = _call_in_this_thread
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def score(self, inputs: Sequence[RewardInput]) -> list[RewardResult]:
        """Score `inputs`. Returns one result per input, in their order, as soon as they are known.

        Any number of calls may wait at the same time, in any event loop; workers serve them in their order. A function
        that takes several completions at once gets all of `inputs`. If it runs in a worker, it may also get those of
        other calls that were made in the same turn of the event loop. A call that is cancelled drops its inputs, except
        for those that are being scored.

        Raises: RewardError if the worker processes cannot run, or if there are too many different components.
        """
        applicable = self._applicable(inputs)
        remote = self._submit(applicable)
        if self._pool is not None:
            asyncio.get_running_loop().call_soon(self._pool.wake)  # after all calls in this turn
        try:
            local = {reward.name: await self._score_here(reward, applicable[reward.name]) for reward in self._local}
            return self._results(inputs, local | await asyncio.wrap_future(remote))
        finally:
            remote.cancel()

    def run(self, inputs: Sequence[RewardInput]) -> list[RewardResult]:
        """Score `inputs` and wait for the results, like `score`, for callers that are not coroutines.

        Functions of this process are called in this thread. It may already run an event loop, as in a notebook.

        Raises: RewardError if the worker processes cannot run, or if there are too many different components.
        """
        applicable, options = self._applicable(inputs), {"timeout": self._timeout, "length": self.length}
        remote = self._submit(applicable)
        if self._pool is not None:
            self._pool.wake()
        try:
            local = {each.name: call_reward(each, applicable[each.name], **options) for each in self._local}
            return self._results(inputs, local | remote.result())
        finally:
            remote.cancel()

    def _applicable(self, inputs: Sequence[RewardInput]) -> dict[str, Sequence[RewardInput]]:
        """The inputs that each function applies to, by its name."""
        return {
            name: [item for item in inputs if applies(self._routes[name], item.example)]
            if self._routes[name]
            else inputs
            for name in self.names
        }

    def _submit(self, inputs: Mapping[str, Sequence[RewardInput]]) -> Future[dict[str, list[Outcome]]]:
        if self._pool is not None:
            return self._pool.submit(inputs)
        nothing: Future[dict[str, list[Outcome]]] = Future()
        nothing.set_result({})
        return nothing

    async def _score_here(self, reward: LoadedReward, inputs: Sequence[RewardInput]) -> list[Outcome]:
        """Call `reward` in this process, in several time slices. Awaitables do not block the thread."""
        calls: list[CallOutcomes] = []
        size = reward.convention.max_inputs
        try:
            while len(calls) * size < len(inputs):
                rest = inputs[len(calls) * size :]
                calls += await self._run_here(partial(_call_in_time_slice, reward, rest, self._timeout, self.length))
            waiting = [call if isinstance(call, list) else await asyncio.wrap_future(call) for call in calls]
            return [outcome for outcomes in waiting for outcome in outcomes]
        finally:
            for call in calls:
                if isinstance(call, Future):
                    call.cancel()

    def _results(self, inputs: Sequence[RewardInput], outcomes: Mapping[str, Sequence[Outcome]]) -> list[RewardResult]:
        remaining = {name: iter(outcomes.get(name, ())) for name in self.names}
        results = [self._result(item, remaining) for item in inputs]
        self._components.update(name for result in results for name in result.components)
        check_number(self._components)
        return [self._with_limited_log(result) if result.metrics or result.columns else result for result in results]

    def _with_limited_log(self, result: RewardResult) -> RewardResult:
        """`result` with what was logged under the first `MAX_COMPONENTS` names only: each is a metric or a column."""
        for name in (*result.metrics, *result.columns):
            if len(self._logged) < MAX_COMPONENTS:
                self._logged.add(name)
        metrics = {name: value for name, value in result.metrics.items() if name in self._logged}
        columns = {name: text for name, text in result.columns.items() if name in self._logged}
        return evolve(result, metrics=metrics, columns=columns)

    def _result(self, item: RewardInput, outcomes: Mapping[str, Iterator[Outcome]]) -> RewardResult:
        """The result of `item`, whose outcomes are the next ones of the functions that apply to it."""
        if not self._has_routes:
            found = {name: next(each) for name, each in outcomes.items()}
            return combine(found | self._unscored, self._rewards, self._gates)
        applicable = {name: applies(routes, item.example) for name, routes in self._routes.items()}
        found = {name: next(outcomes[name]) if applicable[name] else {} for name in self.names}
        result = combine(found | self._unscored, self._rewards, self._gates)
        if not self._needs_reward or not self._rewards or any(applicable[name] for name in self._rewards):
            return result
        message = f"none is for the data_source {item.example.get(COLUMN)!r}\n"
        return RewardResult(failure=Failure("rewards", "do not apply", message), totals=result.totals)


def _call_in_time_slice(
    reward: LoadedReward, inputs: Sequence[RewardInput], timeout: float, length: RunLength
) -> list[CallOutcomes]:
    return start_calls(reward, inputs, timeout=timeout, length=length, stop_at=time.monotonic() + TIME_SLICE)
