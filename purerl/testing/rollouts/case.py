"""The argument of each check of a workflow, and running it on draws."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import evolve, field, frozen

from purerl.data.chat import Prompt
from purerl.errors import PurerlError
from purerl.protocols import Completion, Request
from purerl.rewards.adapters import RewardInput
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.types import Draw, Group, Score, Trajectory, Workflow
from purerl.testing.rollouts.generator import Respond, ScriptedGenerator

__all__ = ["Case", "RolloutOutcome", "Running", "Scorer", "assert_same", "plain"]

FAILURE = RewardResult(failure=Failure("check_rollouts", "raised", "check_rollouts lets this reward function fail\n"))


class Scorer:
    """Reward functions whose values depend on what they score. It lets other coroutines run meanwhile.

    failing   the result of each input that gets none of the usual values, by its key
    inputs    all inputs, in order
    running   number of calls that are not finished
    blocks    calls never finish
    """

    def __init__(self, failing: Mapping[str, RewardResult]) -> None:
        self._failing = failing
        self.inputs: list[RewardInput] = []
        self.running = 0
        self.blocks = False

    async def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardResult]:
        self.inputs += inputs
        self.running += 1
        try:
            for _ in range(1 + len(self.inputs) % 3):
                await asyncio.sleep(0)
            if self.blocks:
                await asyncio.get_running_loop().create_future()
        finally:
            self.running -= 1
        return [self._failing.get(each.row) or _reward(each) for each in inputs]


def _reward(scored: RewardInput) -> RewardResult:
    # A number that float32 can hold.
    value = random.Random(f"{scored.completion!r} {scored.seed}").randrange(1, 2**10) / 2**9
    return RewardResult({"check": value}, {"check": value}, by_function={"check": {"check": value}})


@frozen
class RolloutOutcome:
    """The outcome of some draws: their groups by number, all requests, completions by key, and scored inputs.

    first      keys of the requests that were submitted together first
    cancelled  keys of the requests that were cancelled
    """

    groups: Mapping[int, Group]
    requests: Sequence[Request]
    completions: Mapping[str, Completion]
    inputs: Sequence[RewardInput]
    first: Sequence[str]
    cancelled: Sequence[str]

    def rows(self, number: int) -> tuple[Trajectory, ...]:
        """The rows of the draw `number`."""
        return self.groups[number].trajectories


@frozen
class Running:
    """A workflow that runs, step by step."""

    generator: ScriptedGenerator
    scorer: Scorer
    runtime: Runtime
    rollouts: Rollouts

    def wait(self, is_done: Callable[[], bool], timeout: float) -> None:
        """Let the engine work until `is_done`. Raises AssertionError after `timeout` seconds."""
        is_over = self.runtime.drive(is_done, waits_for=lambda: "a check", timeout=timeout)
        assert is_over, f"requests after {timeout} s: got {[*self.generator.pending]} in flight, expected them to end"

    def finish(self) -> dict[int, Group]:
        """The groups of all draws in flight."""
        groups: dict[int, Group] = {}
        try:
            while new := self.rollouts.collect():
                for group in new:
                    assert group.draw not in groups, f"groups of draw {group.draw}: got 2, expected 1"
                    groups[group.draw] = group
        except PurerlError as error:
            raise AssertionError(f"the run stopped: got {type(error).__name__}: {error}") from error
        return groups

    def outcome(self) -> RolloutOutcome:
        """The outcome of all draws in flight."""
        generator, groups = self.generator, self.finish()
        first = [request.key for request in generator.requests[: generator.num_first]]
        cancelled = [*generator.cancelled]
        return RolloutOutcome(groups, generator.requests, generator.completions, self.scorer.inputs, first, cancelled)


@frozen
class Case:
    """A workflow, and the arguments of `check_rollouts` that the checks need."""

    build: Callable[[Score], Workflow]
    examples: Sequence[Mapping[str, Any]]
    prompt: Callable[[Mapping[str, Any]], Prompt]
    vocabulary: int
    respond: Respond
    timeout: float
    _alone: dict[int, RolloutOutcome] = field(factory=dict, eq=False)

    @property
    def draws(self) -> list[Draw]:
        """A draw of each example; two if there is one example only."""
        return [self.draw(k) for k in range(max(2, len(self.examples)))]

    def draw(self, index: int, *, seed: int = 0) -> Draw:
        """The draw of an example in a run with this seed. The number of one is the beginning of another one's."""
        index, number = index % len(self.examples), 1 if index == 0 else 9 + index
        example = copy.deepcopy(dict(self.examples[index]))
        return Draw(number, index, example, self.prompt(example), f"check {number}", (seed, number))

    @contextmanager
    def running(
        self,
        draws: Sequence[Draw],
        *,
        order: int | None = None,
        failing: Collection[str] = (),
        results: Mapping[str, RewardResult] | None = None,
    ) -> Iterator[Running]:
        """The workflow on `draws`.

        order    of finishing; None: that of the requests
        failing  keys of requests that fail
        results  of reward functions, by the key of what is scored
        """
        scorer = Scorer(results or {})
        generator = ScriptedGenerator(self.respond, self.vocabulary, order=order, failing=failing)
        runtime = Runtime(generator, stall_timeout=self.timeout)
        try:
            rollouts = Rollouts(runtime, self.build(scorer))
            rollouts.submit(draws)
            yield Running(generator, scorer, runtime, rollouts)
        finally:
            runtime.close()

    def run(self, draws: Sequence[Draw], **options: Any) -> RolloutOutcome:
        """The outcome of `draws`, with the options of `running`."""
        with self.running(draws, **options) as running:
            return running.outcome()

    def alone(self, draw: Draw) -> RolloutOutcome:
        """The outcome of `draw` if nothing runs beside it."""
        if draw.number not in self._alone:
            self._alone[draw.number] = self.run([draw])
        return self._alone[draw.number]


def plain(value: Any) -> Any:
    """`value` with lists for sequences, tensors and arrays, so that values can be compared."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def assert_same(actual: Group, expected: Group, how: str) -> None:
    """Raise AssertionError with the first value that differs."""
    where = f"draw {expected.draw}, {how}"
    failure = actual.failure and actual.failure.traceback
    assert failure == (expected.failure and expected.failure.traceback), f"{where}: got {failure}"
    got, want = len(actual.trajectories), len(expected.trajectories)
    assert got == want, f"{where}: got {got} rows, expected {want}"
    for k, pair in enumerate(zip(actual.trajectories, expected.trajectories, strict=True)):
        assert_same_row(*pair, f"{where}, row {k}")


def assert_same_row(actual: Trajectory, expected: Trajectory, where: str) -> None:
    """Raise AssertionError with the first value of a row that differs."""
    for part in ("fields", "texts", "metrics"):
        got, want = (dict(plain(getattr(row, part))) for row in (actual, expected))
        for name in {**want, **got}:
            values = got.get(name), want.get(name)
            assert values[0] == values[1], f"{where}, {name}: got {values[0]!r:.300}, expected {values[1]!r:.300}"
    results = [evolve(row.result, failure=None) for row in (actual, expected)]
    assert results[0] == results[1], f"{where}: got the result {results[0]}, expected {results[1]}"
