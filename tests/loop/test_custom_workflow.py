"""A workflow of a user in a configuration: what it gets, its rows in training and evaluation, what is refused."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import gigpo, remax
from purerl.config.check import check
from purerl.config.schema import RunConfig
from purerl.config.structure import dumps, from_dict, read_toml, to_dict
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError, RolloutError
from purerl.evaluation.problem_results import metrics
from purerl.loop.train import train
from purerl.rollouts.custom import CheckedWorkflow
from purerl.rollouts.settings import Overlong, WorkflowSettings
from purerl.runs.dry_run import dry_run
from purerl.runs.evaluation import evaluation_of_run, run_evaluation

from .runs import records, without_times
from .small import fake

MODULE = "tests.loop.workflows"


def configured(
    function: str, *, rewards: tuple[str, ...] = (), fields: tuple[str, ...] = (), **kwargs: Any
) -> RunConfig:
    config = fake(max_steps=2, rewards=rewards)
    workflow = WorkflowSettings(f"{MODULE}:{function}", kwargs, fields)
    return evolve(config, rollout=evolve(config.rollout, workflow=workflow))


def test_workflow_trains_and_evaluates_and_is_closed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = configured("two_turns", fields=("turn", "anchor"), log=str(log))
    summary = train(config, directory=tmp_path / "run")
    assert summary.steps == 2
    *_, record = records(summary.directory)
    assert 0 <= record["reward/even"] <= 2
    assert record["eval/accuracy"] == record["eval/accuracy"]
    lines = log.read_text().splitlines()
    made = [json.loads(line) for line in lines if line != "closed"]
    assert made[0] == {"samples": 4, "temperature": 1.0, "seed": config.seed}
    assert {(each["samples"], each["temperature"]) for each in made[1:]} == {(1, 0.0)}
    assert lines.count("closed") == len(made)
    assert lines[2] == "closed", "that of an evaluation is closed before the next one is made"
    evaluation = evaluation_of_run(summary.directory, {})
    assert metrics(run_evaluation(evaluation), evaluation.settings) == summary.after


def test_workflow_of_one_turn_gives_the_metrics_of_a_run_without_one(tmp_path: Path) -> None:
    config = configured("single_turn", rewards=("tests.loop.rewards:digits",))
    train(config, directory=tmp_path / "own")
    train(evolve(config, rollout=evolve(config.rollout, workflow=None)), directory=tmp_path / "usual")
    assert without_times(records(tmp_path / "own")) == without_times(records(tmp_path / "usual"))


@pytest.mark.parametrize("algorithm", [gigpo.Config(), remax.Config()], ids=["gigpo", "remax"])
def test_algorithms_that_read_more_fields(algorithm: Any, tmp_path: Path) -> None:
    config = evolve(configured("two_turns", fields=("turn", "anchor")), algorithm=algorithm, num_minibatches=1)
    assert train(config, directory=tmp_path / "run").steps == 2


def test_failed_workflow_is_a_missing_group(tmp_path: Path) -> None:
    config = configured("fails_sometimes")
    config = evolve(config, reward_workers=evolve(config.reward_workers, max_failure_rate=0.5), evaluate=None)
    train(config, directory=tmp_path / "run")
    assert [record.get("rollout/failed") for record in records(tmp_path / "run")][-2:] == [1, 0]


def test_configuration_as_toml(tmp_path: Path) -> None:
    def read(text: str) -> RunConfig:
        (tmp_path / "run.toml").write_text(text)
        return read_toml(tmp_path / "run.toml", RunConfig)

    config = configured("two_turns", fields=("turn",), log="log.txt")
    assert read(dumps(config)) == config
    short = to_dict(config) | {"rollout": to_dict(config.rollout) | {"workflow": f"{MODULE}:two_turns"}}
    assert from_dict(RunConfig, short).rollout.workflow == WorkflowSettings(f"{MODULE}:two_turns")


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"function": "no_such"}, "without no_such"),
        ({"function": "json"}, "rollout.workflow"),
        ({"function": "two_turns", "lag": 3}, "unexpected keyword argument 'lag'"),
        ({"function": "wrong_rows"}, "missing a required argument: 'what'"),
        ({"function": "two_turns", "samples": 3}, "rollout.workflow.kwargs"),
        ({"function": "two_turns", "fields": ("anchors",)}, "did you mean 'anchor'"),
        ({"function": "two_turns", "rewards": ("tests.loop.rewards:digits",)}, "the parameter score"),
        ({"function": "single_turn"}, "rewards is missing"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(configured(**changes))


def test_fields_must_be_declared_for_algorithms_that_read_them() -> None:
    with pytest.raises(ConfigError, match=r"add it to rollout\.workflow\.fields"):
        check(evolve(configured("two_turns", fields=("turn",)), algorithm=gigpo.Config()))


def test_workflow_and_environment_are_alternatives() -> None:
    environment = EnvironmentSettings(factory="tests.envs.environments:Guess")
    with pytest.raises(ConfigError, match="environment has no effect"):
        check(evolve(configured("two_turns"), environment=environment))


def test_penalty_for_length_needs_one_turn() -> None:
    with pytest.raises(ConfigError, match="overlong has no effect"):
        evolve(configured("two_turns").rollout, overlong=Overlong(buffer=1))


def test_rewards_are_optional_if_score_has_a_default() -> None:
    config = evolve(configured("with_optional_score"), evaluate=None)
    check(config)
    check(evolve(config, rewards=("tests.loop.rewards:digits",)))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no logp", "without the field rollout_logp"),
        ("no anchor", "without the field anchor"),
        ("unknown field", "'anchors'; did you mean 'anchor'"),
        ("length", "1 values in the field version"),
        ("group", "as in row_fields"),
        ("row", "need a different one each"),
        ("mask", "at a token that is no action"),
        ("result", "whose mask is not False"),
        ("text", "without the text 'completion'"),
    ],
)
def test_rows_that_cannot_be_used_stop_the_run(what: str, message: str, tmp_path: Path) -> None:
    config = evolve(configured("wrong_rows", what=what, fields=("anchor",)), evaluate=None)
    with pytest.raises(RolloutError, match=message):
        train(config, directory=tmp_path / "run")


@pytest.mark.parametrize(
    ("function", "message"),
    [("raises", "not subscriptable"), ("returns_nothing", "returned None"), ("no_list", "need a list")],
)
def test_function_that_makes_no_workflow_stops_the_run(function: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match=message):
        train(evolve(configured(function), evaluate=None), directory=tmp_path / "run")


def test_dry_run_reads_the_file_of_a_workflow_and_does_not_import_it(tmp_path: Path) -> None:
    path = tmp_path / "own_workflow.py"
    path.write_text("raise SystemExit('imported')\n\ndef own(sampling, score): ...\n")
    config = evolve(configured("two_turns"), evaluate=None)
    config = evolve(config, rollout=evolve(config.rollout, workflow=WorkflowSettings(f"{path}:own")))
    with pytest.raises(ConfigError, match="rewards is missing"):
        dry_run(config, tmp_path / "run", runs_code=False)
    notes = dry_run(evolve(config, rewards=("purerl.rewards.exact:exact_match",)), tmp_path / "run", runs_code=False)
    assert any(f"rollout.workflow {path}:own" in note for note in notes)
    typo = evolve(config, rollout=evolve(config.rollout, workflow=WorkflowSettings(f"{path}:owns")))
    with pytest.raises(ConfigError, match="owns"):
        dry_run(typo, tmp_path / "run", runs_code=False)


def test_close_that_fails_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def __call__(self, draw: Any, generate: Any) -> list[Any]:
            return []

        def close(self) -> None:
            raise OSError("no disk")

    with caplog.at_level(logging.WARNING):
        asyncio.run(CheckedWorkflow("own", Broken()).close())
    assert "the workflow own was not closed" in caplog.text
    assert "no disk" in caplog.text
