"""Scoring of completions: calls all reward functions and combines their outcomes into one reward per completion."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache, partial
from typing import Any, Protocol, Self, TypeVar

from attrs import evolve, field, frozen

from purerl.rewards.adapters import LoadedReward, RewardFunction, RewardInput, as_reward
from purerl.rewards.components import check_names, check_number, is_valid_number, short_name
from purerl.rewards.outcomes import CallOutcomes, Failure, Outcome, call_reward, start_calls, without_totals
from purerl.rewards.settings import Gate, Reward, by_name, to_gates, to_rewards
from purerl.rewards.sources import check_columns, check_images, columns_of, columns_of_kind, load, source_of
from purerl.rewards.worker import TIME_SLICE
from purerl.rewards.workers import WorkerPool

__all__ = [
    "RewardResult",
    "RewardRunner",
    "RunHere",
    "combine",
    "component_columns",
    "fractions",
    "reward_values",
]

T = TypeVar("T")


class RunHere(Protocol):
    """Calls a function in the thread that drives the run, and returns what it returns.

    If the function raises a KeyboardInterrupt or SystemExit, a signal has interrupted it: the exception is raised in
    the thread that calls the function, and the coroutine that awaits the result is cancelled.
    """

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


@frozen
class RewardResult:
    """The combined result of all reward functions for one completion.

    components           the value of each component, by name, without weights
    weighted_components  the contribution of each component to the reward; empty if there is no reward
    failure              the failure of the first reward function that failed, or None
    by_function          the components that each function returned, by its name; empty if there is no reward
    totals               what functions have measured, as ``<short name>/<name>``; also of those that failed
    """

    components: Mapping[str, float] = field(factory=dict)
    weighted_components: Mapping[str, float] = field(factory=dict)
    failure: Failure | None = None
    by_function: Mapping[str, Mapping[str, float]] = field(factory=dict, eq=False)
    totals: Mapping[str, float] = field(factory=dict, eq=False)

    @property
    def reward(self) -> float | None:
        """The sum of `weighted_components`, or None if there is no reward."""
        return sum(self.weighted_components.values()) if self.weighted_components else None


def combine(outcomes: Mapping[str, Outcome], weights: Mapping[str, float], gates: Collection[str]) -> RewardResult:
    """Combine the outcomes of all reward functions for one completion.

        reward = sum over functions f and their components c of weights[f] * c    if no component of a gate is below 1
                 0                                                                otherwise

    A gate is a reward function that must return at least 1; otherwise the reward is 0. Functions that are not in
    `weights` contribute nothing to the sum. If a function failed or returned None, there is no reward. A sum that
    float32 cannot hold is a failure.

    The values of components with equal names are added up. There is one exception: if several functions have the same
    short name, the component named after each of them gets the full name of its function.

    >>> outcomes = {"m:correct": {"correct": 1.0}, "m:short": {"short": 0.5}, "m:tagged": {"tagged": 1.0}}
    >>> combine(outcomes, {"m:correct": 1.0, "m:short": 0.2}, ["m:tagged"]).reward
    1.1
    >>> combine(outcomes | {"m:tagged": {"tagged": 0.0}}, {"m:correct": 1.0, "m:short": 0.2}, ["m:tagged"]).reward
    0.0
    """
    values = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Mapping)}
    if len(values) < len(outcomes):
        failures = (outcome for outcome in outcomes.values() if isinstance(outcome, Failure))
        return RewardResult(failure=next(failures, None))
    components: dict[str, float] = {}
    weighted_components: dict[str, float] = {}
    ambiguous = _ambiguous_names(tuple(outcomes))
    for name, outcome in values.items():
        for component, value in outcome.items():
            component = name if name in ambiguous and component == short_name(name) else component
            components[component] = components.get(component, 0.0) + value
            if name in weights:
                weighted_components[component] = weighted_components.get(component, 0.0) + weights[name] * value
    if any(value < 1 for name in gates for value in values[name].values()):
        weighted_components = dict.fromkeys(weighted_components, 0.0)
    result = RewardResult(components, weighted_components, by_function=values)
    if is_valid_number(sum(map(abs, (*components.values(), *weighted_components.values())))):
        return result
    sums = {**components, **weighted_components, "the weighted sum": result.reward or 0.0}
    too_large = [f"{name} is {value:g}" for name, value in sums.items() if not is_valid_number(value)]
    if not too_large:
        return result
    message = f"float32 cannot hold the sum: {', '.join(too_large)}\n"
    return RewardResult(failure=Failure(", ".join(outcomes), "returned an invalid value", message))


@cache
def _ambiguous_names(names: tuple[str, ...]) -> frozenset[str]:
    """The names that have the same short name as another one."""
    count = Counter(map(short_name, names))
    return frozenset(name for name in names if count[short_name(name)] > 1)


def component_columns(results: Sequence[RewardResult]) -> list[dict[str, float | None]]:
    """The value of every component of `results` in each of them, as ``reward/<component>``; None if it has none."""
    names = dict.fromkeys(name for result in results for name in result.components)
    return [{f"reward/{name}": result.components.get(name) for name in names} for result in results]


def reward_values(result: RewardResult) -> dict[str, float]:
    """The reward, and the value of each component as ``reward/<component>``; empty if there is no reward.

    >>> reward_values(RewardResult({"exact": 1.0, "short": 0.5}, {"exact": 1.0, "short": 0.25}))
    {'reward': 1.25, 'reward/exact': 1.0, 'reward/short': 0.5}
    """
    if result.reward is None:
        return {}
    return {"reward": result.reward} | {f"reward/{name}": value for name, value in result.components.items()}


def fractions(results: Sequence[RewardResult]) -> dict[str, float]:
    """Metrics of `results`, as fractions of all completions.

    valid_fraction  completions that have a reward
    failed          completions for which a reward function failed
    timed_out       completions for which it failed because of the timeout
    """
    kinds = [result.failure.kind for result in results if result.failure]
    counts = {
        "valid_fraction": sum(result.reward is not None for result in results),
        "failed": len(kinds),
        "timed_out": kinds.count("timed out"),
    }
    return {name: count / len(results) for name, count in counts.items()}


async def _call_in_this_thread(function: Callable[[], T]) -> T:
    """Call `function` after everything else that is ready in the event loop."""
    await asyncio.sleep(0)
    return function()


class RewardRunner:
    """Scores completions with reward functions.

    Used as a context manager: the worker processes start on entry and stop on exit.

    rewards      the rewards that are added up. A string stands for a function, the Config of a kind for this kind
    gates        what must return at least 1, in the same forms
    functions    functions that run in this process, by the name of their reward. They cannot be terminated, so the
                 timeout applies only to async functions. All others are loaded and run in worker processes
    timeout      time limit of one call, in seconds
    num_workers  number of worker processes; None for the default of `WorkerPool`
    max_memory   memory limit of each worker process, in MiB; None for no limit
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
    ):
        rewards, gates = to_rewards(rewards), to_gates(gates)
        every = by_name(rewards, gates)
        check_names(every)
        self._names = tuple(every)
        self._components: set[str] = set()
        self._weights = {reward.full_name: reward.weight for reward in rewards}
        self._gates, self._timeout = [gate.full_name for gate in gates], timeout
        self._local = [as_reward(name, functions[name]) for name in every if name in functions]
        remote = {name: reward for name, reward in every.items() if name not in functions}
        self._columns = {reward.name: columns_of(reward) for reward in self._local}
        self._columns |= {name: _columns_of(reward) for name, reward in remote.items()}
        self._configs = {name: reward.config for name, reward in remote.items() if reward.config is not None}
        options = {"num_workers": num_workers, "timeout": timeout, "max_memory": max_memory}
        self._pool = WorkerPool([*map(source_of, remote.values())], **options) if remote else None
        self._run_here: RunHere = _call_in_this_thread

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all functions."""
        return self._names

    def check_columns(self, columns: Collection[str]) -> None:
        """Raise ConfigError if a reward function requires a column that is not in `columns`."""
        for name, needed in self._columns.items():
            check_columns(name, needed, columns)

    def check_images(self) -> None:
        """Raise ConfigError if a kind of reward cannot score completions of prompts with images."""
        for name, config in self._configs.items():
            check_images(name, config)

    def start(self, run_here: RunHere | None = None) -> None:
        """Start the worker processes, unless they run already.

        `run_here` is how `score` calls functions of this process. They may need the main thread: some use signals, and
        they are seeded by global random generators. Without it they are called in the thread of the event loop.
        """
        self._run_here = run_here or self._run_here
        if self._pool is not None:
            self._pool.start()

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
        remote = self._submit(inputs)
        if self._pool is not None:
            asyncio.get_running_loop().call_soon(self._pool.wake)  # after all calls in this turn
        try:
            local = {reward.name: await self._score_here(reward, inputs) for reward in self._local}
            return self._results(inputs, local | await asyncio.wrap_future(remote))
        finally:
            remote.cancel()

    def run(self, inputs: Sequence[RewardInput]) -> list[RewardResult]:
        """Score `inputs` and wait for the results, like `score`, for callers that are not coroutines.

        Functions of this process are called in this thread. It may already run an event loop, as in a notebook.

        Raises: RewardError if the worker processes cannot run, or if there are too many different components.
        """
        remote = self._submit(inputs)
        if self._pool is not None:
            self._pool.wake()
        try:
            local = {reward.name: call_reward(reward, inputs, timeout=self._timeout) for reward in self._local}
            return self._results(inputs, local | remote.result())
        finally:
            remote.cancel()

    def _submit(self, inputs: Sequence[RewardInput]) -> Future[dict[str, list[Outcome]]]:
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
                calls += await self._run_here(partial(_call_in_time_slice, reward, rest, self._timeout))
            waiting = [call if isinstance(call, list) else await asyncio.wrap_future(call) for call in calls]
            return [outcome for outcomes in waiting for outcome in outcomes]
        finally:
            for call in calls:
                if isinstance(call, Future):
                    call.cancel()

    def _results(self, inputs: Sequence[RewardInput], outcomes: Mapping[str, Sequence[Outcome]]) -> list[RewardResult]:
        results = [self._result({name: outcomes[name][k] for name in self._names}) for k in range(len(inputs))]
        self._components.update(name for result in results for name in result.components)
        check_number(self._components)
        return results

    def _result(self, outcomes: Mapping[str, Outcome]) -> RewardResult:
        plain, totals = without_totals(outcomes)
        return evolve(combine(plain, self._weights, self._gates), totals=totals)


def _columns_of(reward: Reward | Gate) -> list[tuple[str, ...]]:
    return columns_of(load(source_of(reward))) if reward.config is None else columns_of_kind(reward.config)


def _call_in_time_slice(reward: LoadedReward, inputs: Sequence[RewardInput], timeout: float) -> list[CallOutcomes]:
    return start_calls(reward, inputs, timeout=timeout, stop_at=time.monotonic() + TIME_SLICE)
