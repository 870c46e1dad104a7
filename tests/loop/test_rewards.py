"""Rewards in runs: weights, gates, the penalty for length, failures, and the end of the worker processes."""

from __future__ import annotations

import itertools
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from attrs import evolve

from purerl.algos import dapo, gdpo, grpo, remax
from purerl.errors import ConfigError, RewardError
from purerl.loop.train import Summary, claim_directory, train
from purerl.rewards.kinds import format as format_kind
from purerl.rewards.settings import Gate, Reward, RewardWorkers
from purerl.rollouts.failures import FailureLimit
from purerl.rollouts.settings import Overlong
from purerl.store.rollouts import read_rollouts
from tests.rewards.processes import child_guards

from .rewards import first_is_even
from .runs import failures, records
from .small import fake

DIGITS, EXACT = "tests.loop.rewards:digits", "purerl.rewards.exact:exact_match"


# --- weights, gates, length --------------------------------------------------------------------------------------


def test_reward_is_the_gated_weighted_sum_and_components_are_logged_without_weights(tmp_path: Path) -> None:
    config = fake(rewards=(Reward(DIGITS, weight=3.0), EXACT), gates=("tests.loop.rewards:first_is_even",))
    summary = train(config, directory=tmp_path / "run")
    for row in read_rollouts(summary.directory / "rollouts", 1):
        correct = sum(a == b for a, b in zip(row["completion"], _answer(summary, row), strict=False))
        expected = (correct + (correct == 3 == len(row["completion"]))) * first_is_even(row["completion"], {})
        assert sum(row["reward"]) == pytest.approx(expected)
    record = records(summary)[1]
    assert {"reward/digits", "reward/exact_match", "reward/first_is_even"} <= set(record)
    assert 0 < record["reward/first_is_even"] < 1
    assert record["reward/mean"] <= 3 * record["reward/digits"] + record["reward/exact_match"]


def _answer(summary: Summary, row: dict[str, Any]) -> str:
    table = parquet.read_table(summary.directory / "prepared" / "train.parquet")
    return table.column("answer")[row["example"]].as_py()


def constant(completion: str, example: Any) -> float:
    return 0.5


def test_function_objects_have_weights_and_can_be_gates(tmp_path: Path) -> None:
    rewards = [Reward(constant, weight=4.0)]
    record = records(train(fake(), rewards=rewards, gates=[first_is_even], directory=tmp_path / "run"))[1]
    assert record["reward/constant"] == 0.5
    assert record["reward/mean"] == pytest.approx(2.0 * record["reward/first_is_even"])


FORMAT = format_kind.Config(pattern="[0-4].*")


def test_a_kind_is_a_reward_in_a_run_and_decides_what_is_correct(tmp_path: Path) -> None:
    evaluate = evolve(fake().evaluate, temperature=1.0)
    rewards, gates = (Reward(config=FORMAT, weight=3.0),), (Gate(config=FORMAT, name="gate"),)
    config = fake(rewards=rewards, gates=gates, evaluate=evaluate)
    summary = train(config, directory=tmp_path / "run")
    for row in read_rollouts(summary.directory / "rollouts", 1):
        assert sum(row["reward"]) == 3.0 * (row["completion"][:1] in set("01234"))
    first, second = records(summary)[:2]
    assert 0 < second["reward/format"] == second["reward/gate"] == second["reward/mean"] / 3 < 1
    assert 0 < first["eval/accuracy"] == first["eval/reward/format"] < 1
    assert 'kind = "format"' in (summary.directory / "config.toml").read_text()
    assert train(config, directory=tmp_path / "run").was_finished, "the configuration that was written is the same"


def test_kinds_can_be_mixed_with_function_objects(tmp_path: Path) -> None:
    rewards = [constant, FORMAT, Reward(constant, name="again", weight=2.0)]
    record = records(train(fake(), rewards=rewards, directory=tmp_path / "run"))[1]
    assert record["reward/mean"] == pytest.approx(0.5 + record["reward/format"] + 2 * record["reward/again"])


