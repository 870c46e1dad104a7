"""One episode, in the process in which the environment runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from attrs import evolve, frozen

from purerl.envs.calls import Call
from purerl.envs.failures import CallTimeoutError, EnvironmentFailure, raised
from purerl.envs.observations import Declared, checked_observation, checked_tools
from purerl.envs.protocol import EndReason, Observation, ToolCall
from purerl.rewards.outcomes import Failure
from purerl.seeds import derive_seed

__all__ = ["Episode", "LocalEpisode", "Source", "Tools"]

_LOG = logging.getLogger(__name__)

Tools = tuple[Mapping[str, Any], ...] | None


class Episode(Protocol):
    """One episode of an environment, wherever it runs. Every method raises EnvironmentFailure, except `close`.

    tools  JSON schemas of the tools, or None. They are known when `reset` has returned
    """

    @property
    def tools(self) -> Tools: ...
    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation: ...
    async def step(self, text: str, calls: Sequence[ToolCall]) -> Observation: ...
    async def end(self, reason: EndReason, text: str) -> Observation | None: ...
    async def close(self) -> None: ...


async def _close_nothing() -> None:
    pass


@frozen
class Source:
    """The source of environments.

    name   of the environment, for messages
    build  creates the object of an episode
    call   calls `build` and the methods of the object
    close  ends what all episodes share
    """

    name: str
    build: Callable[[], Any]
    call: Call
    close: Callable[[], Awaitable[None]] = _close_nothing


class LocalEpisode:
    """The object of an episode, with checks of everything that it returns. At most one call runs at a time.

    If a call of a thread did not end, no other method is called, not even `close`: the thread still uses the object.
    """

    def __init__(self, source: Source, declared: Declared):
        self._source, self._declared = source, declared
        self._lock = asyncio.Lock()
        self._environment: Any = None
        self._is_stuck, self._seed, self._num_calls = False, 0, 0
        self.tools: Tools = None

    async def open(self) -> None:
        """Create the object."""
        self._environment = await self._call(self._source.build)
        missing = [name for name in ("reset", "step", "close") if not callable(getattr(self._environment, name, None))]
        if missing:
            got = f"returned {self._environment!r:.200} without {', '.join(missing)}"
            raise self._invalid(f"{got}; need an object with the methods reset, step and close")
        self._read_tools()

    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        self._seed, self._num_calls = seed, 0
        observation = self._checked(await self._call(self._environment.reset, example, seed))
        self._read_tools()
        return observation

    async def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        return self._checked(await self._call(self._environment.step, text, calls))

    async def end(self, reason: EndReason, text: str) -> Observation | None:
        """The observation of the environment at the end; None if it has no method `end`."""
        if not hasattr(self._environment, "end"):
            return None
        value = await self._call(self._environment.end, reason, text)
        return None if value is None else self._checked(value, evolve(self._declared, has_states=False))

    async def close(self) -> None:
        """Close the object, after the call in progress: an object that is being created is closed too."""
        async with self._lock:
            environment, self._environment = self._environment, None
        if environment is None or not hasattr(environment, "close") or self._is_stuck:
            return
        try:
            await self._call(environment.close)
        except EnvironmentFailure as error:
            _LOG.warning("close of an environment failed: %s", error)

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        async with self._lock:
            try:
                self._num_calls += 1
                seed = derive_seed(self._seed, "environment", self._num_calls)
                return await self._source.call(seed, function, *arguments)
            except EnvironmentFailure:
                raise
            except Exception as error:
                self._is_stuck = isinstance(error, CallTimeoutError) and error.is_running
                raise raised(self._source.name, error) from error

    def _checked(self, value: Any, declared: Declared | None = None) -> Observation:
        try:
            return checked_observation(value, declared or self._declared)
        except ValueError as error:
            raise self._invalid(str(error)) from error

    def _read_tools(self) -> None:
        try:
            self.tools = checked_tools(getattr(self._environment, "tools", None))
        except ValueError as error:
            raise self._invalid(str(error)) from error

    def _invalid(self, text: str) -> EnvironmentFailure:
        return EnvironmentFailure(Failure(self._source.name, "returned an invalid value", text + "\n"))
