"""One step of GRPO in TRL, in verl and in purerl, by a preset of each: the same gradient of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.batch import with_fields

from .compositions import algorithm_of, result_of
from .trl_reference import model_of, parameter_gradient, rows_of, scored
from .trl_run import Run, config, draw_completions, run, size, targets, use_double_precision

trl = pytest.importorskip("trl", reason="TRL is not installed: nox -s oracle")
core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: nox -s oracle")
trainer_class = pytest.importorskip("purerl.adapters.frameworks.trl").trainer_class
verl_step = pytest.importorskip("tests.oracle.verl_step")


@pytest.fixture(autouse=True)
def double_precision(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_double_precision(trl.GRPOTrainer, monkeypatch)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def _run(trainer: type, **arguments: str) -> Run:
    """Two steps on the same completions: in the second one the policy is not the one that sampled them."""
    args = config(num_iterations=2, max_steps=2)
    return run(trainer, args, reward_funcs=[targets, size], rollout_func=draw_completions, **arguments)


def _in_verl(batch: TensorDict, estimator: str, loss_mode: str) -> Tensor:
    """verl's gradient with respect to `logp`, on two ranks with two micro-batches each."""
    advantage, _ = core_algos.get_adv_estimator_fn(estimator)(
        token_level_rewards=batch["reward"].clone(),
        response_mask=batch["mask"].double(),
        index=batch["group"].numpy().astype(object),
    )
    config = verl_step.actor_config(loss_mode)
    return verl_step.gradient_of_step(config, batch, advantage, ranks=2, micro_batches=2)[1]


@pytest.mark.parametrize("preset", ["grpo@trl", "grpo@verl"])
def test_a_step_has_the_same_gradient_in_trl_in_verl_and_in_purerl(preset: str) -> None:
    in_trl = _run(trainer_class(), algorithm=preset)
    rows = rows_of(in_trl.micro_batches[2:])
    model = model_of(in_trl.parameters[1])
    batch, logp, entropy = scored(model, rows)
    _, old, _ = scored(model_of(in_trl.parameters[0]), rows)
    batch = with_fields(batch, logp=logp.detach(), entropy=entropy.detach(), old_logp=old.detach())
    assert in_trl.logs[1]["clip_ratio/region_mean"] > 0

    of_logp: dict[str, Tensor] = {
        "purerl": result_of(algorithm_of(preset), batch).gradient,
        "purerl in verl": _in_verl(batch, f"purerl:{preset}", f"purerl:{preset}"),
    }
    if preset == "grpo@verl":
        of_logp["verl"] = _in_verl(batch, "grpo", "vanilla")
    found = {name: parameter_gradient(model, logp, gradient) for name, gradient in of_logp.items()}
    found["purerl in TRL"] = in_trl.gradient(1)
    if preset == "grpo@trl":
        found["TRL"] = _run(trl.GRPOTrainer).gradient(1)
    assert len(found) == 4
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, found["purerl"], rtol=1e-8, atol=1e-11, msg=_named(name))
    assert found["purerl"].abs().max() > 1e-4


def _named(name: str) -> Callable[[str], str]:
    return lambda text: f"{name}: {text}"
