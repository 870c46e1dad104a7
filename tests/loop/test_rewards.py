"""Rewards in whole runs: weights, gates, failures, the worker processes' end, and what is refused before it begins."""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import gdpo, grpo
from purerl.algos.algebra import describe
from purerl.config.check import algorithm_of, check
from purerl.config.schema import Overlong, Reward, RewardWorkers, RunConfig
from purerl.config.structure import apply, from_dict, to_dict
from purerl.errors import ConfigError, RewardError
from purerl.loop.train import Summary, train
from purerl.recipes.addition import addition
from purerl.store.directory import claim
from purerl.store.rollouts import read_rollouts

from .rewards import first_is_even
from .small import fake

DIGITS, EXACT = "tests.loop.rewards:digits", "purerl.rewards.exact:exact_match"


def records(summary: Summary) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (summary.directory / "metrics.jsonl").read_text().splitlines()]


def failures(directory: Path) -> list[dict[str, Any]]:
    path = directory / "reward_errors.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# --- weights, gates, length --------------------------------------------------------------------------------------


def test_weights_and_gates_make_the_reward_and_each_component_is_logged_as_it_was_said(tmp_path: Path) -> None:
    config = fake(rewards=(Reward(DIGITS, weight=3.0), EXACT), gates=("tests.loop.rewards:first_is_even",))
    summary = train(config, directory=tmp_path / "run")
    for row in read_rollouts(summary.directory / "rollouts", 1):
        right = sum(a == b for a, b in zip(row["completion"], _answer(summary, row), strict=False))
        expected = (right + (right == 3 == len(row["completion"]))) * first_is_even(row["completion"], {})
        assert sum(row["reward"]) == pytest.approx(expected)
    line = records(summary)[1]
    assert {"reward/digits", "reward/exact_match", "reward/first_is_even"} <= set(line)
    assert 0 < line["reward/first_is_even"] < 1
    assert line["reward/mean"] <= 3 * line["reward/digits"] + line["reward/exact_match"]


def _answer(summary: Summary, row: dict[str, Any]) -> str:
    import pyarrow.parquet as parquet

    table = parquet.read_table(summary.directory / "prepared" / "train.parquet")
    return table.column("answer")[row["example"]].as_py()


def constant(completion: str, example: Any) -> float:
    return 0.5


def test_functions_given_as_objects_may_weigh_and_gate(tmp_path: Path) -> None:
    rewards = [Reward(constant, weight=4.0)]
    line = records(train(fake(), rewards=rewards, gates=[first_is_even], directory=tmp_path / "run"))[1]
    assert line["reward/constant"] == 0.5
    assert line["reward/mean"] == pytest.approx(2.0 * line["reward/first_is_even"])


def test_a_penalty_for_length_is_part_of_the_advantage_and_not_of_the_reward_that_is_logged(tmp_path: Path) -> None:
    rollout = evolve(fake().rollout, samples_per_prompt=16, overlong=Overlong(buffer=4, factor=2.0))
    summary = train(fake(rollout=rollout), rewards=[constant], directory=tmp_path / "run")
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in read_rollouts(summary.directory / "rollouts", 1):
        groups.setdefault(row["group"], []).append(row)
    varied = 0
    for rows in groups.values():
        length = [sum(row["action"]) for row in rows]
        for one, short in zip(rows, length, strict=True):
            for other, long in zip(rows, length, strict=True):
                varied += short < long
                assert (one["advantage"][-1] > other["advantage"][-1]) == (short < long)
    assert varied
    line = records(summary)[1]
    assert line["reward/mean"] == 0.5
    assert -2.0 < line["reward/overlong"] < 0


# --- failures ----------------------------------------------------------------------------------------------------


def fragile(completion: str, example: Any) -> float:
    if completion[:1] in set("01234"):
        raise ValueError(f"too small: {completion}")
    return float(completion[:1] == "7")