def sometimes(completion: str, example: Any) -> dict[str, float] | None:
    return None if completion[:1] in "01234" else {"first": float(completion[:1] == "7"), "constant": 0.25}


def test_rewards_may_have_components_and_may_be_none(tmp_path: Path) -> None:
    summary = train(fake(), rewards=[sometimes], directory=tmp_path / "run")
    record = records(summary)[1]
    assert 0 < record["reward/valid_fraction"] < 1
    assert record["reward/constant"] == 0.25
    assert record["reward/mean"] == pytest.approx(record["reward/first"] + 0.25)
    for row in read_rollouts(summary.directory / "rollouts", 1):
        has_reward = sometimes(row["completion"], {}) is not None
        assert has_reward == (row["completion"][:1] not in "01234")
        assert any(row["mask"]) == has_reward


def zeta(completion: str, example: Any) -> float:
    return float(len(completion))


def alpha(completion: str, example: Any) -> float:
    return -float(completion.count("1"))


def test_components_are_in_the_order_of_the_rewards(tmp_path: Path) -> None:
    weighted, plain = gdpo.Config(weights=(1.0, 0.0)), gdpo.Config()
    advantages = []
    for algorithm, rewards in ((weighted, [zeta, alpha]), (plain, [zeta]), (plain, [alpha])):
        config = fake(algorithm=algorithm, max_steps=1)
        summary = train(config, rewards=rewards, directory=tmp_path / "run", fresh=True)
        advantages.append([row["advantage"] for row in read_rollouts(summary.directory / "rollouts", 1)])
    assert advantages[0] == advantages[1] != advantages[2]


def test_length_penalty_changes_the_advantage_but_not_the_logged_reward(tmp_path: Path) -> None:
    rollout = evolve(fake().rollout, samples_per_prompt=16, overlong=Overlong(buffer=4, factor=2.0))
    summary = train(fake(rollout=rollout, max_steps=1), rewards=[constant], directory=tmp_path / "run")
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in read_rollouts(summary.directory / "rollouts", 1):
        groups.setdefault(row["group"], []).append(row)
    num_different = 0
    for rows in groups.values():
        lengths = [sum(row["action"]) for row in rows]
        for row, length in zip(rows, lengths, strict=True):
            for longer_row, longer in zip(rows, lengths, strict=True):
                num_different += length < longer
                assert (row["advantage"][-1] > longer_row["advantage"][-1]) == (length < longer)
    assert num_different
    record = records(summary)[1]
    assert record["reward/mean"] == 0.5
    assert -2.0 < record["reward/overlong"] < 0


# --- failures ----------------------------------------------------------------------------------------------------


def fragile(completion: str, example: Any) -> float:
    if completion[:1] in set("01234"):
        raise ValueError(f"too small: {completion}")
    return float(completion[:1] == "7")


def test_failed_rows_are_masked_out_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = fake(reward_workers=RewardWorkers(max_failure_rate=1.0), max_steps=3)
    with caplog.at_level(logging.WARNING):
        summary = train(config, rewards=[fragile], directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 1)
    failed = [row for row in rows if row["completion"][:1] in set("01234")]
    assert failed
    assert all(not any(row["mask"]) and sum(row["reward"]) == 0 for row in failed)
    assert all(any(row["mask"]) for row in rows if row not in failed)
    record = records(summary)[1]
    assert record["reward/failed"] == len(failed) / len(rows)
    assert record["reward/valid_fraction"] == 1 - record["reward/failed"]
    assert record["reward/timed_out"] == 0
    assert "eval/failed" in records(summary)[0]
    assert len(caplog.records) == 1, "only the first failure of a run is a warning"
    assert "ValueError: too small: " in caplog.records[0].getMessage()
    logged = [failure for failure in failures(summary.directory) if failure["step"] == 1]
    assert sorted(failure["completion"] for failure in logged) == sorted(row["completion"] for row in failed)
    assert {failure["function"] for failure in logged} == {"tests.loop.test_rewards:fragile"}
    assert all(f["kind"] == "raised" and f"too small: {f['completion']}" in f["traceback"] for f in logged)
    assert {failure["row"] for failure in logged} == {f"{row['group']}/{row['row'] % 4}" for row in failed}


