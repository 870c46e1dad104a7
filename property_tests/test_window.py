"""The supplier of groups: each draw is trained once, none is lost, and none is too old, whatever happens.

A generator finishes requests in any order and after any delay, and fails on some. Workflows need several turns, or
fail. Groups are dropped, and the run is killed between two steps and continues from what a checkpoint has.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import pytest
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from purerl.backends.requests import PendingRequest
from purerl.data.chat import Prompt
from purerl.loop.window import Window, num_due
from purerl.protocols import Capabilities, Completion, Request, Sampling, Weights
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.types import Draw, Generate, Group, Trajectory
from purerl.seeds import derive_seed

EXAMPLES = 25  # a run takes some milliseconds


class Scripted:
    """A generator that gives each request a token per step, and finishes it after as many steps as `delay` says.

    The tokens depend on the seed of the request, and their versions are those of the weights. It fails on every request
    with a seed that `error_rate` selects.
    """

    def __init__(self, delay: Callable[[str], int], error_rate: float) -> None:
        self.capabilities = Capabilities(seeded=True, batch_invariant=True, in_process=True)
        self._delay, self._error_rate, self._version = delay, error_rate, 0
        self.pending: dict[str, PendingRequest] = {}
        self._finished: list[Completion] = []

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            assert request.key not in self.pending
            self.pending[request.key] = PendingRequest(request)

    def collect(self, timeout: float | None = None) -> list[Completion]:
        while self.pending and not self._finished:
            for key, pending in [*self.pending.items()]:
                pending.add([derive_seed(pending.request.seed, len(pending.tokens)) % 9], [-1.0], self._version)
                if len(pending.tokens) > self._delay(key):
                    has_failed = random.Random(f"error {pending.request.seed}").random() < self._error_rate
                    finish = "error" if has_failed else "stop"
                    self._finished.append(evolve(self.pending.pop(key).completion(finish), error="a failure"))
        finished, self._finished = self._finished, []
        return finished

    def cancel(self, keys: Sequence[str]) -> None:
        cancelled = [key for key in keys if key in self.pending]
        self._finished += [self.pending.pop(key).completion("cancelled") for key in cancelled]

    def load_weights(self, weights: Weights, *, version: int) -> None:
        self._version = version

    def close(self) -> None: ...


class NoWeights:
    adapter, metadata = None, {}

    def __iter__(self) -> Any:
        return iter(())


@define
class Workflow:
    """One or two turns, of two samples; it may fail, and other coroutines may run between its turns."""

    seed: int
    failure_rate: float

    async def __call__(self, draw: Draw, generate: Generate) -> list[Trajectory]:
        rng = random.Random(f"workflow {self.seed} {draw.number}")
        if rng.random() < self.failure_rate:
            raise ValueError("a failure")
        turns = rng.randint(1, 2)
        rows = await asyncio.gather(*(self.sample(draw, k, turns, rng.randint(0, 3), generate) for k in range(2)))
        return [*rows]

    async def sample(self, draw: Draw, k: int, turns: int, delay: int, generate: Generate) -> Trajectory:
        tokens, action, version = [0], [False], [0]
        for turn in range(turns):
            seed = derive_seed(*draw.seeds, k, turn)
            sampling = Sampling(temperature=1.0, max_tokens=99)
            [completion] = await generate([Request(f"{draw.key}/{k}.{turn}", [*tokens], sampling, seed)])
            tokens += completion.tokens
            action += [True] * len(completion.tokens)
            version += completion.version
            for _ in range(delay):
                await asyncio.sleep(0)
        return Trajectory({"tokens": tokens, "action": action, "version": version, "group": draw.number})


@define
class Run:
    """A run of a window: what was trained, dropped, cancelled and failed; and the rules that it must keep."""

    batch_size: int
    max_staleness: int
    order: Any
    num_extra: int
    seed: int
    drop_rate: float = 0.0
    failure_rate: float = 0.0
    error_rate: float = 0.0
    max_rounds: int = 3
    max_delay: int = 6
    trained: list[list[int]] = field(factory=list)
    tokens: list[list[list[int]]] = field(factory=list)
    taken: list[int] = field(factory=list)
    cancelled: set[int] = field(factory=set)
    step: int = 0

    def open(self) -> tuple[Scripted, Runtime, Window]:
        def delay(key: str) -> int:
            return random.Random(f"delay {self.seed} {key}").randint(0, self.max_delay)

        generator = Scripted(delay, self.error_rate)
        runtime = Runtime(generator, stall_timeout=10.0)
        window = Window(
            Rollouts(runtime, Workflow(self.seed, self.failure_rate)),
            _draws,
            batch_size=self.batch_size,
            max_staleness=self.max_staleness,
            order=self.order,
            num_extra=self.num_extra,
        )
        return generator, runtime, window

    def play(self, steps: int, kills: Sequence[int] = (), *, drains: bool = False) -> Run:
        """`steps` steps; after those in `kills` the run is killed, and continues from its checkpoint."""
        generator, runtime, window = self.open()
        for step in range(steps):
            self.advance(runtime, window)
            if step in kills:
                if drains:
                    window.drain()
                state = window.num_draws, [*window.in_flight], [*window.waiting]
                runtime.close()
                assert not generator.pending
                generator, runtime, window = self.open()
                runtime.load_weights(NoWeights(), self.step)  # pyright: ignore[reportArgumentType]
                window.restore(*state, step=self.step)
            self.check(window)
        runtime.close()
        return self

    def advance(self, runtime: Runtime, window: Window) -> None:
        """One step, as `RolloutSource` does it."""
        kept: list[Group] = []
        before = {*window.in_flight, *(group.draw for group in window.waiting)}, window.num_draws
        for _ in range(self.max_rounds):
            count = self.batch_size - len(kept)
            groups = window.take_groups(count, self.step, num_kept=len(kept))
            assert len(groups) == count, "take never returns too few"
            self.check_groups(groups)
            kept += [group for group in groups if not self.is_dropped(group.draw)]
            assert len(self.outstanding(window)) + len(kept) <= self.limit
            if len(kept) == self.batch_size:
                break
        left = self.outstanding(window)
        num_cancelled = window.cancel_surplus(self.step)
        gone = left - self.outstanding(window)
        assert len(gone) == num_cancelled
        assert not gone or self.num_extra, "without extra groups nothing is cancelled"
        assert before[0] | {*range(before[1], window.num_draws)} >= gone
        self.cancelled |= gone
        self.trained.append([group.draw for group in kept])
        self.tokens.append([[*row.fields["tokens"]] for group in kept for row in group.trajectories])
        self.step += 1
        runtime.load_weights(NoWeights(), self.step)  # pyright: ignore[reportArgumentType]

    def is_dropped(self, number: int) -> bool:
        return random.Random(f"drop {self.seed} {number}").random() < self.drop_rate

    def check_groups(self, groups: Sequence[Group]) -> None:
        numbers = [group.draw for group in groups]
        assert numbers == sorted(numbers)
        self.taken += numbers
        for group in groups:
            age = self.step - group.oldest_version(self.step)
            assert 0 <= age <= self.max_staleness, f"draw {group.draw} has tokens that are {age} steps old"

    @property
    def limit(self) -> int:
        return (1 + self.max_staleness) * self.batch_size + self.num_extra

    def outstanding(self, window: Window) -> set[int]:
        waiting = [group.draw for group in window.waiting]
        assert len({*waiting}) == len(waiting)
        assert not {*waiting} & {*window.in_flight}
        return {*waiting, *window.in_flight}

    def check(self, window: Window) -> None:
        """Each draw is exactly one of: taken, cancelled, waiting, in flight."""
        places = [self.taken, [*self.cancelled], [*self.outstanding(window)]]
        numbers = [number for place in places for number in place]
        assert sorted(numbers) == [*range(window.num_draws)]
        if self.order == "drawn":
            assert self.taken == [*range(len(self.taken))], "groups come in the order of their draws"


def _draws(first: int, count: int) -> list[Draw]:
    return [Draw(n, n, {}, Prompt("", [0]), str(n), (0, n)) for n in range(first, first + count)]


RATES = st.sampled_from([0.0, 0.1, 0.5])
RUNS = st.builds(
    Run,
    batch_size=st.integers(1, 5),
    max_staleness=st.integers(0, 4),
    order=st.sampled_from(["drawn", "finished"]),
    num_extra=st.sampled_from([0, 0, 1, 3, 7]),
    seed=st.integers(0, 10**6),
    drop_rate=RATES,
    failure_rate=RATES,
    error_rate=RATES,
    max_rounds=st.integers(1, 4),
    max_delay=st.sampled_from([0, 3, 40]),
).map(lambda run: evolve(run, num_extra=0) if run.order == "drawn" else run)


@hypothesis_settings(max_examples=EXAMPLES)
@given(RUNS, st.integers(1, 8), st.sets(st.integers(0, 7), max_size=3), st.booleans())
def test_every_draw_is_trained_once_in_time(run: Run, steps: int, kills: set[int], drains: bool) -> None:
    run.play(steps, sorted(kills), drains=drains)


@hypothesis_settings(max_examples=EXAMPLES)
@given(st.integers(1, 5), st.lists(st.integers(0, 99), min_size=2, max_size=3), RATES, RATES)
def test_synchronous_batches_do_not_depend_on_the_order_of_finishing(
    batch_size: int, delays: list[int], drop_rate: float, error_rate: float
) -> None:
    runs = [
        _DelayedBy(batch_size, 0, order, 0, 5, drop_rate, 0.1, error_rate, delays=delay).play(4)
        for delay in delays
        for order in ("drawn", "finished")
    ]
    for run in runs[1:]:
        assert run.trained == runs[0].trained
        assert run.tokens == runs[0].tokens


@define
class _DelayedBy(Run):
    """The same run, in which requests finish in another order: their length is the same."""

    delays: int = 0

    def open(self) -> tuple[Scripted, Runtime, Window]:
        generator, runtime, window = Run.open(self)
        collect, rng = generator.collect, random.Random(self.delays)
        held: list[Completion] = []

        def shuffled(timeout: float | None = None) -> list[Completion]:
            held.extend(collect(timeout))
            rng.shuffle(held)
            count = rng.randint(1, 3)
            finished, held[:] = held[:count], held[count:]
            return finished

        generator.collect = shuffled
        return generator, runtime, window


@hypothesis_settings(max_examples=EXAMPLES)
@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 10**6), st.sets(st.integers(0, 5)), RATES)
def test_run_that_drains_is_the_same_after_kills(
    batch_size: int, max_staleness: int, seed: int, kills: set[int], drop_rate: float
) -> None:
    """Checkpoints that drain: a run that is killed trains the same tokens as one that has only written them."""
    runs = [Run(batch_size, max_staleness, "drawn", 0, seed, drop_rate) for _ in range(2)]
    runs[0].play(6, sorted(kills), drains=True)
    generator, runtime, window = runs[1].open()
    for step in range(6):
        runs[1].advance(runtime, window)
        if step in kills:
            window.drain()
    runtime.close()
    assert not generator.pending
    assert runs[0].trained == runs[1].trained
    assert runs[0].tokens == runs[1].tokens


# --- which groups are due ----------------------------------------------------------------------------------------

LAST_STEPS = st.lists(st.integers(0, 4), max_size=8).map(lambda steps: dict(enumerate(steps)))


@hypothesis_settings(max_examples=100)
@given(LAST_STEPS, st.integers(0, 3), st.integers(1, 4))
def test_num_due_equals_a_search_of_all_choices(last_steps: dict[int, int], step: int, batch_size: int) -> None:
    due = num_due(last_steps, step, batch_size)
    for size in range(len(last_steps) + 1):
        for chosen in combinations(last_steps, size):
            members = {e: sum(last_steps[n] <= e for n in chosen) for e in due}
            satisfies = all(members[e] >= number for e, number in due.items())
            rest = [last for number, last in last_steps.items() if number not in chosen]
            assert satisfies == _can_be_trained(rest, step + 1, batch_size), (due, chosen)


def _can_be_trained(last_steps: Sequence[int], first: int, batch_size: int) -> bool:
    """Whether all can be trained from the step `first` on: the earliest ones first, `batch_size` in each step."""
    return all(last >= first + k // batch_size for k, last in enumerate(sorted(last_steps)))


# --- time --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "num_extra"), [("drawn", 0), ("finished", 0), ("finished", 100)])
def test_time_is_proportional_to_the_number_of_draws(order: str, num_extra: int) -> None:
    """Ten times the draws take ten times the time, not a hundred times; 10,000 are outstanding."""
    small, large = _cpu_seconds(order, num_extra, 200), _cpu_seconds(order, num_extra, 2000)
    assert large < 50 * max(small, 0.05), (small, large)


def _cpu_seconds(order: str, num_extra: int, batch_size: int) -> float:
    class OneByOne(Scripted):
        """Finishes everything at once, and returns few at a time."""

        def collect(self, timeout: float | None = None) -> list[Completion]:
            if not self._finished:
                for pending in self.pending.values():
                    pending.add([1], [-1.0], self._version)
                self._finished = [pending.completion("stop") for pending in self.pending.values()]
                self.pending = {}
            finished = self._finished[-20:]
            del self._finished[-20:]
            return finished

    async def one_turn(draw: Draw, generate: Generate) -> list[Trajectory]:
        [completion] = await generate([Request(draw.key, [0], Sampling(1.0, 1), 0)])
        return [Trajectory({"action": [True], "version": completion.version})]

    start = time.process_time()
    runtime = Runtime(OneByOne(lambda key: 0, 0.0))
    window = Window(
        Rollouts(runtime, one_turn),
        _draws,
        batch_size=batch_size,
        max_staleness=4,
        order=order,  # pyright: ignore[reportArgumentType]
        num_extra=num_extra,
    )
    assert len(window.take_groups(batch_size, 0)) == batch_size
    window.cancel_surplus(0)
    runtime.close()
    return time.process_time() - start
