"""Failures of episodes: what an environment or a generator did wrong, and in which draw, sample and turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from attrs import evolve

from purerl.envs.protocol import Environment
from purerl.errors import EngineError, RunError
from purerl.rewards.outcomes import Failure, failure_of_exception
from purerl.rollouts.episode import Episode

__all__ = ["EpisodeError", "episode_error", "failures_of", "opened", "place"]

_LOG = logging.getLogger(__name__)


class EpisodeError(Exception):
    """An episode has failed. If an exception is the reason, it is the cause of this one."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.traceback)
        self.failure = failure


@contextmanager
def failures_of(function: str, episode: Episode) -> Iterator[None]:
    """Raise EpisodeError if the block, code of `function`, raises an exception. Its cause is this exception.

    These are raised as they are: the cancellation of the task; KeyboardInterrupt; and RunError, which means that other
    episodes cannot run either. SystemExit is a failure like any other.
    """
    try:
        yield
    except RunError:
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise episode_error(function, episode, error) from error


def episode_error(function: str, episode: Episode, error: BaseException) -> EpisodeError:
    """The failure of `episode` because `function` has raised `error`."""
    failure = getattr(error, "failure", None) or failure_of_exception(function, error)
    kind = "timed out" if isinstance(error, TimeoutError) else failure.kind
    part = "engine" if isinstance(error, EngineError) else "environment"
    return EpisodeError(evolve(failure, kind=kind, traceback=f"{place(episode)}:\n{failure.traceback}", part=part))


def place(episode: Episode) -> str:
    """The position of `episode`, for messages: its draw, sample and turn."""
    turn = f"turn {episode.num_turns - 1}" if episode.num_turns else "before the first turn"
    return f"draw {episode.draw.number}, sample {episode.sample}, {turn}"


@asynccontextmanager
async def opened(
    open_environment: Callable[[Any, int], Awaitable[Environment]], episode: Episode, close_timeout: float
) -> AsyncIterator[Environment]:
    """The environment of `episode`, which is closed after the block in any case, within `close_timeout` seconds.

    Raises: EpisodeError if it cannot be opened. An environment that cannot be closed is only a warning.
    """
    with failures_of("environment", episode):
        environment = await open_environment(episode.draw, episode.sample)
    try:
        yield environment
    finally:
        await _close(environment, episode, close_timeout)


async def _close(environment: Environment, episode: Episode, timeout: float) -> None:
    closing = asyncio.ensure_future(environment.close())
    await asyncio.wait([closing], timeout=timeout)
    if not closing.done():
        closing.cancel()
        _LOG.warning("an environment was not closed within %g seconds: %s", timeout, place(episode))
    elif closing.cancelled():
        _LOG.warning("an environment has cancelled its own method close: %s", place(episode))
    elif error := closing.exception():
        _LOG.warning("an environment raised an exception when it was closed: %s", place(episode), exc_info=error)
