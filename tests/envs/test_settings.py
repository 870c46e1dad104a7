"""The section `environment`: what is refused, and with which message."""

from __future__ import annotations

import pytest

from purerl.envs.check import check_environment_settings
from purerl.envs.settings import EnvironmentSettings, written_fields
from purerl.errors import ConfigError

MODULE = "tests.envs.environments"
GUESS = f"{MODULE}:Guess"
ADD = f"{MODULE}:add"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "exactly one of them"),
        ({"factory": GUESS, "url": "http://x"}, "factory, url"),
        ({"factory": GUESS, "tools": (ADD,)}, "factory, tools or mcp"),
        ({"url": "x:80"}, "starts with http://"),
        ({"tools": (ADD, ADD)}, "each of them once"),
        ({"tools": ("",)}, "an empty string"),
        ({"factory": GUESS, "timeout": 0.0}, "above 0, and finite"),
        ({"factory": GUESS, "max_turns": 0}, "at least 1"),
        ({"factory": GUESS, "history": "forget"}, "append, rerender"),
        ({"tools": (ADD,), "tool_format": "xml"}, "auto, hermes"),
        ({"tools": (ADD,), "kwargs": {"a": 1}}, "kwargs has no effect"),
        ({"tools": (ADD,), "has_states": True}, "has_states has no effect"),
        ({"tools": (ADD,), "players": 2}, "players has no effect"),
        ({"url": "http://x", "run_in": "thread"}, "run_in has no effect"),
        ({"url": "http://x", "num_workers": 2}, "num_workers has no effect"),
        ({"url": "http://x", "max_memory": "1GB"}, "max_memory has no effect"),
        ({"factory": GUESS, "run_in": "thread", "max_memory": "1GB"}, "max_memory has no effect"),
        ({"factory": GUESS, "run_in": "event_loop", "num_workers": 2}, "num_workers has no effect"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EnvironmentSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"factory": f"{MODULE}:Gess"}, "without Gess"),
        ({"factory": "no_such_file.py:Game"}, "no such file"),
        ({"factory": f"{MODULE}:not_callable"}, "need: a class or a function"),
        ({"factory": f"{MODULE}:WithoutStep"}, "a class without step"),
        ({"factory": f"{MODULE}:WrongParameters"}, r"need: reset\(example, seed\)"),
        ({"factory": GUESS, "kwargs": {"limits": 3}}, "unexpected keyword argument 'limits'"),
        ({"factory": "__main__:Game"}, "another module in a worker process"),
        ({"factory": GUESS, "run_in": "event_loop"}, "would block the event loop"),
        ({"factory": f"{MODULE}:AsyncGuess", "run_in": "thread"}, "set run_in = event_loop"),
        ({"tools": (f"{MODULE}:no_such",)}, "without no_such"),
        ({"tools": (f"{MODULE}:without_hints",)}, "without_hints"),
        ({"tools": (f"{MODULE}:NoMethods",)}, "a class without public methods"),
        ({"tools": (ADD,), "run_in": "event_loop"}, "would block the event loop"),
        ({"tools": (f"{MODULE}:add_later",), "run_in": "thread"}, "set run_in = event_loop"),
    ],
)
def test_code_that_cannot_be_used_is_refused(settings: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_environment_settings(EnvironmentSettings(**settings))


def test_tools_with_the_same_name_are_refused(tmp_path) -> None:
    (tmp_path / "more_tools.py").write_text('def add(first: int) -> int:\n    """Add one."""\n    return first + 1\n')
    settings = EnvironmentSettings(tools=(ADD, f"{tmp_path}/more_tools.py:add"))
    with pytest.raises(ConfigError, match="'add' twice"):
        check_environment_settings(settings)


def test_tools_need_a_reward_function() -> None:
    settings = EnvironmentSettings(tools=(ADD, f"{MODULE}:Notes"))
    check_environment_settings(settings, num_rewards=1)
    with pytest.raises(ConfigError, match="tools give no rewards"):
        check_environment_settings(settings, num_rewards=0)


@pytest.mark.parametrize("name", ["Guess", "AsyncGuess", "makes_guess"])
def test_good_environments_are_accepted(name: str) -> None:
    check_environment_settings(EnvironmentSettings(factory=f"{MODULE}:{name}", max_memory="1GiB"), num_rewards=0)


def test_written_fields() -> None:
    assert written_fields(EnvironmentSettings(tools=(ADD,))) == ("turn", "episode")
    settings = EnvironmentSettings(factory=GUESS, has_states=True, players=2)
    assert written_fields(settings) == ("turn", "episode", "anchor", "role")
