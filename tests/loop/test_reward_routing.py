"""Rewards for some data sources, in runs and evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import gdpo
from purerl.config.schema import RunConfig
from purerl.data.settings import Data
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.rewards.settings import Gate, Reward
from purerl.runs.dry_run import dry_run
from purerl.runs.evaluation import evaluation_of_model, evaluation_of_run, run_evaluation, write_json
from purerl.store.rollouts import read_rollouts
from tests.data.made import write
from tests.data.runs import EVALUATE, config, save_model, verl_rows

from .runs import records

EVEN, INDEX, CONSTANT = (f"tests.loop.rewards:{name}" for name in ("first_is_even", "index_of", "constant"))
SOURCES = ("gsm8k", "math_1", "math_2")


def _rows(sources: tuple[str, ...] = SOURCES, count: int = 9) -> list[dict[str, Any]]:
    return [{**row, "data_source": sources[k % len(sources)]} for k, row in enumerate(verl_rows(count))]


def _config(folder: Path, *rewards: Reward, **changes: Any) -> RunConfig:
    save_model(folder)
    data = Data(files=(write(folder / "rows.parquet", _rows()),))
    problems = write(folder / "problems.jsonl", _rows(SOURCES[:2], 4))
    evaluate = evolve(EVALUATE, data=problems, temperature=1.0, samples_per_prompt=4)
    return config(folder, data, **{"rewards": rewards, "evaluate": evaluate, "max_steps": 2, **changes})


def test_rewards_apply_to_the_rows_of_their_data_sources(tmp_path: Path) -> None:
    rewards = [Reward(EVEN, data_source="gsm8k", weight=2.0), Reward(INDEX, data_source="math_*", weight=0.5)]
    gate = Gate(CONSTANT, at_least=2.0, data_source="math_1")
    summary = train(_config(tmp_path, *rewards, gates=(gate,)), directory=tmp_path / "run")
    sources = set()
    for row in (row for step in (1, 2) for row in read_rollouts(summary.directory / "rollouts", step)):
        source, is_even = SOURCES[row["example"] % 3], row["completion"][:1] in {*"02468"}
        sources.add(source)
        assert sum(row["reward"]) == {"gsm8k": 2.0 * is_even, "math_1": 0.0, "math_2": 0.5 * row["example"]}[source]
        assert row["reward/index_of"] == (None if source == "gsm8k" else row["example"])
        assert row.get("reward/constant") == (1.0 if source == "math_1" else None)
    assert sources == {*SOURCES}
    record = records(summary)[1]
    assert record["reward/valid_fraction"] == 1
    assert record["reward/first_is_even"] <= 1 < record["reward/index_of"], "means over the rows that have it"


def test_the_first_reward_that_applies_decides_what_is_correct(tmp_path: Path) -> None:
    rewards = [Reward(EVEN, data_source="gsm8k"), Reward(INDEX, data_source="math_*"), Reward(CONSTANT, weight=0.0)]
    settings = _config(tmp_path, *rewards)
    train(settings, directory=tmp_path / "run")
    evaluation = evaluation_of_run(tmp_path / "run", {})
    assert evaluation.accuracy_rewards == (EVEN, INDEX, CONSTANT)
    [problems] = run_evaluation(evaluation).values()
    for problem in problems:
        for attempt in problem.attempts:
            is_even = attempt.completion[:1] in {*"02468"}
            assert attempt.is_correct == (is_even if problem.index % 2 == 0 else True), "problems alternate"
    write_json(tmp_path / "all.json", evaluation, {"problems": problems})
    assert json.loads((tmp_path / "all.json").read_text())["accuracy_reward"] == [EVEN, INDEX, CONSTANT]


def test_components_have_the_order_of_the_rewards_whatever_rows_come_first(tmp_path: Path) -> None:
    """The weights of GDPO are in this order: with weight 0 for the second reward, its rows have advantage 0."""
    rewards = [Reward(EVEN, data_source="math_*"), Reward(EVEN, name="other", data_source="gsm8k")]
    settings = _config(tmp_path, *rewards, algorithm=gdpo.Config(weights=(1.0, 0.0)), evaluate=None)
    summary = train(settings, directory=tmp_path / "run")
    rows = [row for step in (1, 2) for row in read_rollouts(summary.directory / "rollouts", step)]
    learned = {SOURCES[row["example"] % 3] for row in rows if any(row["advantage"])}
    assert learned
    assert "gsm8k" in {SOURCES[row["example"] % 3] for row in rows}
    assert learned <= {"math_1", "math_2"}


def test_rows_without_a_reward_and_patterns_without_rows_are_refused_before_the_run(tmp_path: Path) -> None:
    def refusal(*rewards: Reward, check: Any = None, **changes: Any) -> str:
        settings = _config(tmp_path, *rewards, **changes)
        with pytest.raises(ConfigError) as caught:
            dry_run(settings, None, fresh=False) if check is None else check(settings)
        return str(caught.value)

    some = Reward(EVEN, data_source=["gsm8k", "math_1"])
    for check in (None, lambda settings: train(settings, directory=tmp_path / "run")):
        assert refusal(some, check=check).startswith(
            f"no reward applies to some rows of '{tmp_path}/rows.parquet'\n  got:  the data_source 'math_2' (3 rows)\n"
        )
    typo = Reward(INDEX, data_source="math-*")
    assert refusal(Reward(CONSTANT), typo).startswith(f"data_source of the reward '{INDEX}' has no effect\n")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_an_evaluation_of_a_model_needs_a_reward_for_each_problem_but_not_for_other_data(tmp_path: Path) -> None:
    settings = _config(tmp_path)
    both = [Reward(EVEN, data_source="gsm8k"), Reward(INDEX, data_source=["math_*", "other"])]
    evaluated = {"generator": settings.generator}
    evaluation_of_model(settings.model, settings.evaluate, rewards=both, **evaluated)
    with pytest.raises(ConfigError, match=r"the data_source 'math_1' \(2 rows\)"):
        evaluation_of_model(settings.model, settings.evaluate, rewards=both[:1], **evaluated)


def test_an_environment_rewards_rows_to_which_no_function_applies(tmp_path: Path) -> None:
    environment = EnvironmentSettings(factory="tests.loop.games:Evens")
    rewards = [Reward(CONSTANT, data_source="math_*", weight=10.0)]
    settings = _config(tmp_path, *rewards, environment=environment, evaluate=None)
    summary = train(settings, directory=tmp_path / "run")
    record = records(summary)[1]
    assert record["reward/valid_fraction"] == 1
    for row in read_rollouts(summary.directory / "rollouts", 1):
        is_math = row["example"] % 3 > 0
        assert sum(row["reward"]) == pytest.approx((row["reward/environment"] or 0.0) + 10.0 * is_math)
        assert row["reward/constant"] == (1.0 if is_math else None)