def test_a_row_whose_reward_fails_is_masked_out_counted_and_shown_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = fake(reward_workers=RewardWorkers(max_failure_rate=1.0), max_steps=3)
    with caplog.at_level(logging.WARNING):
        summary = train(config, rewards=[fragile], directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 1)
    bad = [row for row in rows if row["completion"][:1] in set("01234")]
    assert bad
    assert all(not any(row["mask"]) and sum(row["reward"]) == 0 for row in bad)
    assert all(any(row["mask"]) for row in rows if row not in bad)
    line = records(summary)[1]
    assert line["reward/failed"] == len(bad) / len(rows)
    assert line["reward/valid_fraction"] == 1 - line["reward/failed"]
    assert line["reward/timed_out"] == 0
    assert "eval/failed" in records(summary)[0]
    assert len(caplog.records) == 1
    assert "ValueError: too small: " in caplog.records[0].getMessage()
    told = [one for one in failures(summary.directory) if one["step"] == 1]
    assert [one["completion"] for one in told] == [row["completion"] for row in bad]
    assert {one["function"] for one in told} == {"tests.loop.test_rewards:fragile"}
    assert all(one["kind"] == "raised" and f"too small: {one['completion']}" in one["traceback"] for one in told)
    assert [one["row"] for one in told] == [f"{row['group']}/{row['row'] % 4}" for row in bad]


def test_too_many_failures_stop_the_run_with_the_first_traceback_and_leave_no_worker(tmp_path: Path) -> None:
    (tmp_path / "my_hopeless.py").write_text("def hopeless(completion, example):\n    return example['anwser']\n")
    path = f"{tmp_path}/my_hopeless.py"
    with pytest.raises(RewardError) as caught:
        train(fake(rewards=(f"{path}:hopeless",)), directory=tmp_path / "run")
    sys.path.remove(str(tmp_path))
    assert (
        str(caught.value)
        == f"""reward functions failed on too many completions; the first:
  | {path}:hopeless raised
  | Traceback (most recent call last):
  |   File "{path}", line 2, in hopeless
  |     return example['anwser']
  |            ~~~~~~~^^^^^^^^^^
  | KeyError: 'anwser'
  got:  16 of 16
  need: at most 0.1 of them
  do:   mend the function, or raise reward_workers.timeout or reward_workers.max_failure_rate; the run resumes"""
    )
    assert len(failures(tmp_path / "run")) == 16
    assert [one for one in multiprocessing.active_children() if "pebble" in one.name] == []


def test_no_worker_is_left_by_a_run_that_ends(tmp_path: Path) -> None:
    train(fake(max_steps=1), directory=tmp_path / "run")
    assert [one for one in multiprocessing.active_children() if "pebble" in one.name] == []


def test_failures_are_forgotten_with_the_steps_that_are_done_again(tmp_path: Path) -> None:
    place = claim(tmp_path / "run", fake(), fresh=False)
    for step in (1, 2, 3):
        place.log({"step": step})
        place.log_failure({"step": step})
    place.rewind(2)
    place.release()
    assert [one["step"] for one in failures(tmp_path / "run")] == [1, 2]


# --- settings ----------------------------------------------------------------------------------------------------


