"""The number of steps and mini-batches, the warm-up of learning rates and of the critic, and what checkpoints hold."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file
from torch import Tensor

from purerl.algos import ppo
from purerl.backends.fake.model import BIGRAM, initial_weights
from purerl.config.requirements import schedule_of
from purerl.config.schema import Role
from purerl.errors import ConfigError
from purerl.loop.train import Summary, train
from purerl.settings import Model
from purerl.store.rollouts import read_rollouts
from purerl.store.settings import Checkpoint
from tests.backends.saved import FILES, saved_tensors
from tests.data.made import write
from tests.data.runs import config, save_model, verl_rows

from .runs import records, train_until, without_times
from .small import fake, small_real

# --- steps and mini-batches --------------------------------------------------------------------------------------


def _epochs(folder: Path, num_epochs: float, **changes: Any) -> Summary:
    """A run on 9 rows, 4 per step."""
    save_model(folder)
    data = write(folder / "rows.parquet", verl_rows(9))
    settings = config(folder, data, max_steps=None, num_epochs=num_epochs, **changes)
    return train(settings, directory=folder / f"run {num_epochs}")


@pytest.mark.parametrize(("num_epochs", "steps"), [(1.0, 3), (0.4, 1), (0.5, 2), (2.0, 5)])
def test_num_epochs_is_the_number_of_passes_over_the_data(num_epochs: float, steps: int, tmp_path: Path) -> None:
    summary = _epochs(tmp_path, num_epochs)
    assert summary.steps == steps
    assert json.loads((summary.directory / "data.json").read_text())["max_steps"] == steps
    rows = [row for step in range(1, steps + 1) for row in read_rollouts(summary.directory / "rollouts", step)]
    assert len({row["group"] for row in rows}) == 4 * steps
    assert len({row["example"] for row in rows}) == min(9, 4 * steps), "no row is drawn twice in one epoch"


def test_max_steps_is_the_number_of_steps_for_any_data() -> None:
    assert schedule_of(fake(max_steps=7)).num_steps(5) == 7
    assert schedule_of(fake(max_steps=None, num_epochs=0.001)).num_steps(5) == 1


@pytest.mark.slow
def test_minibatch_size_gives_the_number_of_minibatches(tmp_path: Path) -> None:
    # In one directory, because the fake engine draws the weights of a model from its path.
    metrics = [
        without_times(records(train(fake(**split), directory=tmp_path / "run", fresh=True)))
        for split in (
            {"num_minibatches": 4},
            {"num_minibatches": None, "minibatch_size": 1},
            {"num_minibatches": 1},
            {"num_minibatches": None, "minibatch_size": 4},
            {"num_minibatches": None},
        )
    ]
    assert metrics[0] == metrics[1] != metrics[2]
    assert metrics[2] == metrics[3] == metrics[4]


# --- warm-up -----------------------------------------------------------------------------------------------------


def test_warmup_ratio_is_a_fraction_of_all_optimizer_steps(tmp_path: Path) -> None:
    rows = [{"prompt": f"{k:02d}+10=", "answer": "100"} for k in range(12)]
    trainer = evolve(small_real().trainer, lr=1e-3, lr_scheduler="linear", warmup_steps=None, warmup_ratio=0.5)
    changes = {"trainer": trainer, "data": write(tmp_path / "rows.jsonl", rows), "evaluate": None}
    for steps in ({"max_steps": 6}, {"max_steps": None, "num_epochs": 2}):
        summary = train(small_real(num_minibatches=1, **steps, **changes), directory=tmp_path / "run", fresh=True)
        rates = [record["policy/learning_rate"] for record in records(summary)[1:]]
        assert rates == pytest.approx([1e-3 * factor for factor in (1 / 3, 2 / 3, 1, 1, 2 / 3, 1 / 3)])


def test_only_the_critic_is_trained_during_critic_warmup(tmp_path: Path) -> None:
    checkpoint = Checkpoint(every=1, keep=9)
    settings = fake(algorithm=ppo.Config(), critic_warmup=2, checkpoint=checkpoint, evaluate=None)
    summary = train(settings, directory=tmp_path / "run")
    initial = initial_weights(Model(str(summary.directory / "prepared" / "model")), 14, ("value",))

    def weights(role: str) -> list[Tensor]:
        """The policy's table or the critic's head, before the first step and after each step."""
        name = BIGRAM if role == "policy" else "value_head.weight"
        paths = [summary.directory / "checkpoints" / f"{k:06d}" / role / "weights.safetensors" for k in range(1, 5)]
        return [initial[name], *(load_file(path)[name] for path in paths)]

    def changed(role: str) -> list[bool]:
        values = weights(role)
        return [not torch.equal(before, after) for before, after in pairwise(values)]

    assert changed("critic") == [True, True, True, True]
    assert changed("policy") == [False, False, True, True]
    metrics = records(summary)
    assert ["policy/grad_norm" in record for record in metrics] == [False, False, False, True, True]
    assert ["critic/grad_norm" in record for record in metrics] == [False, True, True, True, True]


def test_learning_rate_of_the_policy_starts_after_critic_warmup(tmp_path: Path) -> None:
    trainer = evolve(small_real().trainer, lr=1e-3, lr_scheduler="linear", warmup_steps=0)
    settings = small_real(4, algorithm=ppo.Config(), critic_warmup=2, num_minibatches=1, trainer=trainer, evaluate=None)
    summary = train(settings, directory=tmp_path / "run")
    rates = {
        role: [record.get(f"{role}/learning_rate") for record in records(summary)[1:]] for role in ("policy", "critic")
    }
    assert rates["policy"] == [None, None, pytest.approx(1e-3), pytest.approx(5e-4)]
    assert rates["critic"] == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])
    _check_checkpoint(summary, ("policy", "critic"))


def test_critic_has_passes_and_mini_batches_of_its_own(tmp_path: Path) -> None:
    trainer = evolve(small_real().trainer, lr=1e-3, lr_scheduler="constant", warmup_steps=None)
    own = {"critic": Role(ppo_epochs=3, num_minibatches=2)}
    settings = small_real(
        2, algorithm=ppo.Config(), roles=own, num_minibatches=1, trainer=trainer, evaluate=None, checkpoint=Checkpoint()
    )
    summary = train(settings, directory=tmp_path / "run")
    steps = {role: int(saved_tensors(summary.checkpoint / role, "position")[""]) for role in ("policy", "critic")}
    assert steps == {"policy": 2, "critic": 2 * 3 * 2}
    metrics = without_times(records(summary))
    assert metrics[1]["policy/ratio"] == 1, "a single optimizer step of the policy needs no pass before it"
    train_until(1, settings, directory=tmp_path / "run", fresh=True)
    assert without_times(records(train(settings, directory=tmp_path / "run"))) == metrics


def _check_checkpoint(summary: Summary, roles: tuple[str, ...]) -> None:
    """The last checkpoint has no states of random generators, and no pickled objects."""
    state = torch.load(summary.checkpoint / "loop.pt", weights_only=True)
    assert set(state) == {"step", "num_draws", "transform", "in_flight", "curriculum"}
    assert (state["step"], state["num_draws"]) == (4, 16)
    for role in roles:
        files = {path.name for path in (summary.checkpoint / role).iterdir()}
        assert files == FILES
        stored = {name.partition(".")[0] for name in saved_tensors(summary.checkpoint / role)}
        assert stored == {"weights", "optimizer", "position", "replaced"}


def test_critic_warmup_that_leaves_no_step_for_the_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="critic_warmup\n  got:  4\n  need: less than the 4 steps of the run"):
        train(fake(algorithm=ppo.Config(), critic_warmup=4), directory=tmp_path / "run")
    with pytest.raises(ConfigError, match="critic_warmup\n  got:  3\n  need: less than the 3 steps of the run"):
        _epochs(tmp_path, 1.0, algorithm=ppo.Config(), critic_warmup=3)
    with pytest.raises(ConfigError, match="critic_warmup has no effect"):
        train(fake(critic_warmup=1), directory=tmp_path / "run")
