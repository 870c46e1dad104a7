"""Models whose scores are rewards: they are routed, normalized, clipped and gates as functions are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve

from purerl.algos import gdpo
from purerl.backends.fake import trainer as fake_trainer
from purerl.config.schema import Role, RunConfig
from purerl.data.settings import Data
from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.rewards.results import RewardResult
from purerl.rewards.settings import Gate, Reward
from purerl.rollouts.scoring.rows import with_scores
from purerl.rollouts.types import Trajectory
from purerl.runs.evaluation import evaluation_of_model, evaluation_of_run, run_evaluation
from purerl.store.rollouts import read_rollouts
from tests.data.made import write
from tests.data.runs import EVALUATE, config, save_model, verl_rows

from . import dialogs
from .classifiers import write_scores

EVEN, CONSTANT = "tests.loop.rewards:first_is_even", "tests.loop.rewards:constant"
SOURCES = ("gsm8k", "math_1", "math_2")
FAKE = fake_trainer.Config(vocab_size=14)
CONTENTS = "{%- for message in messages -%}{{ message.content }}{%- endfor -%}"


def run_of(folder: Path, rewards: Sequence[Reward], gates: Sequence[Gate] = (), **changes: object) -> RunConfig:
    """A run with the model "digit", whose score is the last digit of a completion."""
    save_model(folder)
    rows = [{**row, "data_source": SOURCES[k % 3]} for k, row in enumerate(verl_rows(9))]
    role = Role(model=write_scores(folder / "digit", float, template=CONTENTS), trainer=FAKE)
    data = Data(files=(write(folder / "rows.parquet", rows),))
    evaluate = evolve(
        EVALUATE,
        data=write(folder / "problems.jsonl", rows[:6]),
        temperature=1.0,
        samples_per_prompt=4,
        accuracy_reward=None,
    )
    settings = {"max_steps": 2, "evaluate": evaluate, "roles": {"rewards": {"digit": role}}, **changes}
    return config(folder, data, rewards=tuple(rewards), gates=tuple(gates), **settings)


def digit(completion: str) -> float:
    return float(completion[-1]) if completion[-1:].isdecimal() else -1.0


def test_a_model_scores_the_rows_of_its_data_sources_normalized_and_clipped_and_may_be_a_gate(tmp_path: Path) -> None:
    scored = Reward(role="digit", data_source="math_*", mean=4.0, std=2.0, clip=(-1.0, 1.0), weight=0.5)
    rewards = [Reward(EVEN, data_source="gsm8k"), Reward(CONSTANT, data_source="math_1"), scored]
    gate = Gate(role="digit", name="floor", at_least=3.0, data_source="math_1")
    summary = train(run_of(tmp_path, rewards, [gate]), directory=tmp_path / "run")
    rows = [row for step in (1, 2) for row in read_rollouts(summary.directory / "rollouts", step)]
    seen = set()
    for row in rows:
        source, value = SOURCES[row["example"] % 3], digit(row["completion"])
        assert row.get("reward/digit") == (None if source == "gsm8k" else value)
        assert row.get("reward/floor") == (value if source == "math_1" else None)
        contribution = 0.5 * min(max((value - 4) / 2, -1), 1)
        is_even = float(row["completion"][:1] in {*"02468"})
        opened = {"gsm8k": is_even, "math_1": (1 + contribution) * (value >= 3), "math_2": contribution}
        assert sum(row["reward"]) == pytest.approx(opened[source])
        assert any(row["mask"])
        seen.add((source, value >= 3))
    assert {("math_1", False), ("math_1", True)} <= seen


@pytest.mark.parametrize("history", ["append", "rerender"])
def test_a_gate_that_is_a_model_leaves_the_rewards_of_an_environment(history: str, tmp_path: Path) -> None:
    role = Role(model=write_scores(tmp_path / "digit", float, template=CONTENTS), trainer=FAKE)
    config = dialogs.rerendered(
        environment=dialogs.game(history=history), evaluate=None, roles={"rewards": {"d": role}}
    )
    gates = (Gate(role="d", at_least=5.0),)
    settings = evolve(config, rewards=(Reward(CONSTANT, weight=10.0), Reward(role="d")), gates=gates)
    summary = train(settings, directory=tmp_path / "run")
    rows = [row for step in (1, 2) for row in read_rollouts(summary.directory / "rollouts", step)]
    for row in rows:
        score = row["reward/d"] or 0.0  # of the last row of an episode
        expected = (row.get("reward/environment") or 0.0) + (10 + score) * (score >= 5)
        assert sum(row["reward"]) == pytest.approx(expected)
    assert {(row["reward/d"] or 0.0) >= 5 for row in rows} == {True, False}
    assert any(row["reward/environment"] for row in rows)


def test_several_rewards_read_one_score(tmp_path: Path) -> None:
    rewards = [Reward(role="digit"), Reward(role="digit", name="small", clip=(-1.0, 1.0))]
    summary = train(run_of(tmp_path, rewards, algorithm=gdpo.Config()), directory=tmp_path / "run")
    for row in read_rollouts(summary.directory / "rollouts", 1):
        assert row["reward/digit"] == row["reward/small"] == digit(row["completion"])
        assert sum(row["reward"]) == row["reward/digit"] + min(row["reward/digit"], 1.0)


def test_a_model_decides_what_is_correct_if_it_is_named(tmp_path: Path) -> None:
    settings = run_of(tmp_path, [Reward(role="digit"), Reward(CONSTANT)])
    train(settings, directory=tmp_path / "run")
    assert evaluation_of_run(tmp_path / "run", {}).accuracy_rewards == (CONSTANT,), "not by a score of any scale"
    [problems] = run_evaluation(evaluation_of_run(tmp_path / "run", {"accuracy_reward": "digit"})).values()
    attempts = [attempt for problem in problems for attempt in problem.attempts]
    assert {attempt.is_correct for attempt in attempts} == {True, False}
    assert all(attempt.is_correct == (digit(attempt.completion) >= 1) for attempt in attempts)


def test_rows_that_only_a_model_would_score_need_it(tmp_path: Path) -> None:
    some = Reward(role="digit", data_source="math_1")
    with pytest.raises(ConfigError, match=r"^no reward applies to some rows of .*\n  got:  the data_source 'gsm8k'"):
        train(run_of(tmp_path, [some]), directory=tmp_path / "run")
    typo = Reward(role="digit", data_source="math-*")
    with pytest.raises(ConfigError, match="^data_source of the reward 'digit' has no effect\n  got:  'math-\\*'"):
        train(run_of(tmp_path, [Reward(CONSTANT), typo]), directory=tmp_path / "run")
    settings = run_of(tmp_path, [some])
    with pytest.raises(ConfigError, match="^role of the reward 'digit'\n"):
        evaluation_of_model(settings.model, settings.evaluate, rewards=[some], generator=settings.generator)


# --- one row -------------------------------------------------------------------------------------------------------


def row_of(result: RewardResult, *, length: int = 6) -> Trajectory:
    fields = {
        "tokens": [*range(length)],
        "action": [False, *[True] * (length - 1)],
        "mask": [False, *[result.reward is not None] * (length - 1)],
        "reward": [0.0] * (length - 1) + [result.reward or 0.0],
    }
    return Trajectory(fields, {}, result)


def scored_row(rewards: Sequence[Reward], gates: Sequence[Gate] = (), value: float = 1.0) -> Trajectory:
    """A row with `value` of the function m:f, and the scores 2 and 4 of the steps that end at its tokens 3 and 5."""
    old = RewardResult({"f": value}, {"f": value}, by_function={"m:f": {"f": value}, "step": {}})
    named = {each.full_name: each for each in (Reward("m:f"), *rewards)}
    [row] = with_scores([row_of(old)], {"step": [(3, 2.0), (5, 4.0)]}, named, {g.full_name: g for g in gates})
    return row


def test_the_score_of_each_step_is_normalized_clipped_and_weighted() -> None:
    row = scored_row([Reward(role="step", mean=1.0, std=2.0, clip=(0.0, 1.0), weight=3.0)])
    assert row.fields["reward"] == [0, 0, 0, 1.5, 0, 1 + 3.0]
    assert row.result.components == {"f": 1.0, "step": 6.0}
    assert row.result.weighted_components == {"f": 1.0, "step": 4.5}
    assert row.result.reward == sum(row.fields["reward"])


def test_the_threshold_of_a_gate_is_for_the_sum_of_the_steps() -> None:
    steps = Reward(role="step")
    assert scored_row([steps], [Gate(role="step", at_least=6.0)]).fields["reward"] == [0, 0, 0, 2, 0, 5]
    closed = scored_row([steps], [Gate(role="step", at_least=6.5)])
    assert closed.fields["reward"] == [0.0] * 6
    assert closed.result.weighted_components == {"f": 0.0, "step": 0.0}
    assert closed.result.components == {"f": 1.0, "step": 6.0}
    assert any(closed.fields["mask"]), "a reward of 0 is trained"


def test_a_sum_that_float32_cannot_hold_is_a_failure() -> None:
    row = scored_row([Reward(role="step", weight=1e38)])
    assert row.result.failure is not None
    assert row.result.failure.traceback == "float32 cannot hold the sum: step is 6e+38, the weighted sum is 6e+38\n"
    assert not any(row.fields["mask"])
