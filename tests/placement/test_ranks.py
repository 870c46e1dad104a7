"""Training on several ranks: the same results as one process, failures of one rank, and resuming."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import grpo, ppo
from purerl.algos.modifiers import bypass, kl_reward
from purerl.backends.hf.mesh import Mesh
from purerl.composition import Composition
from purerl.config.schema import Role, RunConfig
from purerl.loop.callbacks import Callbacks
from purerl.loop.callbacks.control import Control
from purerl.loop.train import train
from purerl.placement.settings import Placement
from purerl.recipes.addition import character_tokenizer
from purerl.rewards.judges.settings import Answer, Judge
from purerl.rewards.settings import Reward, RewardWorkers
from purerl.settings import Model
from purerl.store.checkpoint import saved_steps
from purerl.store.settings import Checkpoint
from tests.loop.classifiers import write_classifier
from tests.loop.runs import records, without_times
from tests.loop.small import fake, small_real
from tests.placement.worlds import Action, assert_close, run_world

pytestmark = pytest.mark.parallel

EXACT = Model("{run}/prepared/model", dtype="float64")
PPO = Composition(ppo.Config(), (kl_reward.Config(coef=0.05),))


def _one_off(**changes: Any) -> RunConfig:
    """A run that samples one step in advance."""
    rollout = evolve(fake().rollout, max_staleness=1, **changes)
    return fake(max_steps=5, model=EXACT, rollout=rollout, algorithm=Composition(grpo.Config(), (bypass.Config(),)))


CONFIGS = {
    "grpo": small_real(5, model=EXACT),
    "ppo, critic and kl": small_real(5, model=EXACT, algorithm=PPO, evaluate=None),
    "one step off policy": _one_off(),
}


def _assert_equal(directory: Path, expected: Path) -> None:
    assert [len(records(path)) for path in (directory, expected)] == [6, 6]
    assert_close(directory, expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_two_ranks_equal_one_process_in_every_metric(name: str, tmp_path: Path) -> None:
    train(CONFIGS[name], directory=tmp_path / "one")
    ended = run_world(CONFIGS[name], tmp_path / "two")
    assert [rank.status for rank in ended] == [0, 0], ended
    _assert_equal(tmp_path / "two", tmp_path / "one")
    assert "addition: step 5/5  " in ended[0].console
    assert ended[1].console == ""
    assert (tmp_path / "two/ranks/1.log").read_text().count("begins, process") == 1


def test_reward_models_score_on_two_ranks_as_in_one_process(tmp_path: Path) -> None:
    """One is whole on both ranks, and one is divided. A judge is asked about half of the rows on each rank."""
    path = write_classifier(tmp_path / "classifier", own=character_tokenizer())
    sharded = small_real(model=EXACT).trainer
    answer = Answer(pattern=r"(\d)", minimum=0.0, maximum=9.0)
    judge = Judge(template="{{ completion }}=", answer=answer, samples=3, temperature=1.0, max_tokens=8)
    roles = {
        "judge": Role(model=EXACT, judge=judge),
        "whole": Role(model=Model(path, dtype="float64")),
        "part": Role(model=Model(path, dtype="float64"), trainer=evolve(sharded, mesh=Mesh(shard=2))),
    }
    one = {name: evolve(role, trainer=None) for name, role in roles.items()}
    workers = RewardWorkers(max_failure_rate=0.9)
    rewards = [Reward(role="judge"), Reward(role="whole"), Reward(role="part", weight=0.5)]
    config = small_real(3, model=EXACT, rewards=tuple(rewards), reward_workers=workers)
    train(evolve(config, roles={"rewards": one}), directory=tmp_path / "one")
    ended = run_world(evolve(config, roles={"rewards": roles}), tmp_path / "two")
    assert [rank.status for rank in ended] == [0, 0], ended
    assert_close(tmp_path / "two", tmp_path / "one")
    assert len(records(tmp_path / "two")) == 4
    assert all(record["reward/failed"] < 0.5 for record in records(tmp_path / "two")[1:])


def test_requests_of_callbacks_are_carried_out_by_all_ranks(tmp_path: Path) -> None:
    def on_step(record: Mapping[str, Any], control: Control) -> None:
        if record["step"] == 2:
            [text] = control.sample(["1+2="], temperature=1.0)
            control.log("callback/length", len(text))
            control.evaluate()
            control.save()
        if record["step"] == 4:
            control.stop()

    def on_checkpoint(path: Path, control: Control) -> None:
        control.log("callback/saved", int(path.name))

    callbacks = Callbacks(on_step=on_step, on_checkpoint=on_checkpoint)
    evaluate = evolve(fake().evaluate, every=100)
    config = fake(9, model=EXACT, evaluate=evaluate, checkpoint=Checkpoint(every=100))
    train(config, directory=tmp_path / "one", callbacks=callbacks)
    ended = run_world(config, tmp_path / "two", callbacks=callbacks)
    assert [rank.status for rank in ended] == [0, 0], ended
    assert_close(tmp_path / "two", tmp_path / "one")
    two = records(tmp_path / "two")
    assert [record.get("callback/length") for record in two] == [
        record.get("callback/length") for record in records(tmp_path / "one")
    ]
    assert two[2]["callback/length"] is not None
    assert [record["step"] for record in two if "eval/accuracy" in record] == [0, 2, 4]
    assert [record.get("callback/saved") for record in two] == [None, None, None, 2.0, None]
    assert saved_steps(tmp_path / "two/checkpoints") == {2, 4}


def test_exception_in_a_callback_ends_all_ranks(tmp_path: Path) -> None:
    def on_step(record: Mapping[str, Any], control: Control) -> None:
        raise ZeroDivisionError("a bug of rank 0")

    ended = run_world(fake(2), tmp_path / "run", callbacks=Callbacks(on_step=on_step))
    assert [rank.status for rank in ended] == [1, 1]
    assert "ZeroDivisionError: a bug of rank 0" in ended[0].console


def test_groups_are_trained_in_the_order_in_which_they_finish(tmp_path: Path) -> None:
    """The groups may differ, but all ranks train the same ones, and each draw once."""
    ended = run_world(_one_off(order="finished"), tmp_path / "run")
    assert [rank.status for rank in ended] == [0, 0], ended
    assert max(record["rollout/staleness_max"] for record in records(tmp_path / "run")[1:]) <= 1


WAITING = Placement(timeout=5.0, heartbeat_timeout=30.0)
FAILURES = {
    "kill": "rank 1 has ended without an error message (was it killed?)",
    "raise": "rank 1 has failed: ZeroDivisionError: a bug in a callback",
    "another call": "rank 0: 'whether to stop'; rank 1: 'a call of the test'",
    "hang": "whether to stop: rank 1 did not arrive",
}


@pytest.mark.parametrize("name", FAILURES)
def test_failure_of_a_rank_ends_the_run_and_names_it(name: str, tmp_path: Path) -> None:
    train(fake(max_steps=1), directory=tmp_path / "prepared")  # so that no deadline is missed for imports
    config = fake(placement=WAITING if name == "hang" else Placement(timeout=60.0, heartbeat_timeout=60.0))
    ended = run_world(config, tmp_path / "run", action=Action(1, 3, name))
    assert ended[0].status == 1
    assert ended[1].status == (-9 if name == "kill" else 1)
    assert FAILURES[name] in ended[0].console
    assert FAILURES[name] in (tmp_path / "run/ranks/failed.txt").read_text()
    assert ended[1].console == ""
    if name == "raise":
        assert "  | ZeroDivisionError: a bug in a callback\n" in ended[0].console  # the end of the log
    if name == "hang":
        for rank, function in enumerate(("_wait", "before_step")):
            assert f"in {function}" in (tmp_path / f"run/ranks/{rank}.log").read_text()


def test_ranks_with_different_configurations_are_refused_before_the_run(tmp_path: Path) -> None:
    config = fake(max_steps=3)
    ended = run_world(config, tmp_path / "run", others=evolve(config, max_steps=4))
    assert [rank.status for rank in ended] == [1, 1]
    assert "max_steps\n  got:  3 on rank 0, 4 on rank 1\n  need: the same configuration" in ended[0].console
    assert not (tmp_path / "run/config.toml").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_run_resumes_after_a_rank_was_killed(rank: int, tmp_path: Path) -> None:
    config = fake(max_steps=5, model=EXACT)
    run_world(config, tmp_path / "expected")
    for directory in ("same", "other"):
        ended = run_world(config, tmp_path / directory, action=Action(rank, 4, "kill"))
        assert ended[rank].status == -9
        assert ended[1 - rank].status == 1
        assert saved_steps(tmp_path / directory / "checkpoints") == {2}
    assert [each.status for each in run_world(config, tmp_path / "same")] == [0, 0]
    assert without_times(records(tmp_path / "same")) == without_times(records(tmp_path / "expected"))
    weights = [tmp_path / name / "final/model.safetensors" for name in ("same", "expected")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    train(config, directory=tmp_path / "other")
    _assert_equal(tmp_path / "other", tmp_path / "expected")
