"""examples/mcp_server/server.py: the tools of a server to copy, over stdin and stdout, as its run starts it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from attrs import evolve

from purerl.config.check import check_settings
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict
from purerl.config.tables import read_table
from purerl.envs.hosts import episode
from tests.adapters.test_mcp import answer
from tests.envs.hosts import hosted

pytest.importorskip("mcp", minversion=None, reason="the package mcp is not installed")

FOLDER = Path(__file__).parents[2] / "examples" / "mcp_server"


def test_tools_of_the_server() -> None:
    config = from_dict(RunConfig, read_table(FOLDER / "run.toml"))
    assert [reward.function for reward in config.rewards] == ["purerl.rewards.turns:gsm8k_answer"]
    assert config.environment
    assert config.environment.mcp == ("python server.py",)
    server = shlex.join([sys.executable, str(FOLDER / "server.py")])
    settings = evolve(config.environment, mcp=(server,), num_workers=1, timeout=60.0)
    check_settings(evolve(config, environment=settings))

    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            tools = {tool["function"]["name"]: tool["function"]["description"] for tool in opened.tools or ()}
            assert tools == {
                "multiply": "Multiply two integers.",
                "divide": "Divide the first integer by the second one.",
            }
            assert await answer(opened, "multiply", first=12, second=34) == "408"
            assert await answer(opened, "divide", first=1, second=4) == "0.25"
            assert (await answer(opened, "divide", first=1, second=0)).startswith("Error: ")

    hosted(main, settings)
