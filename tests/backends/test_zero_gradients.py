"""Optimizer steps without a signal: all advantages are 0, and no other term of the loss has a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from purerl.algos import cispo, dr_grpo, grpo, gspo, reinforce_plus_plus_baseline, rloo
from purerl.algos.algebra import Algorithm, Objective, compute_advantages, prepare_step
from purerl.algos.modifiers import entropy_bonus, kl_loss
from purerl.backends.hf.settings import OptimizerSettings
from purerl.backends.hf.training.engine import HFTrainer
from purerl.batch import with_fields
from purerl.loop.update import score, scored_fields
from purerl.testing.batches import example_batch
from tests.backends.tiny import VOCAB_SIZE, make_trainer, write_model
from tests.backends.training import equal, make_step, parameters_of, train
from tests.ranks import check_cases

LAYOUT = ((0, "..aaa.aax"), (1, "..a"), (0, "...axaaaaa."), (1, "..aaaa"))
SETTINGS: dict[str, Any] = dict(lr=1e-2, weight_decay=0.5, lr_scheduler="linear", updates=6)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models"))


def _without_advantages(seed: int = 0) -> tuple[TensorDict, Objective, Any]:
    batch, objective, counts = make_step(seed)
    return with_fields(batch, advantage=torch.zeros_like(batch["advantage"])), objective, counts


def _report(trainer: HFTrainer, step: Any) -> dict[str, float]:
    return {name: float(m.total / m.weight) for name, m in trainer.step(*step).items() if m.weight}


def _state(trainer: HFTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer._optimizer_state().items()} | parameters_of(trainer)


@pytest.mark.parametrize("optimizer", [None, OptimizerSettings("torch.optim:SGD", {"momentum": 0.9})])
def test_a_skipped_step_changes_neither_weights_nor_moments_and_the_schedule_advances(path, optimizer):
    trainer = make_trainer(path, optimizer=optimizer, **SETTINGS)
    train(trainer, 2)
    before = _state(trainer)
    report = _report(trainer, _without_advantages())
    assert equal(_state(trainer), before)
    assert (report["skipped"], report["skipped/zero_gradient"], report["zero_gradient_fraction"]) == (1, 1, 1)
    assert (report["skipped/no_tokens"], report["skipped/nonfinite_gradient"], report["grad_norm"]) == (0, 0, 0)
    assert [report["learning_rate"], *(r["learning_rate"] for r in train(trainer))] == pytest.approx([4e-2 / 6, 0.5e-2])


def test_without_skipping_momentum_and_decay_change_the_weights_and_the_metric_is_the_same(path):
    for decay, betas in ((0.0, (0.9, 0.99)), (0.5, (0.0, 0.0))):
        settings = SETTINGS | {"weight_decay": decay, "betas": betas}
        trainer = make_trainer(path, skip_zero_gradients=False, **settings)
        train(trainer, 1)
        before = parameters_of(trainer)
        report = _report(trainer, _without_advantages())
        assert not equal(parameters_of(trainer), before)
        assert (report["skipped"], report["zero_gradient_fraction"], report["grad_norm"]) == (0, 1, 0)


def test_an_ordinary_step_has_a_signal(path):
    report = train(make_trainer(path, **SETTINGS), 1)[0]
    assert (report["skipped"], report["zero_gradient_fraction"]) == (0, 0)


@pytest.mark.parametrize("name", ["mask", "advantage"])
def test_other_reasons_are_counted_apart(path, name):
    batch, objective, counts = make_step(0)
    if name == "mask":
        step = prepare_step(objective, with_fields(batch, mask=torch.zeros_like(batch["mask"])))
        report = _report(make_trainer(path, **SETTINGS), (step[0], objective, step[1]))
    else:
        changed = with_fields(batch, advantage=batch["advantage"] * torch.inf)
        report = _report(make_trainer(path, **SETTINGS), (changed, objective, counts))
    reason = {"mask": "no_tokens", "advantage": "nonfinite_gradient"}[name]
    assert {key for key, value in report.items() if key.startswith("skipped") and value} == {
        "skipped",
        f"skipped/{reason}",
    }
    assert report["zero_gradient_fraction"] == (name == "mask")


# --- algorithms ----------------------------------------------------------------------------------------------------

BASES: dict[str, Any] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "gspo": gspo,
    "cispo": cispo,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
}
GRPO = grpo.algorithm(grpo.Config())
OTHER_TERMS: dict[str, Algorithm] = {
    "entropy_bonus": entropy_bonus.modify(entropy_bonus.Config(), GRPO),
    "kl_loss": kl_loss.modify(kl_loss.Config(), GRPO),
}


def _steps_with_equal_rewards(path: str, algorithm: Algorithm, *rewards: float) -> Iterator[dict[str, float]]:
    """The metrics of optimizer steps in which every completion of a prompt has the same reward."""
    policy = make_trainer(path, **SETTINGS)
    trainers = {"policy": policy, "reference": make_trainer(path, "reference", updates=0)}
    train(policy, 1)
    plain = example_batch(("reward", "advantage", "temperature"), LAYOUT)
    tokens = torch.randint(0, VOCAB_SIZE, plain["tokens"].shape, generator=torch.Generator().manual_seed(0))
    for reward in rewards:
        equal_rewards = torch.zeros_like(plain["reward"])
        equal_rewards[:, 0] = reward * (1 + plain["group"])  # a value of its own for each group
        batch = with_fields(plain, reward=equal_rewards, tokens=tokens)
        batch = score(trainers, batch, scored_fields(algorithm.objectives, algorithm.reads))
        _, batch = compute_advantages(algorithm, algorithm.advantage.init(), batch)
        (objective,) = algorithm.objectives
        step, counts = prepare_step(objective, batch)
        yield _report(policy, (step, objective, counts))


@pytest.mark.parametrize("name", BASES)
def test_equal_rewards_give_a_gradient_of_exactly_0(path: str, name: str) -> None:
    algorithm = BASES[name].algorithm(BASES[name].Config())
    for report in _steps_with_equal_rewards(path, algorithm, 0.0, 1.0, 0.1, -1 / 3, 1e6 / 7):
        assert (report["skipped/zero_gradient"], report["grad_norm"]) == (1, 0)


@pytest.mark.parametrize("name", OTHER_TERMS)
def test_a_step_in_which_another_term_has_a_gradient_is_taken(path: str, name: str) -> None:
    (report,) = _steps_with_equal_rewards(path, OTHER_TERMS[name], 1.0)
    assert (report["skipped"], report["zero_gradient_fraction"]) == (0, 0)


def test_a_router_that_is_balanced_has_a_gradient_of_its_own(tmp_path: Path) -> None:
    trainer = make_trainer(write_model(tmp_path, "qwen3_moe"), dtype="float32", router_aux_loss_coef=0.1, **SETTINGS)
    assert _report(trainer, _without_advantages())["skipped"] == 0


# --- resume and ranks ----------------------------------------------------------------------------------------------


def test_a_run_resumes_exactly_before_and_after_a_skipped_step(path: str, tmp_path: Path) -> None:
    trainer = make_trainer(path, **SETTINGS)
    train(trainer, 2)
    for step in (_without_advantages(), make_step(3)):
        folder = tmp_path / f"{trainer.position}"
        folder.mkdir()
        trainer.save(folder)
        resumed = make_trainer(path, **SETTINGS)
        resumed.load(folder)
        assert _report(resumed, step) == _report(trainer, step)
        assert equal(_state(resumed), _state(trainer))
        assert resumed.position == trainer.position


@pytest.mark.parallel
def test_all_ranks_decide_alike() -> None:
    check_cases("-m", "tests.backends.zero_gradient_ranks")
