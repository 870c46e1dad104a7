"""A run that is killed at any moment and started again gives the same result as an uninterrupted run, bit for bit.

If what it samples depends on time, it loses no draw, trains none twice, and trains no token that is too old. The same
holds if one rank is killed, and if the disk is full until space is freed. A server of an engine that is killed or
stopped loses no request.
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.backends.hf.mesh import Mesh
from purerl.settings import Model
from purerl.store.settings import Checkpoint
from tests.placement.worlds import Kill, run_world
from tests.rollouts.runtimes import wait_until
from tests.serving.toys import Toy, completions, engines, requests, sampled, toys
from tests.soak import Count

from .full_disk import train_on_full_disk
from .killed import PHASES, PhaseEvent, count_events, run
from .killed_runs import KINDS, TIMED, check_draws, check_equal, kill_until_finished
from .runs import records
from .small import small_real

pytestmark = pytest.mark.slow


def _kill_at_events(name: str, folder: Path, *, kills: int, seed: int) -> int:
    """Kill a run of one kind at `kills` random events, several times from its beginning if needed, and check it.

    Returns the number of kills.
    """
    config, rng = {**KINDS, **TIMED}[name](folder), random.Random(f"{seed} {name}")
    events = count_events(config, folder / "uninterrupted").total()
    metrics = records(folder / "uninterrupted")
    assert len(metrics) > 3, "the run has few steps"
    assert config.rollout is None or any(record.get("reward/mean") for record in metrics), "the run has no rewards"
    assert config.environment is None or metrics[-1]["environment/turns"] > 1.5, "the episodes have one turn"
    if config.rollout is not None and config.rollout.max_staleness:
        assert any(record.get("rollout/staleness_max") for record in metrics), "the run is on policy"
    moments = ({"at_event": rng.randint(1, events // 2)} for _ in count())
    done = 0
    for attempt in count():
        directory = folder / f"killed {attempt}"
        done += kill_until_finished(config, directory, moments, max_kills=kills - done)
        if name in KINDS:
            check_equal(directory, folder / "uninterrupted")
        else:
            check_draws(directory, config)
        if done >= kills:
            return done
    raise AssertionError


AT_EVENT = "run killed at a random event"

FAST = {
    "grpo": 2,
    "ppo, one step off policy, reference follows the policy": 2,
    "environment in the event loop, one step off policy": 2,
    "checkpoints in the background, three steps off policy": 2,
}
"""Number of kills of these kinds in the tests that are not marked soak. Those that are test all kinds."""


@pytest.mark.parametrize("name", FAST)
def test_run_killed_at_events_resumes(name: str, tmp_path: Path, count_interruptions: Count) -> None:
    count_interruptions(AT_EVENT, _kill_at_events(name, tmp_path, kills=FAST[name], seed=0))


@pytest.mark.soak
@pytest.mark.parametrize("name", [*KINDS, *TIMED])
def test_run_of_each_kind_killed_at_events_resumes(
    name: str, tmp_path: Path, kills: int, count_interruptions: Count
) -> None:
    share = math.ceil(kills / (len(KINDS) + len(TIMED)))
    count_interruptions(AT_EVENT, _kill_at_events(name, tmp_path, kills=share, seed=1))


@pytest.mark.soak
def test_run_killed_at_random_times_resumes_bit_for_bit(tmp_path: Path, count_interruptions: Count) -> None:
    config, rng = KINDS["grpo"](tmp_path), random.Random(1)
    start = time.monotonic()
    assert run(config, tmp_path / "uninterrupted") == 0
    seconds = time.monotonic() - start
    directory = tmp_path / "killed"
    # The machine may be faster now.
    while not (kills := kill_until_finished(config, directory, _random_times(seconds, rng))):
        seconds, directory = seconds / 2, directory.with_name(f"{directory.name} again")
    check_equal(directory, tmp_path / "uninterrupted")
    count_interruptions("run killed at a random time", kills)


def _random_times(seconds: float, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Six random times during a run that takes `seconds`, then none."""
    return ({"after": rng.uniform(0.2, 0.7) * seconds if k < 6 else None} for k in count())


# --- phases --------------------------------------------------------------------------------------------------------


@pytest.fixture
def kills(pytestconfig: pytest.Config) -> int:
    """The number of interruptions that the tests marked soak make together, about."""
    return int(pytestconfig.getoption("--kills"))


