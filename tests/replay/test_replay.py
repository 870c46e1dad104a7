"""Replays of real small runs: the run's own algorithm, another one, and other rewards."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from attrs import evolve

from purerl.algos import dapo, grpo, ppo, reinforce_plus_plus, rloo, spo
from purerl.algos.modifiers import bypass, entropy_bonus, importance_weight, kl_loss, kl_reward
from purerl.composition import Composition, build_algorithm
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError, DataError, InputError
from purerl.loop.train import train
from purerl.replay import (
    Numbers,
    ReplayedStep,
    mean_of,
    measure,
    notes,
    open_recording,
    parse_steps,
    replay,
)
from purerl.replay.scoring import open_scorer
from purerl.rewards.settings import Reward
from purerl.store.rollouts import read_batch
from purerl.store.step_files import step_path
from tests.data.made import write
from tests.loop.runs import records, train_until
from tests.loop.small import fake

DIGITS = "tests.loop.rewards:digits"
ONE_UPDATE = {"num_minibatches": 1}


def _config(algorithm: Any, **changes: Any) -> RunConfig:
    return fake(**{"algorithm": algorithm, "evaluate": None, "max_steps": 3} | changes)


@pytest.fixture(scope="module")
def grpo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of GRPO, with one update each, of which the run does not record `old_logp`."""
    return train(_config(grpo.Config(), **ONE_UPDATE), directory=tmp_path_factory.mktemp("runs") / "grpo").directory


def _replayed(run: Path, algorithm: Any = None, **options: Any) -> list[ReplayedStep]:
    other = build_algorithm(Composition(algorithm) if algorithm is not None else open_recording(run).config.algorithm)
    return [*replay(open_recording(run), other, **options)]


def _scored(run: Path, algorithm: Any, *rewards: Reward) -> tuple[list[ReplayedStep], dict[str, int]]:
    recording, other = open_recording(run), build_algorithm(Composition(algorithm))
    with open_scorer(recording, rewards, other) as score:
        return [*replay(recording, other, score=score)], score.failures


# --- the run's own algorithm -------------------------------------------------------------------------------------

