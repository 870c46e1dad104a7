"""Models beside the policy: several teachers, other references, and references that follow the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file
from torch import Tensor

from purerl.algos import grpo, opd, ppo
from purerl.algos.modifiers import kl_loss, kl_reward
from purerl.backends.fake import trainer as fake_trainer
from purerl.backends.fake.model import BIGRAM, initial_weights
from purerl.composition import Composition
from purerl.config.requirements import requirements_of
from purerl.config.schema import Role, RunConfig
from purerl.errors import ConfigError, DataError
from purerl.loop.train import train
from purerl.opening.engines import open_trainer
from purerl.protocols import Trainer
from purerl.recipes.addition import character_tokenizer
from purerl.settings import Model
from purerl.store.checkpoint import newest
from purerl.store.rollouts import read_batch, read_rollouts
from purerl.store.settings import Checkpoint
from tests.data.made import write

from .runs import records, train_until, without_times
from .small import fake, small_real

KL = Composition(grpo.Config(), (kl_loss.Config(coef=0.1),))


def _bigram(config: RunConfig, model: Model | str, weights: Tensor | None = None) -> Trainer:
    """The fake trainer of `model`, with `weights` if given."""
    model = Model(model) if isinstance(model, str) else model
    trainer = fake_trainer.build(config.trainer, model=model, role="reference", outputs=("logp",), updates=0, seed=0)
    return trainer if weights is None else _with(trainer, weights)


def _with(trainer: fake_trainer.FakeTrainer, weights: Tensor) -> Trainer:
    trainer._weights = {BIGRAM: weights}
    return trainer


# --- several teachers --------------------------------------------------------------------------------------------


def _with_teachers(folder: Path, data_sources: list[str | None], **models: Path) -> RunConfig:
    """A step of a real model with several teachers, on two prompts of each data source."""
    rows = [
        {"prompt": f"{k:02d}+{n}0=", "answer": "100"} | ({"data_source": source} if source else {})
        for n, source in enumerate(data_sources)
        for k in range(2)
    ]
    return small_real(
        max_steps=3,
        algorithm=opd.Config(),
        data=write(folder / "rows.jsonl", rows),
        roles={"teachers": {name: Role(model=str(path)) for name, path in models.items()}},
        evaluate=None,
    )


def test_each_row_is_scored_by_the_teacher_of_its_data_source(
    prepared: Path, other_model: Path, tmp_path: Path
) -> None:
    teachers = {"math": prepared / "model", "code": other_model}
    config = _with_teachers(tmp_path, ["code", "math"], **teachers)
    config = evolve(config, model=Model(str(prepared / "model")), prepare_data=None)
    summary = train(config, directory=tmp_path / "run")
    folder = summary.directory / "rollouts"
    batch, rows = read_batch(folder, 1), read_rollouts(folder, 1)
    # The first two examples are of the data source "code"; the names are numbered in their order in the table.
    index = torch.tensor([int(row["example"] < 2) for row in rows])
    assert torch.equal(batch["teacher_index"], index)
    assert index.unique().tolist() == [0, 1]
    for number, name in enumerate(teachers):
        role = requirements_of(config).models[f"teachers.{name}"]
        trainer = open_trainer(f"teachers.{name}", role, 0, seed=config.seed)
        expected = trainer.score(batch, ("logp",))["logp"]
        own = batch["teacher_index"] == number
        assert torch.allclose(batch["teacher_logp"][own], expected[own], atol=1e-6)
        assert not torch.allclose(batch["teacher_logp"][~own], expected[~own], atol=1e-3)


@pytest.mark.parametrize(
    ("data_sources", "got"),
    [(["math", "code"], "code"), (["math", None], "a row without a value"), ([None, None], "no such column")],
)
def test_data_source_without_a_teacher_is_refused(
    data_sources: list[str | None], got: str, prepared: Path, other_model: Path, tmp_path: Path
) -> None:
    config = _with_teachers(tmp_path, data_sources, math=other_model, law=prepared / "model")
    with pytest.raises(DataError) as caught:
        train(config, directory=tmp_path / "run")
    assert str(caught.value) == (
        f"column 'data_source' of '{tmp_path}/rows.jsonl'\n"
        f"  got:  {got}\n"
        "  need: in every row one of: math, law, the names of roles.teachers"
    )


def test_teachers_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    def refusal(**changes: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            train(fake(**changes), directory=tmp_path / "run")
        return str(caught.value)

    teacher, opd_config = Role(model="/teacher"), opd.Config()
    assert refusal(roles={"teachers": {"a": teacher}}).startswith("roles.teachers has no effect")
    both = {"teacher": teacher, "teachers": {"a": teacher}}
    assert refusal(algorithm=opd_config, roles=both).startswith("roles.teacher and roles.teachers\n  got:  both")
    assert refusal(algorithm=opd_config, roles={"teachers": teacher}).startswith("roles.teachers\n  got:  no names")
    assert refusal(algorithm=opd_config).startswith("roles.teacher.model is missing")


# --- the reference -----------------------------------------------------------------------------------------------


def test_reference_can_be_another_model_than_the_initial_policy(tmp_path: Path) -> None:
    character_tokenizer().save_pretrained(tmp_path / "reference")
    path = str(tmp_path / "reference")
    config = fake(algorithm=KL, roles={"reference": Role(model=path)})
    summary = train(config, directory=tmp_path / "run")
    reference = _bigram(config, path)
    for step in (1, 4):
        batch = read_batch(summary.directory / "rollouts", step)
        assert torch.allclose(batch["ref_logp"], reference.score(batch, ("logp",))["logp"], atol=1e-6)
        assert not torch.allclose(batch["ref_logp"], batch["old_logp"], atol=1e-2)
    assert records(summary)[1]["policy/ref_kl"] > 0.01


@pytest.mark.parametrize(("every", "mix"), [(2, 0.25), (1, 0.5), (3, 1.0)])
def test_reference_that_follows_the_policy_equals_a_manually_mixed_copy(every: int, mix: float, tmp_path: Path) -> None:
    config = fake(
        max_steps=5,
        algorithm=KL,
        roles={"reference": Role(update_every=every, update_mix=mix)},
        checkpoint=Checkpoint(every=1, keep=9),
        evaluate=None,
    )
    directory = train(config, directory=tmp_path / "run").directory
    initial = Model(str(directory / "prepared" / "model"))
    mixed = initial_weights(initial, 14)[BIGRAM]
    for step in range(1, 6):
        batch = read_batch(directory / "rollouts", step)
        reference = _bigram(config, initial, mixed)
        assert torch.allclose(batch["ref_logp"], reference.score(batch, ("logp",))["logp"], atol=1e-5)
        weights = {
            role: load_file(directory / "checkpoints" / f"{step:06d}" / role / "weights.safetensors")[BIGRAM]
            for role in ("policy", "reference")
        }
        if step % every == 0:
            mixed = (1 - mix) * mixed + mix * weights["policy"]
        assert torch.allclose(weights["reference"], mixed, atol=1e-5)
    assert not torch.allclose(mixed, initial_weights(initial, 14)[BIGRAM], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("config", [fake, small_real], ids=["fake", "transformers"])
def test_interrupted_run_resumes_with_the_moved_reference(config: Any, tmp_path: Path) -> None:
    settings = config(
        max_steps=4,
        algorithm=Composition(ppo.Config(), (kl_reward.Config(coef=0.1),)),
        roles={"reference": Role(update_every=1, update_mix=0.5)},
        evaluate=None,
    )
    # In one directory, because the fake engine draws the weights of a model from its path.
    directory = tmp_path / "run"
    train(settings, directory=directory)
    metrics, rollouts = without_times(records(directory)), read_rollouts(directory / "rollouts", 4)
    train_until(3, settings, directory=directory, fresh=True)
    assert newest(directory / "checkpoints") == directory / "checkpoints" / "000002"
    train(settings, directory=directory)
    assert without_times(records(directory)) == metrics
    assert read_rollouts(directory / "rollouts", 4) == rollouts


def test_updates_of_a_model_that_cannot_follow_the_policy_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train(fake(algorithm=ppo.Config(), roles={"critic": Role(update_every=1)}), directory=tmp_path / "run")
    assert str(caught.value) == (
        "roles.critic.update_every has no effect\n  got:  1\n  need: a model that is not trained; ppo trains the critic"
        "\n  do:   leave roles.critic.update_every out"
    )
    with pytest.raises(ConfigError, match="update_mix\n  got:  1.5\n  need: above 0 and at most 1"):
        Role(update_every=1, update_mix=1.5)
    with pytest.raises(ConfigError, match="update_mix has no effect"):
        Role(update_mix=0.5)
