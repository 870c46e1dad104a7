"""OpenAI-style tools as an environment."""

from __future__ import annotations

from typing import Any

import pytest

from purerl.adapters.openai_tools import OpenAITools
from purerl.errors import ConfigError
from tests.adapters import tools
from tests.adapters.episodes import call, contents, finish

MODULE = "tests.adapters.tools"


def test_calls_are_answered_by_the_functions_of_the_module() -> None:
    environment = OpenAITools(f"{MODULE}:TOOLS")
    assert [tool["function"]["name"] for tool in environment.tools] == ["add", "now"]
    assert all({"type", "function"} == tool.keys() for tool in environment.tools)
    assert finish(environment.reset({"prompt": "?"}, seed=0)).messages == ()
    answer = finish(environment.step("", [call("add", a=2, b=3), call("now"), call("add", a=2), call("sub")]))
    assert contents(answer)[:2] == ["5", "noon"]
    assert "'b'" in contents(answer)[2]
    assert "one of: add, now" in contents(answer)[3]
    assert not answer.done
    last = finish(environment.step("5", []))
    assert (last.done, last.reward, last.messages) == (True, None, [])


def test_functions_may_be_objects_or_a_mapping_elsewhere() -> None:
    for functions in (tools.ONLY_ADD, f"{MODULE}:ONLY_ADD"):
        environment = OpenAITools(tools.TOOLS[:1], functions)
        assert contents(environment.step("", [call("add", a=1, b=1)])) == ["2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((tools.TOOLS,), "functions"),
        ((f"{MODULE}:TOOLS", f"{MODULE}:ONLY_ADD"), "also for now"),
        ((f"{MODULE}:EMPTY",), "at least one tool"),
        ((f"{MODULE}:TWICE",), "a different name for each"),
        ((f"{MODULE}:CUSTOM",), "type"),
        ((f"{MODULE}:NAMELESS",), "a name"),
        ((f"{MODULE}:NO_OBJECT",), "type object"),
        ((f"{MODULE}:NONE",), "NONE"),
    ],
)
def test_what_cannot_work_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpenAITools(*arguments)


def test_tool_that_openai_itself_describes_is_accepted() -> None:
    openai = pytest.importorskip("openai")
    from pydantic import BaseModel, Field

    class Weather(BaseModel):
        """The weather of a city."""

        city: str = Field(description="The city.")

    described = openai.pydantic_function_tool(Weather)
    environment = OpenAITools([described], {"Weather": lambda city: f"rain in {city}"})
    assert environment.tools == [described]
    assert contents(environment.step("", [call("Weather", city="Oslo")])) == ["rain in Oslo"]