ADAPTIVE = Composition(reinforce_plus_plus.Config(), (kl_reward.Config(coef=0.5, target=0.01),))


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        (rloo.Config(), ONE_UPDATE),
        (dapo.Config(), {}),
        (reinforce_plus_plus.Config(), {}),
        (ADAPTIVE, {}),
        (ppo.Config(), {}),
        (Composition(grpo.Config(), (importance_weight.Config(), entropy_bonus.Config())), {}),
    ],
    ids=["rloo", "dapo", "reinforce_plus_plus", "adaptive_kl", "ppo", "importance_weight"],
)
def test_own_algorithm_gives_the_recorded_advantages_bit_for_bit(
    algorithm: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    run = train(_config(algorithm, **changes), directory=tmp_path / "run").directory
    steps = [*replay(open_recording(run))]
    assert [step.is_exact for step in steps] == [True] * 3
    for step in steps:
        assert torch.equal(step.replayed.advantage, read_batch(run / "rollouts", step.step)["advantage"])
        assert step.replayed.advantage.any()
        assert step.keep.all()
        assert measure(step).difference == 0
    dropped = [record["rollout/kept_fraction"] < 1 for record in records(run)[1:]]
    assert any(dropped) == isinstance(algorithm, dapo.Config)


def test_resumed_run_with_a_state_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    data = write(tmp_path / "rows.jsonl", [{"prompt": f"{k}+{k}=", "answer": f"{2 * k}00"} for k in range(4)])
    config = _config(spo.Config(), data=data, max_steps=4)  # every step has the same prompts
    train_until(3, config, directory=tmp_path / "run")  # the checkpoint is that of step 2
    train(config, directory=tmp_path / "run")
    run = tmp_path / "run"
    assert [step.is_exact for step in _replayed(run)] == [True] * 4
    recorded = [step.recorded.advantage for step in _replayed(run)]
    carried, _ = _scored(run, spo.Config(), Reward(DIGITS))
    for step, advantage in zip(carried, recorded, strict=True):
        assert torch.equal(step.replayed.advantage, advantage), "its own rewards, and the state that the steps carry on"
    [last] = _replayed(run, grpo.Config(), steps=[4])
    assert not torch.equal(last.replayed.advantage, recorded[-1])
    [alone], [whole] = ([*replay(open_recording(run), build_algorithm(Composition(spo.Config(decay=0.5))), steps=each)]
                        [-1:] for each in ([4], [1, 2, 3, 4]))  # fmt: skip
    assert torch.equal(alone.replayed.advantage, whole.replayed.advantage), "the steps before are computed too"


def test_changed_record_is_not_bit_for_bit(grpo_run: Path, tmp_path: Path) -> None:
    run = _copy(grpo_run, tmp_path / "run")
    path = step_path(run / "rollouts", 2)
    table = parquet.read_table(path)
    advantage = table["advantage"].to_pylist()
    advantage[0][-1] = math.nextafter(advantage[0][-1], 1.0) + 1e-6
    column = pa.array(advantage, table.schema.field("advantage").type)
    parquet.write_table(table.set_column(table.column_names.index("advantage"), "advantage", column), path)
    steps = _replayed(run)
    assert [step.is_exact for step in steps] == [True, False, True]
    numbers = [*map(measure, steps)]
    assert "bit for bit in 2 of 3 steps, and not in 2: another version" in notes(
        open_recording(run), open_recording(run).algorithm, numbers, ()
    )[0]  # fmt: skip


def _copy(run: Path, target: Path) -> Path:
    import shutil

    shutil.copytree(run, target)
    return target


# --- another algorithm -------------------------------------------------------------------------------------------


def test_replay_is_what_a_run_with_the_other_algorithm_computes(grpo_run: Path, tmp_path: Path) -> None:
    """Both runs sample the same completions in their first step, with the same weights."""
    other = train(_config(rloo.Config(), max_steps=1, **ONE_UPDATE), directory=tmp_path / "rloo")
    recorded = read_batch(other.directory / "rollouts", 1)
    step = _replayed(grpo_run, rloo.Config())[0]
    assert torch.equal(step.batch["tokens"], recorded["tokens"])
    assert torch.equal(step.replayed.advantage, recorded["advantage"])
    [loss] = [value for name, value in records(other)[1].items() if name.startswith("policy/loss/")]
    assert step.replayed.loss == pytest.approx(loss, rel=1e-4)
    norm = sum(gradient.square().sum() for gradient in step.replayed.gradient.values()) ** 0.5
    assert norm > 0


def test_gradient_is_the_derivative_of_the_loss(grpo_run: Path) -> None:
    """RLOO's loss is linear in the log-probabilities, so it is their product with the gradient."""
    for step in _replayed(grpo_run, rloo.Config()):
        gradient, logp = step.replayed.gradient["logp"], step.batch["rollout_logp"]
        assert (gradient * logp).sum().item() == pytest.approx(step.replayed.loss, rel=1e-4)


def test_numbers_are_those_of_the_advantages(grpo_run: Path) -> None:
    for step in _replayed(grpo_run, rloo.Config()):
        numbers, mask = measure(step), step.batch["mask"]
        ours, theirs = step.recorded.advantage[mask].double(), step.replayed.advantage[mask].double()
        assert numbers.rows == 16
        assert numbers.kept == 1
        assert numbers.difference == pytest.approx((ours - theirs).abs().mean().item())
        assert numbers.correlation == pytest.approx(torch.corrcoef(torch.stack([ours, theirs]))[0, 1].item())
        assert numbers.opposite_sign == 0
        assert numbers.recorded_signal == numbers.signal == (step.recorded.advantage != 0).any(-1).double().mean()
        gradients = [outcome.gradient["logp"].flatten() for outcome in (step.recorded, step.replayed)]
        assert numbers.gradient_cosine == pytest.approx(torch.cosine_similarity(*gradients, dim=0).item(), abs=1e-6)


def test_groups_that_the_other_algorithm_drops_have_no_advantage(grpo_run: Path) -> None:
    kept = []
    for step in _replayed(grpo_run, dapo.Config()):
        kept.append(measure(step).kept)
        reward = step.batch["reward"].sum(-1)
        for group in step.batch["group"].unique():
            rows = step.batch["group"] == group
            assert step.keep[rows].all() == (reward[rows].max() > reward[rows].min())
        assert not step.replayed.advantage[~step.keep].any()
        assert not step.replayed.gradient["logp"][~step.keep].any()
    assert min(kept) < 1


def test_mean_leaves_out_numbers_that_are_not_defined() -> None:
    numbers = [
        Numbers._make([1, [0], 4, *[1.0] * 13, True]),
        Numbers._make([2, [1], 4, *[math.nan] * 5, *[3.0] * 8, True]),
    ]
    mean = mean_of(numbers)
    assert (mean["kept"], mean["loss"], mean["rows"]) == (1.0, 2.0, 4.0)
    assert "step" not in mean


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (ppo.Config(), "advantages .*\n  got:  no recorded old_value\n  need: old_value: the critic's estimate"),
        (
            Composition(grpo.Config(), (kl_loss.Config(),)),
            "loss .*\n  got:  no recorded ref_logp\n.*\n  do:   replay a",
        ),
        (Composition(grpo.Config(), (importance_weight.Config(),)), "no recorded old_logp\n.*\n.*importance_weight"),
    ],
)
def test_what_was_not_recorded_is_refused_by_name(algorithm: Any, message: str, grpo_run: Path) -> None:
    other = algorithm if isinstance(algorithm, Composition) else Composition(algorithm)
    with pytest.raises(InputError, match=message):
        next(replay(open_recording(grpo_run), build_algorithm(other)))