def test_a_reward_is_a_text_or_a_section() -> None:
    config = apply(addition(), ['rewards=["a:b", {function = "c:d", weight = 0.5}]', 'gates=["e:f"]'])
    assert config.rewards == (Reward("a:b"), Reward("c:d", weight=0.5))
    assert config.gates == ("e:f",)
    assert to_dict(config)["rewards"] == [{"function": "a:b", "weight": 1.0}, {"function": "c:d", "weight": 0.5}]
    assert from_dict(RunConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rewards=[1]", "rewards\n  got:  1\n  need: a section: keys and values"),
        (
            'rewards=[{function = "a:b", wieght = 1}]',
            "rewards.wieght\n  got:  no such setting\n  need: one that `purerl config` lists\n",
        ),
        ('rewards=[{function = "a:b", weight = inf}]', "rewards.weight\n  got:  inf\n  need: a finite number"),
        ("reward_workers.timeout=0", "reward_workers.timeout\n  got:  0.0\n  need: above 0, and finite"),
        ("reward_workers.max_failure_rate=1.5", "reward_workers.max_failure_rate\n  got:  1.5\n  need: from 0 to 1"),
        ("reward_workers.num_workers=0", "reward_workers.num_workers\n  got:  0\n  need: at least 1"),
        ("rollout.overlong.buffer=9", "rollout.overlong\n  got:  buffer 9\n  need: at most max_tokens, 4"),
        ("rollout.overlong={buffer = 2, factor = -1}", "rollout.overlong.factor\n  got:  -1.0\n  need: above 0, and"),
    ],
)
def test_a_wrong_setting_is_refused(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply(addition(), [setting])
    assert str(caught.value).startswith(message)


async def awaited(completion: str, example: Any) -> float:
    return 1.0


def _refused(*given: Any, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        train(fake(**changes), rewards=given, directory="/nonexistent/never/made")
    return str(caught.value)


def test_settings_without_effect_are_refused() -> None:
    nothing = {"algorithm": _sft(), "rollout": None, "evaluate": None, "generator": None, "rewards": ()}
    assert "gates has no effect" in _refused(gates=(EXACT,), **nothing)
    assert "reward_workers has no effect" in _refused(reward_workers=RewardWorkers(timeout=1.0), **nothing)
    assert "reward_workers.timeout has no effect" in _refused(constant, reward_workers=RewardWorkers(timeout=1.0))
    assert "reward_workers.num_workers has no effect" in _refused(constant, reward_workers=RewardWorkers(num_workers=2))
    assert "reward_workers.num_workers has no effect" in _refused(awaited, reward_workers=RewardWorkers(num_workers=2))
    overlong = evolve(fake().rollout, overlong=Overlong(buffer=2))
    assert "rollout.overlong has no effect" in _refused(algorithm=gdpo.Config(), rollout=overlong)
    assert "rewards.weight has no effect" in _refused(algorithm=gdpo.Config(), rewards=(Reward(DIGITS, weight=2.0),))
    few = _refused(algorithm=gdpo.Config(weights=(2.0,)), rewards=(DIGITS, EXACT))
    assert few == "algorithm.weights\n  got:  (2.0,)\n  need: one for each component of the 2 rewards, or none"
    assert "rewards\n  got:  'tests.loop.rewards:digits' 2 times" in _refused(rewards=(DIGITS, DIGITS))


def _sft() -> Any:
    from purerl.algos import sft

    return sft.Config()


def test_a_deadline_has_an_effect_on_what_is_awaited_and_on_what_is_named() -> None:
    given = {"tests.loop.test_rewards:awaited": awaited}
    check(fake(rewards=tuple(given), reward_workers=RewardWorkers(timeout=1.0)), given)
    check(fake(reward_workers=RewardWorkers(timeout=1.0, num_workers=2)))


def test_two_functions_of_one_name_are_refused() -> None:
    assert "two functions that are called" in _refused(lambda c, e: 1.0, lambda c, e: 0.0)


def test_a_column_that_a_reward_reads_is_asked_for_before_any_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train(fake(rewards=("tests.rewards.functions:compute_score",)), directory=tmp_path / "run")
    assert (
        str(caught.value)
        == """reward 'tests.rewards.functions:compute_score' reads columns that the data set does not have
  got:  prompt, completion, answer
  need: also data_source, reward_model
  do:   rename a column of the data set, or use another reward function"""
    )


def test_a_penalty_for_length_comes_before_the_algorithms_own_advantage() -> None:
    config = fake(rollout=evolve(fake().rollout, overlong=Overlong(buffer=2)))
    assert algorithm_of(fake()) == grpo.algorithm(fake().algorithm)
    assert "_overlong" in describe(algorithm_of(config).advantage.apply)