def test_too_many_failures_stop_the_run_with_the_first_traceback(tmp_path: Path) -> None:
    (tmp_path / "my_broken_reward.py").write_text("def broken(completion, example):\n    return example['anwser']\n")
    path = f"{tmp_path}/my_broken_reward.py"
    with pytest.raises(RewardError) as caught:
        train(fake(rewards=(f"{path}:broken",)), directory=tmp_path / "run")
    sys.path.remove(str(tmp_path))
    assert (
        str(caught.value)
        == f"""too many completions failed; the first failure:
  | {path}:broken raised
  | Traceback (most recent call last):
  |   File "{path}", line 2, in broken
  |     return example['anwser']
  |            ~~~~~~~^^^^^^^^^^
  | KeyError: 'anwser'
  got:  4 of 16 already
  need: at most 3, with max_failure_rate = 0.1
  do:   fix the function, its server or the example, or raise reward_workers.timeout or .max_failure_rate; \
the run can be resumed"""
    )
    assert len(failures(tmp_path / "run")) == 4
    assert child_guards() == []


def test_run_stopped_by_failures_is_resumed_with_a_higher_failure_rate(tmp_path: Path) -> None:
    strict, lenient = RewardWorkers(), RewardWorkers(max_failure_rate=1.0)
    with pytest.raises(RewardError, match="raise .*max_failure_rate; the run can be resumed"):
        train(fake(reward_workers=strict, evaluate=None), rewards=[fragile], directory=tmp_path / "run")
    summary = train(fake(reward_workers=lenient, evaluate=None), rewards=[fragile], directory=tmp_path / "run")
    assert summary.steps == 4


def _failing(*calls: int) -> Any:
    """A reward function that fails in these calls, which are counted from 1, and is 1 in all others."""
    counter = itertools.count(1)

    def reward(completion: str, example: Any) -> float:
        if next(counter) in calls:
            raise ValueError("failed")
        return 1.0

    return reward


def test_failure_rate_is_that_of_all_rounds_of_a_step(tmp_path: Path) -> None:
    rollout = evolve(fake().rollout, max_resample_rounds=2)
    config = fake(algorithm=dapo.Config(), rollout=rollout, max_steps=1, evaluate=None)
    third_round = range(33, 49)
    summary = train(config, rewards=[_failing(*third_round[:3])], directory=tmp_path / "run")
    assert records(summary)[1]["reward/failed"] == 3 / 48
    with pytest.raises(RewardError, match="got:  5 of 48 already\n  need: at most 4, with max_failure_rate = 0.1"):
        train(config, rewards=[_failing(*third_round[:6])], directory=tmp_path / "run", fresh=True)


