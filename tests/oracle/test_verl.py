"""Presets of verl against verl's own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from .agreement import assert_agree
from .compositions import Result, algorithm_of, completions, result_of

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: nox -s oracle")
actor = pytest.importorskip("verl.workers.config.actor", reason="verl is not installed: nox -s oracle")

SEEDS = range(25)
ACTOR = {"strategy": "fsdp", "rollout_n": 1, "ppo_mini_batch_size": 1, "ppo_micro_batch_size_per_gpu": 1}

# preset -> verl's advantage, verl's loss, settings of the loss
CASES: dict[str, tuple[Callable, Callable, dict[str, Any]]] = {
    "grpo": (core_algos.compute_grpo_outcome_advantage, core_algos.compute_policy_loss_vanilla, {}),
    "dr_grpo": (
        lambda **inputs: core_algos.compute_grpo_outcome_advantage(**inputs, norm_adv_by_std_in_grpo=False),
        core_algos.compute_policy_loss_vanilla,
        {},
    ),
    "rloo": (core_algos.compute_rloo_outcome_advantage, core_algos.compute_policy_loss_vanilla, {}),
    "opo": (core_algos.compute_opo_outcome_advantage, core_algos.compute_policy_loss_vanilla, {}),
    "reinforce_plus_plus_baseline": (
        core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage,
        core_algos.compute_policy_loss_vanilla,
        {},
    ),
    "gspo": (
        core_algos.compute_grpo_outcome_advantage,
        core_algos.compute_policy_loss_gspo,
        {"loss_agg_mode": "seq-mean-token-mean"},
    ),
    "dapo": (
        core_algos.compute_grpo_outcome_advantage,
        core_algos.compute_policy_loss_vanilla,
        {"clip_ratio_high": 0.28, "clip_ratio_c": 10.0},
    ),
}


def _verl(batch: TensorDict, estimator: Callable, loss: Callable, settings: dict[str, Any]) -> Result:
    mask = batch["mask"].double()
    advantage, _ = estimator(
        token_level_rewards=batch["reward"].clone(), response_mask=mask, index=batch["group"].numpy().astype(object)
    )
    mode = {"loss_agg_mode": settings["loss_agg_mode"]} if "loss_agg_mode" in settings else {}
    config = actor.ActorConfig(**ACTOR, **{name: value for name, value in settings.items() if name not in mode})
    logp = batch["logp"].clone().requires_grad_()
    value, _ = loss(batch["old_logp"], logp, advantage, mask, config=config, **mode)
    [gradient] = torch.autograd.grad(value, logp)
    return Result(advantage * mask, value.detach(), gradient)


# preset -> the largest relative difference, and its cause
DIFFERENCES: dict[str, dict[str, Any]] = {
    "reinforce_plus_plus_baseline": {"rtol": 1e-6, "cause": "verl adds 1e-8 to the variance, not to its root"},
    "gspo": {"rtol": 1e-6, "cause": "verl adds 1e-8 to the number of tokens of a row"},
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_preset_has_the_value_and_gradient_of_verl(name: str, seed: int) -> None:
    batch = completions(seed)
    ours = result_of(algorithm_of(f"{name}@verl"), batch)
    assert_agree("verl", ours, _verl(batch, *CASES[name]), **DIFFERENCES.get(name, {}))


def test_groups_of_one_row_keep_their_score() -> None:
    batch = completions(0, samples=1)
    scaled = {"rtol": 1e-5, "cause": "verl divides the score of a group of one row by 1 + 1e-6"}
    for name, difference in (("grpo", scaled), ("rloo", {})):
        assert_agree("verl", result_of(algorithm_of(f"{name}@verl"), batch), _verl(batch, *CASES[name]), **difference)
