"""Code in a worker process that attacks the run by its connection fails its own samples, and executes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from purerl.envs.hosts import episode
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import EngineError
from purerl.rewards.adapters import RewardInput
from purerl.rewards.outcomes import Failure, Logged
from purerl.rewards.results import RewardResult
from purerl.rewards.runner import RewardRunner
from purerl.rewards.worker import Loaded, Report
from purerl.system.workers import connection
from purerl.system.workers.connection import Answers, pack_answer
from purerl.system.workers.processes import Worker
from purerl.system.workers.shapes import has_shape
from tests.envs.hosts import failure_of, hosted
from tests.system.workers.hostile import ANSWERS, ATTACKS, REPORTS, STATUS_ATTACKS

MODULE = "tests.system.workers.hostile"


@pytest.fixture(scope="module")
def runner() -> Iterator[RewardRunner]:
    """All attacks are made on the same run, which must survive them."""
    with RewardRunner([f"{MODULE}:hostile_reward"], functions={}, timeout=30.0, num_workers=2) as runner:
        yield runner


def _run(runner: RewardRunner, attack: str, path: Path, *bad: int) -> list[RewardResult]:
    """The results of six rows, of which those at the indices `bad` attack the run."""
    example = {"attack": attack, "path": str(path)}
    return runner.run([RewardInput(str(k), "bad" if k in bad else "x" * k, example) for k in range(6)])


@pytest.mark.parametrize("attack", [*ATTACKS, *REPORTS, *STATUS_ATTACKS])
def test_reward_function_that_attacks_the_run_fails_its_own_row(
    attack: str, runner: RewardRunner, tmp_path: Path
) -> None:
    results = _run(runner, attack, tmp_path / "executed", 2)
    assert {k: result.failure.kind for k, result in enumerate(results) if result.failure} == {2: "died"}
    assert [result.reward for result in results] == [0.0, 1.0, None, 3.0, 4.0, 5.0]
    assert results[2].failure is not None
    word = "with exit code 3" if attack in STATUS_ATTACKS else "sent what is no answer: "
    assert f"the worker process {'died ' * (attack in STATUS_ATTACKS)}{word}" in results[2].failure.traceback
    assert [result.reward for result in _run(runner, attack, tmp_path)] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("attack", [*ATTACKS, *ANSWERS])
def test_environment_that_attacks_the_run_fails_its_own_sample(attack: str, tmp_path: Path) -> None:
    path = tmp_path / "executed"

    async def play(host: Any) -> tuple[Failure, float | Mapping[int, float] | None]:
        async with episode(host) as first:
            await first.reset({}, 0)
            failure = await failure_of(first.step(f"{attack}: {path}", ()))
        async with episode(host) as second:
            await second.reset({}, 0)
            return failure, (await second.step("a turn", ())).reward

    chosen = EnvironmentSettings(factory=f"{MODULE}:HostileEnvironment", num_workers=1, timeout=30.0)
    failure, reward = hosted(play, chosen)
    assert failure.kind == ("returned an invalid value" if _is_readable(attack) else "died")
    assert reward == 1.0
    assert not path.exists()


def _is_readable(attack: str) -> bool:
    """Whether the fields have their types, so that the process is not ended."""
    return attack in ANSWERS and "no kind" not in attack and "no boolean" not in attack


def test_result_that_cannot_be_sent_is_a_failure_that_says_what_it_is() -> None:
    name = f"{MODULE}:returns_a_failure_that_is_no_data"
    with RewardRunner([name], functions={}, timeout=30.0, num_workers=1) as runner:
        results = _run(runner, "", Path(), 1)
    assert [result.reward for result in results] == [1.0, None, 1.0, 1.0, 1.0, 1.0]
    failure = results[1].failure
    assert failure is not None
    assert failure.kind == "returned an invalid value"
    assert "an object of type builtins.builtin_function_or_method: <built-in function open>" in failure.traceback


def test_result_that_is_too_large_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_ANSWER", 1000)
    assert [*Answers(str).read(pack_answer("x" * 900))] == ["x" * 900]
    with pytest.raises(EngineError, match=r"1,0\d\d bytes.*\n.*at most 1,000"):
        pack_answer("x" * 1000)


def test_answers_arrive_in_any_pieces() -> None:
    sent = [Report(1, 2, {0: {"a": 1.0}, 1: None}), Loaded({"a": 1}, closes=True), Report(1, None, {1: Logged({})})]
    data = b"".join(map(pack_answer, sent))
    for size in (1, 7, 100, len(data)):
        answers = Answers(Report | Loaded)
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert [answer for piece in pieces for answer in answers.read(piece)] == sent


def starts_a_message(connection: int, status: int) -> None:
    """The work of a worker: it sends the first bytes of a message, and waits for the run."""
    with open(connection, "r+b", buffering=0) as stream:
        stream.write((100).to_bytes(8, "little"))
        stream.read(1)


def test_message_that_never_ends_does_not_block_the_run() -> None:
    worker = Worker(f"{__name__}:starts_a_message", None, max_memory=None, answer=str)
    try:
        receiving = threading.Thread(target=lambda: [worker.receive() for _ in range(100)], daemon=True)
        receiving.start()
        receiving.join(30.0)
        assert not receiving.is_alive()
        assert not worker.is_ready
    finally:
        worker.end()


@pytest.mark.parametrize(
    ("value", "declared", "expected"),
    [
        (1, int, True),
        (True, int, False),
        (1, float, True),
        (True, float, False),
        (None, None, True),
        ("a", str | None, True),
        (b"a", str | None, False),
        ([1, "a"], list, True),
        ((1, 2), tuple[int, ...], True),
        ((1, "a"), tuple[int, ...], False),
        ((1, "a"), tuple[int, str], True),
        ((1,), tuple[int, str], False),
        ({"a": [1]}, Mapping[str, Any], True),
        ({1: "a"}, Mapping[str, Any], False),
        ([("a", 1)], Mapping[str, int], False),
        (Loaded({"a": 1}, closes=True), Loaded, True),
        (Loaded({"a": 1.5}, closes=True), Loaded, False),  # pyright: ignore[reportArgumentType]
        (("a", True), Loaded, False),
        (object.__new__(Logged), Logged, False),
    ],
)
def test_shape_of_a_value(value: Any, declared: Any, expected: bool) -> None:
    assert has_shape(value, declared) is expected
