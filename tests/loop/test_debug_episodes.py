"""Episodes of a configuration that are played in this process, as a debugger needs it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from purerl.config.schema import RunConfig
from purerl.envs.protocol import Observation
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError, DataError, RewardError
from purerl.recipes import resolve
from purerl.rewards.kinds import format as format_kind
from purerl.rollouts import format_episode, play
from purerl.rollouts.scripted import ScriptedGenerator
from purerl.runs.play import open_debug_workflow, play_row
from tests.envs.families import QWEN
from tests.loop.small import fake
from tests.recipes.made import write_model, write_problems

MODULE = "tests.loop.test_debug_episodes"
WHERE: list[tuple[str, int, Any]] = []


class Game:
    """Three turns, unless the model says that it gives up."""

    def reset(self, example, seed):
        WHERE.append(("reset", os.getpid(), threading.current_thread()))
        self.number = 0
        return Observation(messages=[{"role": "user", "content": example["answer"]}])

    def step(self, text, calls):
        if text == "0":
            raise ZeroDivisionError("given up")
        self.number += 1
        reward = float(text or 0)
        return Observation(messages=[{"role": "user", "content": "7"}], reward=reward, done=self.number == 3)

    def close(self):
        WHERE.append(("close", os.getpid(), threading.current_thread()))


def add(first: int, second: int) -> int:
    """Add two numbers."""
    WHERE.append(("add", os.getpid(), threading.current_thread()))
    return first + second


def is_five(completion, example):
    WHERE.append(("is_five", os.getpid(), threading.current_thread()))
    return float(completion == "5")


def fails(completion, example):
    raise KeyError("answer")


@pytest.fixture(autouse=True)
def where() -> list[tuple[str, int, Any]]:
    WHERE.clear()
    return WHERE


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with the data and the model that the configurations name."""
    from purerl.recipes.addition import prepare

    folder = tmp_path_factory.mktemp("run")
    (folder / "prepared").mkdir()
    prepare(folder / "prepared", seed=0)
    return folder


def _config(**changes: Any) -> RunConfig:
    environment = EnvironmentSettings(factory=f"{MODULE}:Game", timeout=0.01, num_workers=1)
    return fake(**{"rewards": (), "environment": environment} | changes)


def test_turns_that_are_given_are_played_in_the_main_thread(directory: Path) -> None:
    [row] = play_row(_config(), 3, turns=["12", "4", "1"], directory=directory)
    assert row.result.reward == 17
    assert format_episode(row).splitlines()[2:] == [
        "--- user", row.texts["ground_truth"], "--- assistant, reward 12", "12", "--- user", "7",
        "--- assistant, reward 4", "4", "--- user", "7", "--- assistant, reward 1", "1", "--- user", "7",
        "--- stop, reward 17",
    ]  # fmt: skip
    assert [(name, os.getpid(), threading.main_thread()) for name in ("reset", "close")] == WHERE, "no other episode"


def test_episode_ends_after_the_last_turn(directory: Path) -> None:
    [row] = play_row(_config(), 3, turns=["12"], directory=directory)
    assert (row.result.reward, row.texts["finish"], row.fields["truncated"]) == (12, "length", True)
    messages = json.loads(row.texts["messages"])
    assert [message["content"] for message in messages[1:]] == [row.texts["ground_truth"], "12", "7"]


def test_without_turns_the_model_samples_them(directory: Path) -> None:
    config = _config(environment=EnvironmentSettings(tools=(f"{MODULE}:add",)), rewards=(f"{MODULE}:is_five",))
    rows = [play_row(config, 3, directory=directory, sample=sample)[0] for sample in (0, 0, 1)]
    assert rows[0].fields == rows[1].fields
    assert rows[0].fields["tokens"] != rows[2].fields["tokens"]


def test_a_kind_of_reward_is_built_in_this_process(directory: Path) -> None:
    kind = format_kind.Config(pattern=r"\d", matched=2.0)
    config = _config(environment=EnvironmentSettings(tools=(f"{MODULE}:add",)), rewards=(kind,))
    assert [play_row(config, turns=[text], directory=directory)[0].result.reward for text in ("1", "a")] == [2, 0]


def test_exceptions_are_raised(directory: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="given up"):
        play_row(_config(), turns=["1", "0"], directory=directory)
    tools = EnvironmentSettings(tools=(f"{MODULE}:add",))
    with pytest.raises(RewardError, match="KeyError: 'answer'"):
        play_row(_config(environment=tools, rewards=(f"{MODULE}:fails",)), turns=["1"], directory=directory)


def test_calls_of_tools_are_written_in_the_format_of_the_model(tmp_path: Path) -> None:
    settings = [
        f"model={write_model(tmp_path / 'model', QWEN)}",
        f"data={write_problems(tmp_path)}",
        f"environment.tools=['{MODULE}:add']",
        f"rewards=['{MODULE}:is_five']",
        "data.validation_fraction=0.2",
    ]
    config = resolve("gsm8k", settings)
    call = '<tool_call>\n{"name": "add", "arguments": {"first": 2, "second": 3}}\n</tool_call>'
    [row] = play_row(config, turns=[call, "5"])
    assert [entry[0] for entry in WHERE] == ["add", "is_five"]
    assert {entry[1:] for entry in WHERE} == {(os.getpid(), threading.main_thread())}
    assert row.result.reward == 1
    assert format_episode(row).splitlines()[-7:] == [
        "--- assistant", 'call add {"first": 2, "second": 3}', "--- tool add", "5", "--- assistant", "5",
        "--- stop, reward 1",
    ]  # fmt: skip


def test_workflow_plays_any_example(directory: Path) -> None:
    from purerl.config.paths import resolve_paths

    workflow, task = open_debug_workflow(resolve_paths(_config(), directory))
    example = {"prompt": "1+1=", "answer": "2"}
    [row] = play(workflow, example, generator=ScriptedGenerator(task.chat, ["1", "2", "3"]))
    assert row.result.reward == 6


def test_what_cannot_be_played_is_refused(directory: Path) -> None:
    with pytest.raises(ConfigError, match="environment is missing"):
        play_row(fake(), directory=directory)
    with pytest.raises(ConfigError, match="no turn"):
        play_row(_config(), turns=[], directory=directory)
    with pytest.raises(DataError, match="need: a number from 0 to "):
        play_row(_config(), 10**6, turns=["1"], directory=directory)
    with pytest.raises(DataError, match="no such file"):
        play_row(_config(), turns=["1"])
