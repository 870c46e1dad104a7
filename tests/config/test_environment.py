"""The section `environment` of a configuration: how it is read and written, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from purerl.config.check import accuracy_rewards_of, check
from purerl.config.schema import RunConfig
from purerl.config.structure import dumps, read_toml
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.recipes import resolve
from purerl_cli.main import app
from tests.loop.small import fake

GUESS, ADD = "tests.envs.environments:Guess", "tests.envs.environments:add"
SFT = ("algorithm.kind=sft", "rollout=", "evaluate=", "rewards=", "generator=")
FACTORY = f"environment.factory={GUESS}"


def _error(*settings: str) -> str:
    with pytest.raises(ConfigError) as error:
        check(resolve("addition", settings))
    return str(error.value)


def test_section_is_written_and_read_as_it_was(tmp_path: Path) -> None:
    settings = [FACTORY, "environment.kwargs.limit=4", 'environment.kwargs.names={a=[1, 2], "b c"=true}', "rewards="]
    config = resolve("addition", [*settings, "environment.max_memory=2GB", "environment.max_turns=3"])
    assert config.environment == EnvironmentSettings(
        factory=GUESS, kwargs={"limit": 4, "names": {"a": [1, 2], "b c": True}}, max_memory="2GB", max_turns=3
    )
    (tmp_path / "run.toml").write_text(dumps(config))
    assert read_toml(tmp_path / "run.toml", RunConfig) == config
    assert resolve(str(tmp_path / "run.toml"), ["environment.kwargs.limit=5"]).environment.kwargs["limit"] == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("environment.factori=a",), "environment.factori\n  got:  no such setting\n"),
        (("environment.factori=a",), "did you mean 'factory'?"),
        (("rollout.history=append",), "did you mean 'environment.history'?"),
        (("initial_run.rollout.history=append",), "initial_run.rollout.history\n  got:  no such setting\n"),
        (("trainer.seed=1",), "verl's 'trainer.seed' is written as seed = 1."),
        (("environment.max_turns=3",), "environment: factory, tools, mcp or url\n  got:  none of them"),
        ((FACTORY, "environment.max_turns=0"), "environment.max_turns\n  got:  0"),
        ((FACTORY, "environment.history=forget"), 'environment.history\n  got:  "forget"\n  need: one of: append'),
        ((FACTORY, "environment.kwargs.size=3"), "environment.kwargs\n  got:  {'size': 3}: got an unexpected keyword"),
        ((f"environment.tools=['{ADD}']", "environment.players=2"), "environment.players has no effect\n  got:  2"),
        (
            (f"environment.tools=['{ADD}']", "rewards="),
            "rewards is missing\n  need: completions are sampled",
        ),
        ((FACTORY, "rollout.overlong.buffer=2"), "rollout.overlong has no effect"),
        (("algorithm=gigpo", "num_minibatches=1"), "algorithm 'gigpo' cannot be used here"),
        ((FACTORY, "algorithm=gigpo", "num_minibatches=1"), "the field 'anchor'"),
        ((FACTORY, "algorithm=gigpo", "num_minibatches=1"), "do:   set environment.has_states=true"),
        ((FACTORY, "algorithm=rae", "num_minibatches=1"), "the field 'role'"),
        ((FACTORY, "algorithm=rae", "num_minibatches=1"), "do:   set environment.players"),
        (
            (FACTORY, *SFT),
            "environment has no effect",
        ),
    ],
)
def test_what_is_refused(settings: tuple[str, ...], message: str) -> None:
    assert message in _error(*settings)


def test_environment_gives_rewards_and_decides_what_is_correct() -> None:
    config = resolve("addition", [FACTORY, "rewards="])
    check(config)
    assert accuracy_rewards_of(config) == ("environment",)
    both = resolve("addition", [FACTORY])
    assert accuracy_rewards_of(both) == ("purerl.rewards.exact:exact_match",)
    tools = resolve("addition", [f"environment.tools=['{ADD}']"])
    assert accuracy_rewards_of(tools) == ("purerl.rewards.exact:exact_match",)


def test_plain_text_is_never_rendered_again(tmp_path: Path) -> None:
    environment = EnvironmentSettings(factory=GUESS, history="rerender")
    message = r"environment\.history has no effect\n  got:  'rerender'\n  need: chat messages"
    with pytest.raises(ConfigError, match=message):
        train(fake(rewards=(), environment=environment), directory=tmp_path / "run")


@pytest.mark.parametrize("name", ["gigpo", "rae"])
def test_algorithm_says_that_it_needs_an_environment(name: str) -> None:
    shown = CliRunner().invoke(app, ["algo", "show", name], env={"COLUMNS": "200"})
    assert "environment" in shown.stdout, shown.output