def test_rows_without_their_greedy_baseline_count_in_the_failure_rate_of_the_step(tmp_path: Path) -> None:
    def failing() -> Any:
        greedy_calls = itertools.count()

        def reward(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
            if len(completions) == 1 and next(greedy_calls) == 0:  # a greedy completion is scored alone
                raise ValueError("failed")
            return [1.0] * len(completions)

        return reward

    config = fake(algorithm=remax.Config(), num_minibatches=1, max_steps=1, evaluate=None)
    with pytest.raises(RewardError, match="got:  4 of 16 already\n  need: at most 3, with max_failure_rate = 0.1"):
        train(config, rewards=[failing()], directory=tmp_path / "run")
    config = evolve(config, reward_workers=RewardWorkers(max_failure_rate=0.25))
    summary = train(config, rewards=[failing()], directory=tmp_path / "run", fresh=True)
    assert records(summary)[1]["reward/failed"] == 4 / 16


@pytest.mark.parametrize(("calls", "allowed"), [((2,), True), ((2, 3), True), ((1, 2, 4), False)])
def test_a_few_failures_in_a_short_step_are_tolerated(calls: tuple[int, ...], allowed: bool, tmp_path: Path) -> None:
    config = fake(batch_size=1, max_steps=1, evaluate=None)
    run = partial(train, config, rewards=[_failing(*calls)], directory=tmp_path / "run")
    if allowed:
        assert records(run())[1]["reward/failed"] == len(calls) / 4
        return
    with pytest.raises(RewardError, match="got:  3 of 4 already\n  need: at most 2, with max_failure_rate = 0.1"):
        run()


def test_failure_rate_0_tolerates_no_failure(tmp_path: Path) -> None:
    config = fake(max_steps=1, evaluate=None, reward_workers=RewardWorkers(max_failure_rate=0.0))
    with pytest.raises(RewardError, match="got:  1 of 16 already\n  need: at most 0, with max_failure_rate = 0"):
        train(config, rewards=[_failing(5)], directory=tmp_path / "run")


@pytest.mark.slow
def test_hang_is_reported_at_its_timeout_and_a_list_that_hangs_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 40 rows hangs, for 20 seconds together."""
    seen: list[tuple[int, int]] = []  # failures in the file, and warnings, whenever a failure is counted

    def add(limit: FailureLimit, failure: Any) -> None:
        seen.append((len(failures(tmp_path / "run")), len(caplog.records)))
        original(limit, failure)

    original = FailureLimit.add
    monkeypatch.setattr(FailureLimit, "add", add)
    workers = RewardWorkers(timeout=1.0, num_workers=2)
    config = fake(rewards=("tests.loop.rewards:hangs",), reward_workers=workers, batch_size=10, evaluate=None)
    with pytest.raises(
        RewardError, match=r"(?s)hangs timed out.*rewards.py\", line .* in hangs.*got:  5 of 40 already"
    ):
        train(config, directory=tmp_path / "run")
    assert seen == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]
    assert "hangs timed out" in caplog.records[0].getMessage()
    assert child_guards() == []


def nothing(completion: str, example: Any) -> None:
    return


def test_step_without_any_reward_changes_nothing(tmp_path: Path) -> None:
    for algorithm in (gdpo.Config(), gdpo.Config(weights=(1.0,)), grpo.Config()):
        config = fake(algorithm=algorithm, max_steps=1, evaluate=None)
        summary = train(config, rewards=[nothing], directory=tmp_path / "run", fresh=True)
        record = records(summary)[1]
        assert record["rollout/kept_fraction"] == 0 == record["reward/valid_fraction"]
        assert not list((summary.directory / "rollouts").glob("*.parquet"))


def test_finished_run_has_ended_its_workers(tmp_path: Path) -> None:
    train(fake(max_steps=1), directory=tmp_path / "run")
    assert child_guards() == []


def test_rewind_removes_the_failures_of_later_steps(tmp_path: Path) -> None:
    directory = claim_directory(tmp_path / "run", fake())
    directory.log({"step": 0})
    for step in (1, 2, 3):
        directory.log({"step": step})
        directory.log_failure({"step": step})
    directory.rewind(2)
    assert [failure["step"] for failure in failures(tmp_path / "run")] == [1, 2]
    directory.rewind(0)
    directory.release()
    assert not directory.failures.exists(), "the next failure is the first one again"


def test_missing_column_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train(fake(rewards=("tests.rewards.functions:compute_score",)), directory=tmp_path / "run")
    assert (
        str(caught.value)
        == """reward 'tests.rewards.functions:compute_score' reads columns that the data set does not have
  got:  prompt, completion, answer
  need: also data_source, reward_model
  do:   rename a column of the data set, or use another reward function"""
    )
