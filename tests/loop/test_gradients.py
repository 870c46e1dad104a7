"""Gradients on request: against one backward pass for each row, and without an effect on the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from attrs import evolve
from tensordict import TensorDict

from purerl.algos import dpo, grpo
from purerl.algos.algebra import Algorithm, compute_loss, prepare_step
from purerl.algos.diagnostics import gradient_cosine, gradient_noise_scale
from purerl.algos.modifiers import kl_loss
from purerl.backends.fake import trainer as fake_trainer
from purerl.backends.fake.model import OUTPUTS, compute_outputs
from purerl.batch import select_fields, with_fields
from purerl.composition import Composition, with_modifiers
from purerl.config.check import check
from purerl.errors import ConfigError
from purerl.loop.metrics.gradients import gradient_metrics
from purerl.loop.train import train
from purerl.monitoring.debugging.settings import Debug
from purerl.settings import Model
from tests.algos.helpers import example, with_advantage

from .runs import records, without_times
from .small import fake, small_real

ALGORITHM = with_modifiers(grpo.algorithm(), kl_loss.Config(coef=0.1))
NAMES = {"row_grad_norm", "row_grad_norm_max", "gradient_noise_scale"}


def _trainer() -> fake_trainer.FakeTrainer:
    config = fake_trainer.Config(vocab_size=11, lr=0.1)
    model = Model("gradients", dtype="float64")
    return fake_trainer.build(config, model=model, role="policy", outputs=OUTPUTS, updates=10, seed=0)


def _batch(algorithm: Algorithm) -> TensorDict:
    batch = with_advantage(algorithm, example(algorithm))
    return with_fields(batch, temperature=torch.ones(len(batch), dtype=torch.float64))


def _gradients_by_hand(trainer: fake_trainer.FakeTrainer, algorithm: Algorithm, batch: TensorDict) -> list[Mapping]:
    """The gradient of the part of the loss of each row, or of each pair."""
    [objective] = algorithm.objectives
    step, counts = prepare_step(objective, batch)
    labels = batch["group"] if objective.unit == "group" else torch.arange(len(batch))
    gradients = []
    for label in labels[step["mask"].any(-1)].unique():
        part = step[labels == label]
        leaves = {name: weight.detach().clone().requires_grad_() for name, weight in dict(trainer.weights()).items()}
        outputs = compute_outputs(leaves, part, (*objective.outputs, *objective.metric_outputs), top_k=4)
        loss, _ = compute_loss(objective, with_fields(select_fields(part, objective.reads), **outputs), counts)
        gradients.append(dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)))
    return gradients


def _norm(gradient: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.stack([value.square().sum() for value in gradient.values()]).sum().sqrt()


def _sum(gradients: list[Mapping]) -> Mapping[str, torch.Tensor]:
    return {name: torch.stack([gradient[name] for gradient in gradients]).sum(0) for name in gradients[0]}


@pytest.mark.parametrize("algorithm", [ALGORITHM, dpo.algorithm()])
def test_they_are_those_of_one_backward_pass_for_each_row_or_pair(algorithm: Algorithm) -> None:
    trainer, batch = _trainer(), _batch(algorithm)
    by_hand = _gradients_by_hand(trainer, algorithm, batch)
    norms = torch.stack([_norm(gradient) for gradient in by_hand])
    assert 1 < len(norms) < len(batch)
    before = {name: weight.clone() for name, weight in dict(trainer.weights()).items()}
    metrics = gradient_metrics({"policy": trainer}, batch, algorithm.objectives)
    torch.testing.assert_close(dict(trainer.weights()), before, rtol=0, atol=0)
    assert metrics["policy/row_grad_norm"] == pytest.approx(float(norms.mean()), rel=1e-10)
    assert metrics["policy/row_grad_norm_max"] == pytest.approx(float(norms.max()), rel=1e-10)
    scale = gradient_noise_scale(norms, _norm(_sum(by_hand)))
    assert metrics["policy/gradient_noise_scale"] == pytest.approx(float(scale), rel=1e-8)


def test_the_cosine_is_that_of_the_terms_of_the_loss() -> None:
    trainer, batch = _trainer(), _batch(ALGORITHM)
    [objective] = ALGORITHM.objectives
    parts = [ALGORITHM._replace(objectives=(objective._replace(terms=(term,)),)) for term in objective.terms]
    first, second = (_sum(_gradients_by_hand(trainer, part, batch)) for part in parts)
    metrics = gradient_metrics({"policy": trainer}, batch, ALGORITHM.objectives)
    expected = float(gradient_cosine(first, second))
    assert metrics["policy/gradient_cosine/policy/ref_kl"] == pytest.approx(expected, rel=1e-8)
    assert 0 < abs(expected) < 1


def test_a_batch_without_counted_tokens_has_none() -> None:
    batch = _batch(ALGORITHM)
    empty = with_fields(batch, mask=torch.zeros_like(batch["mask"]))
    metrics = gradient_metrics({"policy": _trainer()}, empty, grpo.algorithm().objectives)
    assert metrics == {}


def test_only_the_requested_steps_have_them_and_nothing_else_changes(tmp_path: Path) -> None:
    train(fake(), directory=tmp_path / "plain")
    train(fake(debug=Debug(gradient_steps=(2, 4))), directory=tmp_path / "measured")
    plain, measured = (without_times(records(tmp_path / name)) for name in ("plain", "measured"))
    own = [{name.removeprefix("policy/") for name in record} & NAMES for record in measured]
    assert own == [set(), set(), NAMES, set(), NAMES]
    others = [{n: x for n, x in record.items() if n.removeprefix("policy/") not in NAMES} for record in measured]
    assert others == plain


@pytest.mark.slow
def test_a_model_of_transformers_has_them_and_trains_as_without_them(tmp_path: Path) -> None:
    config = small_real(max_steps=3, algorithm=Composition(grpo.Config(), (kl_loss.Config(coef=0.1),)))
    train(evolve(config, debug=Debug(gradient_steps=(1, 3))), directory=tmp_path / "run")
    train(config, directory=tmp_path / "plain")
    measured, plain = (records(tmp_path / name) for name in ("run", "plain"))
    for record in (measured[1], measured[3]):
        assert 0 < record["policy/row_grad_norm"] <= record["policy/row_grad_norm_max"]
        assert record["time/gradients"] > 0
        assert -1 <= record["policy/gradient_cosine/policy/ref_kl"] <= 1
    assert [each["policy/loss/policy"] for each in measured[1:]] == [each["policy/loss/policy"] for each in plain[1:]]
    assert [each["policy/grad_norm"] for each in measured[1:]] == [each["policy/grad_norm"] for each in plain[1:]]


def test_a_trainer_without_gradients_is_refused() -> None:
    class Other:
        """A trainer without the optional method."""

    with pytest.raises(ConfigError) as error:
        gradient_metrics({"policy": Other()}, TensorDict({}), ALGORITHM.objectives)
    assert str(error.value).startswith(
        "debug.gradient_steps\n  got:  the trainer Other of the policy\n  need: one with a method gradient"
    )


@pytest.mark.parametrize(
    ("steps", "message"),
    [((9,), "debug.gradient_steps has no effect"), ((0,), "gradient_steps\n  got:  [0]\n  need: numbers of steps")],
)
def test_steps_that_the_run_does_not_have_are_refused(steps: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check(fake(debug=Debug(gradient_steps=steps)))
    assert str(error.value).startswith(message)
