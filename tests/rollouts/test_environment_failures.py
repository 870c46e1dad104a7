"""Episodes that fail, or are cancelled, and environments that cannot be closed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from purerl.batch import check_batch, collate
from purerl.envs.protocol import Observation
from purerl.errors import EngineError
from purerl.protocols import Completion
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult
from tests.rollouts.episodes import (
    TWO_TURNS,
    Broken,
    Says,
    Scripted,
    draw,
    run,
    texts_of,
    tokens_of,
    workflow,
)

# --- failures ----------------------------------------------------------------------------------------------------


FAILURES = [
    (lambda: Broken(TWO_TURNS), {}, "cc", "before the first turn", "raised", "ValueError: no such level"),
    (lambda: Scripted([TWO_TURNS[0], KeyError("x")]), {}, "ccfaCB", "turn 0", "raised", "KeyError: 'x'"),
    (lambda: Scripted([*TWO_TURNS[:2], TimeoutError()]), {}, "ccfaCBggaCB", "turn 1", "timed out", "TimeoutError"),
    (lambda: Scripted([TWO_TURNS[0], SystemExit(3)]), {}, "ccfaCB", "turn 0", "raised", "SystemExit: 3"),
    (lambda: Scripted([TWO_TURNS[0], asyncio.CancelledError()]), {}, "ccfaCB", "turn 0", "raised", "CancelledError"),
    (
        lambda: Scripted([TWO_TURNS[0], Observation(messages=[{"role": "user"}])]),
        {},
        "ccfaCB",
        "turn 0",
        "raised",
        "KeyError: 'content'",
    ),
    (lambda: Scripted(TWO_TURNS[2:]), {}, "cc", "before the first turn", "returned an invalid value", "over before"),
    (
        lambda: Scripted(TWO_TURNS),
        {"max_sequence_length": 4},
        "ccfa",
        "before the first turn",
        "returned an invalid value",
        "its prompt is too long",
    ),
    (
        lambda: Scripted([Observation(), Observation(done=True)]),
        {},
        "ccaCB",
        "turn 0",
        "returned an invalid value",
        "over without a reward",
    ),
]


@pytest.mark.parametrize(("build", "changes", "row", "turn", "kind", "message"), FAILURES)
def test_failed_episode_is_a_missing_sample(
    build: Any, changes: Any, row: str, turn: str, kind: str, message: str
) -> None:
    made, environments = workflow(lambda k: build() if k == 1 else Scripted(TWO_TURNS), **changes)
    good, bad = run(made, Says({}))[:2]
    assert texts_of(bad.fields) == row
    failure = bad.result.failure
    assert failure is not None
    assert failure.function == "environment"
    assert failure.kind == kind
    assert failure.traceback.startswith(f"draw 3, sample 1, {turn}:")
    assert message in failure.traceback
    assert bad.result.reward is None
    assert bad.texts["finish"] == "error"
    assert bad.metrics == {}
    assert not any(bad.fields["mask"])
    assert not any(bad.fields["reward"])
    assert changes or good.result.reward == 2.5
    assert [environment.closed for environment in environments.values()] == [1, 1]
    check_batch(collate([good.fields, bad.fields]))


def test_environment_that_cannot_be_opened_is_a_missing_sample() -> None:
    def build(sample: int) -> Any:
        if sample == 0:
            raise ConnectionError("no server")
        return Scripted(TWO_TURNS)

    made, _ = workflow(build)
    bad, good = run(made, Says({}))
    assert bad.result.failure is not None
    assert "ConnectionError: no server" in bad.result.failure.traceback
    assert bad.fields["tokens"] == tokens_of("cc")
    assert good.result.reward == 2.5


def test_failed_request_is_a_missing_sample() -> None:
    async def generate(batch: Any) -> list[Completion]:
        if batch[0].key == "3/1.1":
            return [Completion("3/1.1", [], [], [], "error", "out of memory")]
        return await Says({})(batch)

    made, environments = workflow(lambda k: Scripted(TWO_TURNS))
    good, bad = run(made, generate)
    failure = bad.result.failure
    assert failure is not None
    assert failure.function == "generator"
    assert failure.traceback.startswith("draw 3, sample 1, turn 1:")
    assert "out of memory" in failure.traceback
    assert texts_of(bad.fields) == "ccfaCB"
    assert good.result.reward == 2.5
    assert environments[1].closed == 1


def test_error_of_the_run_in_an_environment_is_raised() -> None:
    made, _ = workflow(lambda k: Scripted([TWO_TURNS[0], EngineError("no more processes")]))
    with pytest.raises(EngineError, match="no more processes"):
        run(made, Says({}))


def test_failure_that_an_exception_brings_is_kept() -> None:
    error = RuntimeError("x")
    error.failure = Failure("my_game.py:Game", "died", "signal 9\n")  # type: ignore[attr-defined]
    made, _ = workflow(lambda k: Scripted([TWO_TURNS[0], error]), samples_per_prompt=1)
    [row] = run(made, Says({}))
    assert row.result.failure == Failure("my_game.py:Game", "died", "draw 3, sample 0, turn 0:\nsignal 9\n")


def test_errors_of_the_run_are_raised_after_closing_all_environments() -> None:
    async def score(batch: Any) -> list[RewardResult]:
        raise MemoryError("the workers have ended")

    made, environments = workflow(lambda k: Scripted(TWO_TURNS, delays=9 * k), score=score)
    with pytest.raises(MemoryError, match="the workers have ended"):
        run(made, Says({}))
    assert [environment.closed for environment in environments.values()] == [1, 1]


# --- closing -----------------------------------------------------------------------------------------------------


def test_cancelled_workflow_closes_its_environments() -> None:
    async def main() -> bool:
        waiting = asyncio.Event()

        async def generate(batch: Any) -> list[Completion]:
            waiting.set()
            await asyncio.Event().wait()
            raise AssertionError

        task = asyncio.create_task(made(draw(), generate))  # type: ignore[arg-type]
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    made, environments = workflow(lambda k: Scripted(TWO_TURNS))
    assert asyncio.run(main())
    assert [environment.closed for environment in environments.values()] == [1, 1]


def test_cancellation_in_an_environment_is_not_a_failure() -> None:
    class Waiting(Scripted):
        async def step(self, text: str, calls: Any) -> Observation:
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.Event().wait()
            raise AssertionError

    async def main() -> None:
        nonlocal task
        task = asyncio.create_task(made.play(made.start(draw(), 0), Says({})))
        with pytest.raises(asyncio.CancelledError):
            await task

    task: Any = None
    made, environments = workflow(lambda k: Waiting(TWO_TURNS))
    asyncio.run(main())
    assert environments[0].closed == 1


class Stuck(Scripted):
    async def close(self) -> None:
        await asyncio.Event().wait()


class Refusing(Scripted):
    async def close(self) -> None:
        raise OSError("already closed")


@pytest.mark.parametrize(
    ("build", "message"), [(Stuck, "was not closed within 0.01 seconds"), (Refusing, "raised an exception")]
)
def test_environment_that_cannot_be_closed_is_a_warning(build: Any, message: str, caplog: Any) -> None:
    made, _ = workflow(lambda k: build(TWO_TURNS), close_timeout=0.01, samples_per_prompt=1)
    with caplog.at_level(logging.WARNING):
        [trajectory] = run(made, Says({}))
    assert trajectory.result.reward == 2.5
    assert message in caplog.text
    assert "draw 3, sample 0" in caplog.text
