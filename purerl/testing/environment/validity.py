"""Checks of an environment: what it returns can be used."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from purerl.envs.observations import checked_observation, checked_tools
from purerl.envs.protocol import Environment, Observation, ToolCall
from purerl.errors import EngineError
from purerl.system.workers.connection import Answers, pack_answer
from purerl.testing.environment.case import Case, Playing, call

__all__ = [
    "has_all_methods",
    "observations_are_valid",
    "observations_can_be_sent",
    "tools_are_valid",
    "unusual_turns_are_answered",
]

_UNUSUAL_TEXTS = ("", " \n", "\x00\ud7ff\U0001f600", "-1", "9" * 400, "long " * 2000, "</s><|im_end|>", '{"a": [')


def has_all_methods(case: Case) -> None:
    """The factory returns a new object with the methods of an environment each time."""
    first, second = case.factory(), case.factory()
    assert isinstance(first, Environment), f"got {first!r:.200}, expected an object with reset, step and close"
    assert first is not second, "got the same object for two episodes, expected a new one for each"
    for environment in (first, second):
        with suppress(Exception):  # of `environment_closes_at_any_time`
            case.run(call(environment.close))


def observations_are_valid(case: Case) -> None:
    """Every observation has valid messages, rewards, players and states."""
    for example, seed in case.episodes_to_play():
        case.run(_play_and_check(case.playing(example, seed), case))


async def _play_and_check(playing: Playing, case: Case) -> None:
    try:
        await playing.reset()
        _check(playing, case)
        while not playing.is_over:
            await playing.step()
            _check(playing, case)
    finally:
        await playing.close()


def _check(playing: Playing, case: Case) -> None:
    where = f"step {len(playing.turns) - 1}" if playing.turns else "reset"
    try:
        checked_observation(playing.observations[-1], case.declared)
    except ValueError as error:
        raise AssertionError(
            f"{where} with the example {playing.example!r:.200}, seed {playing.seed}: {error}"
        ) from error


def observations_can_be_sent(case: Case) -> None:
    """Observations can be sent from a worker process to the run: they are data, and not too large."""
    example, seed = next(case.episodes_to_play())
    for observation in case.play(example, seed).observations:
        try:
            checked = checked_observation(observation, case.declared)
            [received] = Answers(Observation).read(pack_answer(checked))
        except (ValueError, EngineError) as error:
            raise AssertionError(f"got {_shown(error)}, for {observation!r:.200}") from error
        assert received == checked, f"got {received!r:.200}, expected {checked!r:.200}"


def tools_are_valid(case: Case) -> None:
    """The tools are JSON schemas with different names."""
    example, seed = next(case.episodes_to_play())
    try:
        checked_tools(case.play(example, seed).tools)
    except ValueError as error:
        raise AssertionError(str(error)) from error


def unusual_turns_are_answered(case: Case) -> None:
    """Whatever a model writes, an environment answers: an exception would make the sample missing."""
    example, seed = next(case.episodes_to_play())
    turns: list[tuple[str, list[ToolCall]]] = [(text, []) for text in _UNUSUAL_TEXTS]
    turns += [("", [ToolCall("no such tool", {}, "a")]), ("", [ToolCall("", {}, "b", error="invalid JSON")])]
    playing = case.playing(example, seed)
    names = [tool["function"]["name"] for tool in playing.tools]
    turns += [("", [ToolCall(name, {"no such argument": None}, "c")]) for name in names]
    case.run(playing.close())
    for turn in turns:
        playing = case.playing(example, seed)
        case.run(_answer(playing, turn))


async def _answer(playing: Playing, turn: tuple[str, list[ToolCall]]) -> None:
    try:
        await playing.reset()
        if not playing.is_over:
            await call(playing.environment.step, *turn)
    except Exception as error:
        raise AssertionError(f"got {_shown(error)} for the turn {turn!r:.200}, expected an observation") from error
    finally:
        await playing.close()


def _shown(error: Any) -> str:
    return f"{type(error).__name__}: {error}"
