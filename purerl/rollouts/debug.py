"""Episodes for people: one of them played in the main thread, for a debugger, and an episode as text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from purerl.data.chat import Prompt
from purerl.envs.failures import EnvironmentFailure
from purerl.errors import RewardError
from purerl.protocols import Completion, Generator, Request, generate
from purerl.rollouts.environment import EnvironmentWorkflow
from purerl.rollouts.episode_errors import EpisodeError
from purerl.rollouts.types import Draw, Trajectory

__all__ = ["format_episode", "play"]


def play(
    workflow: EnvironmentWorkflow,
    example: Mapping[str, Any],
    *,
    generator: Generator,
    index: int = 0,
    number: int = 0,
    sample: int = 0,
    seed: int = 0,
) -> list[Trajectory]:
    """Play one episode of `example` in this thread, and return its rows.

    Breakpoints in an environment that runs in this process work, and exceptions are raised. The numbers of a draw and
    of a sample and the seed of a run repeat the episode of this run, if the generator has the same weights. In a
    notebook, which runs an event loop in its main thread, the episode is played in another thread.

    Raises: the exception of the environment or of the generator; RewardError if a reward function fails.
    """
    draw = Draw(number, index, dict(example), Prompt("", []), str(number), (seed, number))
    return _run(_play(workflow, draw, sample, generator))


async def _play(workflow: EnvironmentWorkflow, draw: Draw, sample: int, generator: Generator) -> list[Trajectory]:
    async def complete(requests: Sequence[Request]) -> list[Completion]:
        return generate(generator, requests)

    episode = workflow.start(draw, sample)
    try:
        await workflow.play(episode, complete)
    except EpisodeError as error:
        raise _exception_of(error) from None
    trajectories = await workflow.finish(episode)
    for trajectory in trajectories:
        if failure := trajectory.result.failure:
            raise RewardError(f"reward function {failure.function!r} {failure.kind}\n{failure.traceback}")
    return trajectories


def _exception_of(error: EpisodeError) -> BaseException:
    """The exception that the environment has raised; `error` itself if it has raised none."""
    failure = error.__cause__
    return (failure.__cause__ if isinstance(failure, EnvironmentFailure) else None) or failure or error


def _run(coroutine: Coroutine[Any, Any, list[Trajectory]]) -> list[Trajectory]:
    if not _is_in_event_loop():
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1, "purerl play") as thread:
        return thread.submit(asyncio.run, coroutine).result()


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def format_episode(trajectory: Trajectory) -> str:
    """The conversation of an episode, turn by turn, and its reward. Other workflows have a prompt and a completion.

    >>> messages = '[{"role": "user", "content": "3?"}, {"role": "assistant", "content": "4", "reward": 0.5}]'
    >>> print(format_episode(Trajectory({}, {"messages": messages, "finish": "stop"})))
    --- user
    3?
    --- assistant, reward 0.5
    4
    --- stop, no reward
    """
    texts, reward = trajectory.texts, trajectory.result.reward
    messages = json.loads(texts["messages"]) if "messages" in texts else _two_messages(texts)
    end = f"--- {texts['finish']}, {'no reward' if reward is None else f'reward {reward:g}'}"
    return "\n".join([*(line for message in messages for line in _lines(message)), end])


def _two_messages(texts: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"role": "prompt", "content": texts["prompt"]}, {"role": "completion", "content": texts["completion"]}]


def _lines(message: Mapping[str, Any]) -> list[str]:
    author = " ".join(str(message[key]) for key in ("role", "name") if message.get(key))
    player = f", player {message['player']}" if "player" in message else ""
    reward = f", reward {message['reward']:g}" if "reward" in message else ""
    content = message.get("content")
    lines = [content if isinstance(content, str) else json.dumps(content)] if content else []
    calls = [f"call {call['name']} {json.dumps(call['arguments'])}" for call in message.get("tool_calls") or ()]
    return [f"--- {author}{player}{reward}", *lines, *calls]
