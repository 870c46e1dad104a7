"""Coefficients that adapt, and a mean over prompts: they change during a run, and a run resumes with them."""

from __future__ import annotations

from pathlib import Path

from purerl.algos import grpo
from purerl.algos.modifiers import entropy_bonus, kl_loss, kl_reward, reduction
from purerl.composition import Composition
from purerl.loop.train import train
from purerl.store.checkpoint import newest

from .runs import records, train_until, without_times
from .small import fake

MODIFIERS = (
    reduction.Config(by="prompt_mean"),
    kl_loss.Config(coef=0.1, target=0.01, horizon=100.0),
    kl_reward.Config(coef=0.1, target=0.01, horizon=100.0),
    entropy_bonus.Config(coef=0.01, target=10.0),
)
NAMES = ("kl_loss_coef", "kl_reward_coef", "entropy_coef")


def test_coefficients_change_from_step_to_step_and_are_part_of_a_checkpoint(tmp_path: Path) -> None:
    settings = fake(max_steps=4, algorithm=Composition(grpo.Config(), MODIFIERS), evaluate=None)
    directory = tmp_path / "run"
    train(settings, directory=directory)
    metrics = without_times(records(directory))
    for name in NAMES:
        values = [record[f"policy/{name}"] for record in metrics if record["step"]]
        assert len({*values}) == 4
    train_until(3, settings, directory=directory, fresh=True)
    assert newest(directory / "checkpoints") == directory / "checkpoints" / "000002"
    train(settings, directory=directory)
    assert without_times(records(directory)) == metrics
