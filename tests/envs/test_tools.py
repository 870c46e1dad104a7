"""Python functions as tools, in real worker processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from purerl.envs.hosts import episode
from purerl.envs.protocol import ToolCall
from purerl.envs.settings import EnvironmentSettings

from .hosts import MODULE, failure_of, hosted


def tools(*names: str, **more) -> EnvironmentSettings:
    workers = {} if more.get("run_in") == "event_loop" else {"num_workers": 1}
    return EnvironmentSettings(
        tools=tuple(f"{MODULE}:{name}" for name in names), **({"timeout": 30.0} | workers | more)
    )


async def answers(opened, *calls) -> list[str]:
    numbered = [ToolCall(name, arguments, f"call {k}") for k, (name, arguments) in enumerate(calls)]
    observation = await opened.step("", numbered)
    assert not observation.done
    for message, call in zip(observation.messages, numbered, strict=True):
        assert (message["role"], message["tool_call_id"], message["name"]) == ("tool", call.id, call.name)
    return [message["content"] for message in observation.messages]


@pytest.mark.parametrize("run_in", ["process", "thread"])
def test_calls_are_answered_in_their_order_and_a_turn_without_a_call_ends_the_episode(run_in: str) -> None:
    async def main(host):
        async with episode(host) as opened:
            observation = await opened.reset({}, 0)
            assert not observation.messages
            assert [tool["function"]["name"] for tool in opened.tools or ()] == ["add", "add_later"]
            calls = [
                ("add", {"first": 3, "second": 4}),
                ("add_later", {"first": 1, "second": 2}),
                ("add", {"first": 1}),
            ]
            assert await answers(opened, *calls) == ["7", '{"sum": 3}', "2"]
            observation = await opened.step("done", ())
            assert observation.done
            assert observation.reward is None

    hosted(main, tools("add", "add_later", run_in=run_in))


def test_coroutines_in_the_event_loop() -> None:
    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            return await answers(opened, ("add_later", {"first": 1, "second": 2}))

    assert hosted(main, tools("add_later", run_in="event_loop")) == ['{"sum": 3}']


def test_mistakes_of_the_model_are_answered() -> None:
    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            unknown, missing, wrong, raised = await answers(
                opened,
                ("sub", {}),
                ("divide", {"first": 1}),
                ("divide", {"first": "one", "second": 2}),
                ("divide", {"first": 1, "second": 0}),
            )
            assert unknown == "Error: there is no tool 'sub'; there are divide"
            assert missing.startswith("Error: ")
            assert "second" in missing
            assert "first" in wrong
            assert raised == "Error: ZeroDivisionError: division by zero"
            unreadable = await opened.step("", [ToolCall("divide", error="invalid JSON")])
            assert unreadable.messages[0]["content"] == "Error: invalid JSON"

    hosted(main, tools("divide"))


def test_tool_that_hangs_or_dies_is_a_failure() -> None:
    async def main(host):
        async with episode(host) as first, episode(host) as second:
            await first.reset({}, 0)
            await second.reset({}, 0)
            failure = await failure_of(first.step("", [ToolCall("sleeps", {"seconds": 600})]))
            assert (failure.function, failure.kind) == ("tool sleeps", "timed out")
            assert "in sleeps" in failure.traceback
            assert await answers(second, ("sleeps", {"seconds": 0.01})) == ["awake"]
        async with episode(host) as third:
            await third.reset({}, 0)
            assert (await failure_of(third.step("", [ToolCall("crashes")]))).kind == "died"

    hosted(main, tools("sleeps", "crashes", timeout=1.0))


def test_several_calls_of_a_turn_have_a_deadline_each() -> None:
    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            return await answers(opened, *[("sleeps", {"seconds": 0.4})] * 4)

    assert hosted(main, tools("sleeps", timeout=1.0)) == ["awake"] * 4


def test_methods_share_a_state_in_an_episode_only() -> None:
    async def main(host):
        async with episode(host) as first, episode(host) as second:
            await first.reset({}, 0)
            await second.reset({}, 0)
            assert {tool["function"]["name"] for tool in first.tools or ()} == {"write", "read"}
            assert await answers(first, ("write", {"line": "a"}), ("write", {"line": "b"})) == ["1 lines", "2 lines"]
            assert await answers(second, ("read", {})) == ["[]"]
            assert await answers(first, ("read", {})) == ['["a", "b"]']

    hosted(main, tools("Notes"))


def test_random_numbers_of_a_tool_depend_on_the_seed_of_the_episode() -> None:
    async def main(host):
        async def drawn(seed):
            async with episode(host) as opened:
                await opened.reset({}, seed)
                return [*await answers(opened, ("draw", {}), ("draw", {})), *await answers(opened, ("draw", {}))]

        first, again, other = await asyncio.gather(drawn(1), drawn(1), drawn(2))
        assert first == again
        assert len({*first, *other}) == 6

    hosted(main, tools("draw"))


@pytest.mark.parametrize("names", [("Box", "FailsToStart"), ("Box", "look")])
def test_tools_are_closed_if_the_episode_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """A class of which no object can be made, and two tools with the same name."""
    monkeypatch.setenv("BOX", str(tmp_path / "closed"))
    hosted(lambda host: failure_of(host.open()), tools(*names, run_in="event_loop"))
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize("run_in", ["process", "thread", "event_loop"])
@pytest.mark.parametrize(("name", "exception"), [("Refuses", "ValueError"), ("Exits", "SystemExit")])
def test_exception_of_a_tool_has_no_frame_of_purerl(name: str, exception: str, run_in: str) -> None:
    async def main(host):
        async with episode(host):
            raise AssertionError

    async def failure(host):
        return await failure_of(main(host))

    described = hosted(failure, tools(name, run_in=run_in))
    assert described.kind == "raised"
    assert f"{exception}: no key for the service" in described.traceback
    assert 'raise self.error("no key for the service")' in described.traceback
    assert "purerl/envs" not in described.traceback.replace("tests/envs", "")