def _kill_in_phases(name: str, folder: Path, *, kills: int, seed: int) -> Counter[str]:
    """Kill a run `kills` times or more in each phase, from its beginning again and again; return the kills by phase."""
    config, rng = KINDS[name](folder), random.Random(seed)
    events, done = count_events(config, folder / "uninterrupted"), Counter[str]()
    assert {*events} == {*PHASES}
    for attempt in count():
        directory = folder / f"killed {attempt}"
        for phase in PHASES:
            # The first half: a run that is resumed has fewer events of a phase than one from the beginning.
            event = PhaseEvent(phase, rng.randint(1, max(1, events[phase] // 2)))
            code = run(config, directory, at_event=event)
            assert code in (0, -9), (event, code)
            done[phase] += code == -9
        kill_until_finished(config, directory, ({} for _ in count()))
        check_equal(directory, folder / "uninterrupted")
        if min(done[phase] for phase in PHASES) >= kills:
            return done
    raise AssertionError


ONE_AFTER_ANOTHER, BESIDE = "distillation", "checkpoints in the background, three steps off policy"
"""Kinds of runs that are killed in each phase. The second one writes checkpoints while it does steps."""


def test_run_killed_in_each_phase_resumes_bit_for_bit(tmp_path: Path, count_interruptions: Count) -> None:
    for phase, number in _kill_in_phases(ONE_AFTER_ANOTHER, tmp_path, kills=1, seed=0).items():
        count_interruptions(f"run killed in phase {phase}", number)


@pytest.mark.soak
@pytest.mark.parametrize("name", [ONE_AFTER_ANOTHER, BESIDE])
def test_run_killed_many_times_in_each_phase_resumes_bit_for_bit(
    name: str, tmp_path: Path, kills: int, count_interruptions: Count
) -> None:
    for phase, number in _kill_in_phases(name, tmp_path, kills=math.ceil(kills / 16), seed=1).items():
        count_interruptions(f"run killed in phase {phase}", number)


# --- one rank ------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_killed_resumes_bit_for_bit(rank: int, tmp_path: Path, kills: int, count_interruptions: Count) -> None:
    """The model is divided among two ranks. The other rank notices, and ends with an error; both are started again.

    The same with few kills is in tests/placement/test_checkpoints.py.
    """
    config = small_real(5, model=Model("{run}/prepared/model", dtype="float64"))
    config = evolve(config, checkpoint=Checkpoint(every=1, keep=2), trainer=evolve(config.trainer, mesh=Mesh(shard=2)))
    ended, rng, done = run_world(config, tmp_path / "uninterrupted"), random.Random(rank), 0
    assert [each.status for each in ended] == [0, 0]
    for attempt in count():
        directory = tmp_path / f"killed {attempt}"
        while not (directory / "summary.json").exists():
            is_killed = done < kills // 16
            action = Kill(rank, rng.randint(1, ended[rank].events // 2)) if is_killed else None
            statuses = [each.status for each in run_world(config, directory, action=action)]
            assert statuses[rank] in (0, -9), statuses
            assert statuses[1 - rank] in (0, 1), statuses
            done += statuses[rank] == -9
        check_equal(directory, tmp_path / "uninterrupted")
        if done >= kills // 16:
            count_interruptions("one rank of two killed", done)
            return


# --- servers -------------------------------------------------------------------------------------------------------

DEADLINE = 240.0  # seconds: for a hang; nothing else takes so long on a busy machine


def _interrupt_server(folder: Path, own: signal.Signals, *, limit: int) -> None:
    """Send a signal to the server of a generator when each of its requests has `limit` tokens and waits.

    Another server takes its place, and every request is answered with all its tokens.
    """
    first = ("--limit", str(limit))
    with toys(folder, Toy(starts=[first]), max_restarts=1, stall_timeout=10.0) as generator:
        own_requests = requests(12, tokens=20)
        generator.submit(own_requests)
        wait_until(lambda: sampled(generator) == limit * len(own_requests), seconds=DEADLINE)
        [pid] = engines()
        os.kill(pid, own)
        answers = completions(generator, len(own_requests))
        assert {key: tuple(each.tokens) for key, each in answers.items()} == {
            request.key: tuple(range(1, 21)) for request in own_requests
        }
        assert {each.finish for each in answers.values()} == {"length"}
        assert generator.servers[0].restarts == 1
    assert engines() == []


@pytest.mark.parametrize(
    ("number", "signals"),
    [
        pytest.param(1, (signal.SIGKILL, signal.SIGSTOP), id="few"),
        pytest.param(None, (signal.SIGKILL,), id="killed", marks=pytest.mark.soak),
        pytest.param(None, (signal.SIGSTOP,), id="stopped", marks=pytest.mark.soak),
    ],
)
def test_server_that_is_interrupted_loses_no_request(
    number: int | None,
    signals: tuple[signal.Signals, ...],
    tmp_path: Path,
    kills: int,
    count_interruptions: Count,
) -> None:
    """A stopped server hangs. The server is a small program with the interface of an engine's server.

    `nox -s vllm -- -m soak --kills 16 tests/engines` does the same with a real engine, in a run that learns.
    """
    number, rng = kills // 16 if number is None else number, random.Random(0)
    words = {signal.SIGKILL: "server killed", signal.SIGSTOP: "server stopped"}
    for own in signals:
        for attempt in range(number):
            _interrupt_server(tmp_path / f"{own.name} {attempt}", own, limit=rng.randint(1, 19))
        count_interruptions(words[own], number)


# --- a full disk ---------------------------------------------------------------------------------------------------


def _fill_disk(folder: Path, *, number: int, seed: int) -> int:
    """Train `number` times or more on a disk that is full at a random moment; return the number of full disks."""
    config, rng = KINDS[ONE_AFTER_ANOTHER](folder), random.Random(seed)
    assert run(config, folder / "uninterrupted") == 0
    size = sum(file.stat().st_blocks * 512 for file in (folder / "uninterrupted").rglob("*"))
    full = 0
    for attempt in count():
        directory = folder / f"full {attempt}"
        try:
            error = train_on_full_disk(config, directory, free=int(rng.uniform(0.2, 0.9) * size))
        except OSError as problem:
            pytest.skip(f"no file system can be mounted here: {problem}")
        full += error is not None
        check_equal(directory, folder / "uninterrupted")
        if full >= number:
            return full
    raise AssertionError


@pytest.mark.parametrize("number", [1, pytest.param(None, marks=pytest.mark.soak)], ids=["one", "many"])
def test_run_on_a_full_disk_ends_with_an_error_and_resumes_when_space_is_freed(
    number: int | None, tmp_path: Path, kills: int, count_interruptions: Count
) -> None:
    full = _fill_disk(tmp_path, number=kills // 16 if number is None else number, seed=number or 1)
    count_interruptions("full disk, freed", full)
