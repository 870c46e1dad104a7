"""Environments with a host, for the tests of each kind of host."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from purerl.envs.failures import EnvironmentFailure
from purerl.envs.hosts import episode, open_host
from purerl.envs.settings import EnvironmentSettings

MODULE = "tests.envs.environments"
ROOT = Path(__file__).parents[2]


def settings(name: str = "Obeys", **more) -> EnvironmentSettings:
    more = {"timeout": 30.0} | more
    if more.get("run_in") != "event_loop":
        more = {"num_workers": 1} | more
    return EnvironmentSettings(factory=f"{MODULE}:{name}", **more)


def hosted(function, chosen: EnvironmentSettings):
    """The result of function(host), a coroutine, with a host of the `chosen` environments."""

    host = open_host(chosen)  # before there is an event loop

    async def main():
        try:
            async with asyncio.timeout(120):
                return await function(host)
        finally:
            await host.close()

    return asyncio.run(main())


async def say(opened, text: str) -> str:
    return (await opened.step(text, ())).messages[0]["content"]


async def failure_of(awaitable):
    with pytest.raises(EnvironmentFailure) as caught:
        await awaitable
    return caught.value.failure


async def play(host, seed: int, guesses=("4", "2", "6", "1", "3", "5", "7", "8")):
    async with episode(host) as opened:
        observations = [await opened.reset({}, seed)]
        for guess in guesses:
            if not observations[-1].done:
                observations.append(await opened.step(guess, ()))
    return observations


async def check_end(host) -> None:
    """Check the result of `end` of the class `Ends`."""
    async with episode(host) as opened:
        await opened.reset({}, 0)
        await opened.step("3", ())
        last = await opened.end("length", "abc")
        assert last is not None
        assert (last.reward, dict(last.components)["low"] in (1.0, 4.0)) == (3.0, True)
    async with episode(host) as opened:
        await opened.reset({}, 0)
        assert await opened.end("tokens", "") is None
