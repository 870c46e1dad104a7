"""Checks of an environment: the end of an episode, and `close`."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any, get_args

from attrs import evolve

from purerl.envs.observations import checked_observation
from purerl.envs.protocol import EndReason, Observation
from purerl.testing.environment.case import Case, Playing, call

__all__ = [
    "close_releases_resources",
    "end_by_a_limit_is_answered",
    "environment_closes_at_any_time",
    "step_after_end_changes_nothing",
]

_EPISODES = 5


def step_after_end_changes_nothing(case: Case) -> None:
    """After the end of an episode, `step` raises an exception, or the episode stays over without a further reward."""
    for example, seed in case.episodes_to_play():
        case.run(_step_after_end(case.playing(example, seed)))


async def _step_after_end(playing: Playing) -> None:
    try:
        await playing.reset()
        while not playing.is_over:
            await playing.step()
        last = playing.observations[-1]
        if last.done or last.truncated:
            await _check_step(playing)
    finally:
        await playing.close()


async def _check_step(playing: Playing) -> None:
    try:
        after = await call(playing.environment.step, "", ())
    except Exception:  # noqa: BLE001 -- that is one of the two right answers
        return
    assert isinstance(after, Observation), f"step after the end: got {after!r:.200}, expected an observation"
    assert after.done or after.truncated, f"step after the end: got {after!r:.200}, expected done"
    assert not after.reward, f"step after the end: got the reward {after.reward!r}, expected none"


def end_by_a_limit_is_answered(case: Case) -> None:
    """`end`, an optional method, returns a valid observation or None, the same one if the episode is played again."""
    if not hasattr(case.factory(), "end"):
        return
    for example, seed in case.episodes_to_play():
        for reason in get_args(EndReason):
            first, second = [], []
            for answers in (first, second):
                case.run(_end(case.playing(example, seed), reason, answers))
            assert first == second, f"end({reason!r}), played again: got {second!r:.300}, expected {first!r:.300}"
            for answer in (answer for answer in first if answer is not None):
                try:
                    checked_observation(answer, evolve(case.declared, has_states=False))
                except ValueError as error:
                    raise AssertionError(f"end({reason!r}): {error}") from error


async def _end(playing: Playing, reason: EndReason, answers: list[Any]) -> None:
    """End the episode after a turn, if it is not over."""
    try:
        await playing.reset()
        await playing.step()
        if not playing.is_over:
            answers.append(await call(playing.environment.end, reason, "a turn that is c" * (reason == "length")))
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise AssertionError(f"end({reason!r}): got {got}, expected no exception") from error
    finally:
        await playing.close()


def environment_closes_at_any_time(case: Case) -> None:
    """`close` raises nothing: not before `reset`, after it, in the middle, and not after the end."""
    example, seed = next(case.episodes_to_play())
    for num_calls in range(4):
        case.run(_close_after(case.playing(example, seed), num_calls))


async def _close_after(playing: Playing, num_calls: int) -> None:
    for number in range(num_calls):
        await (playing.step() if number else playing.reset())
    try:
        await playing.close()
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise AssertionError(f"close after {num_calls} calls: got {got}, expected no exception") from error


def close_releases_resources(case: Case) -> None:
    """Open files, threads and processes of an episode end with `close`; files and processes are counted on Linux."""
    example, seed = next(case.episodes_to_play())
    case.play(example, seed)  # what is loaded or started once stays
    before = _resources()
    kept = [case.play(example, seed) for _ in range(_EPISODES)]
    for what, count in _resources().items():
        growth = count - before[what]
        assert growth < _EPISODES, f"{what}: got {growth} more after {len(kept)} episodes, expected no more than before"


def _resources() -> dict[str, int]:
    gc.collect()
    files, children = Path("/proc/self/fd"), Path(f"/proc/self/task/{os.getpid()}/children")
    return {
        "open files": len([*files.iterdir()]) if files.exists() else 0,
        "threads": threading.active_count(),
        "child processes": len(children.read_text(encoding="utf-8").split()) if children.exists() else 0,
    }