def test_loss_with_a_ratio_that_is_not_recorded_is_unknown(grpo_run: Path) -> None:
    """Bypass compares the policy with the generator. With the generator's own numbers the ratio would be 1."""
    recording, algorithm = open_recording(grpo_run), build_algorithm(Composition(grpo.Config(), (bypass.Config(),)))
    steps = [*replay(recording, algorithm)]
    assert all(math.isnan(step.replayed.loss) and not step.replayed.gradient for step in steps)
    assert steps[0].replayed.advantage.any()
    assert {step.missing for step in steps} == {("logp",)}
    assert (
        "did not record logp (under the current model"
        in notes(recording, algorithm, [*map(measure, steps)], ("logp",))[1]
    )


# --- other rewards -----------------------------------------------------------------------------------------------


def test_own_reward_gives_the_recorded_rewards(grpo_run: Path) -> None:
    steps, failures = _scored(grpo_run, grpo.Config(), Reward(DIGITS))
    assert not failures
    for step in steps:
        assert torch.equal(step.rewarded["reward"], step.batch["reward"])
        assert torch.equal(step.rewarded["mask"], step.batch["mask"])
        assert torch.equal(step.replayed.advantage, step.recorded.advantage)


def test_other_reward_changes_the_advantages(grpo_run: Path) -> None:
    steps, _ = _scored(grpo_run, grpo.Config(), Reward("tests.loop.rewards:constant", weight=2.0))
    for step in steps:
        assert len(step.rewarded["reward"].sum(-1).unique()) == 1
        assert not step.replayed.advantage.any()


def test_failed_reward_is_a_missing_sample(grpo_run: Path) -> None:
    steps, failures = _scored(grpo_run, grpo.Config(), Reward("tests.loop.rewards:fails_on_odd_answers"))
    missing = [~step.rewarded["mask"].any(-1) for step in steps]
    assert sum(int(rows.sum()) for rows in missing) == sum(failures.values()) > 0
    assert all(name.endswith("fails_on_odd_answers raised") for name in failures)
    for step, rows in zip(steps, missing, strict=True):
        assert not step.replayed.advantage[rows].any()


def test_components_come_from_rewards_that_score_again(grpo_run: Path) -> None:
    from purerl.algos import gdpo

    with pytest.raises(
        InputError, match="no recorded components\n.*\n  do:   score the completions again with --reward"
    ):
        next(replay(open_recording(grpo_run), gdpo.algorithm()))
    rewards = (Reward(DIGITS), Reward("tests.loop.rewards:first_is_even"))
    steps, _ = _scored(grpo_run, gdpo.Config(), *rewards)
    assert [step.rewarded["components"].shape[-1] for step in steps] == [2] * 3
    assert steps[0].replayed.advantage.any()


def test_rewards_that_cannot_score_again_are_refused(grpo_run: Path, tmp_path: Path) -> None:
    recording = open_recording(grpo_run)
    with pytest.raises(ConfigError, match="no_such"), open_scorer(recording, [Reward("tests.loop.rewards:no_such")],
                                                                 recording.algorithm):  # fmt: skip
        pass
    run = _copy(grpo_run, tmp_path / "run")
    [file] = (run / "prepared").glob("train.parquet")
    parquet.write_table(parquet.read_table(file).slice(1), file)
    changed = open_recording(run)
    with pytest.raises(DataError, match="have changed"), open_scorer(changed, [Reward(DIGITS)], changed.algorithm):
        pass


# --- recordings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a", "1-b", "", "1-2-3", "--"])
def test_steps_that_are_no_range_are_refused(text: str) -> None:
    if not text:
        assert parse_steps(text, [1, 2]) == (1, 2)
        return
    with pytest.raises(ConfigError, match=r"--steps\n  got:"):
        parse_steps(text, [1, 2, 3])


def test_directory_without_rollouts_is_refused(grpo_run: Path, tmp_path: Path) -> None:
    run = _copy(grpo_run, tmp_path / "run")
    for path in (run / "rollouts").iterdir():
        path.unlink()
    with pytest.raises(InputError, match="got:  no file in rollouts/"):
        open_recording(run)
    assert evolve(open_recording(grpo_run), steps=(1,)).steps == (1,)
