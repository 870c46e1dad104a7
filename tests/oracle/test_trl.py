"""Presets of TRL against the loss of TRL's trainers, which runs here without a model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos import reward_model
from purerl.batch import with_fields
from purerl.config.presets import presets

from .agreement import assert_agree
from .compositions import Result, algorithm_of, completions, result_of
from .test_trl_preferences import PRESETS as PREFERENCE_PRESETS
from .trl_step import SAMPLES, trl_result

trl = pytest.importorskip("trl", reason="TRL is not installed: nox -s oracle")

SEEDS = range(25)
# preset -> the trainer, settings that differ from TRL's defaults
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("GRPO", {}),
    "grpo_paper": ("GRPO", {"loss_type": "grpo"}),
    "dr_grpo": ("GRPO", {"loss_type": "dr_grpo", "scale_rewards": "none", "max_completion_length": 256}),
    "gspo": (
        "GRPO",
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    ),
    "bnpo": ("GRPO", {"loss_type": "bnpo"}),
    "cispo": ("GRPO", {"loss_type": "cispo", "epsilon_high": 5.0}),
    "sapo": ("GRPO", {"loss_type": "sapo"}),
    "luspo": (
        "GRPO",
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 2e-3, "epsilon_high": 2.5e-3},
    ),
    "vespo": (
        "GRPO",
        {"loss_type": "vespo", "use_vllm": True, "vllm_importance_sampling_mode": "token_truncate"},
    ),
    "rloo": ("RLOO", {}),
}


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """TRL makes tensors of the default dtype from numbers. Here they are float64, so that rounding hides nothing."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_preset_has_the_value_and_gradient_of_trl(name: str, seed: int) -> None:
    batch = completions(seed, samples=SAMPLES)
    assert_agree("TRL", result_of(algorithm_of(f"{name}@trl"), batch), trl_result(batch, *CASES[name]))


# settings of `reward_model`, and those of TRL's RewardTrainer
REWARD_MODEL_CASES: dict[str, tuple[dict[str, float], dict[str, Any]]] = {
    "default": ({}, {"center_rewards_coefficient": None}),
    "margin": ({"margin_coef": 1.0}, {"center_rewards_coefficient": None}),
    "centering": ({"centering_coef": 0.01}, {"center_rewards_coefficient": 0.01}),
}


def _trl_reward_model(batch: TensorDict, settings: dict[str, Any], columns: dict[str, Tensor]) -> Result:
    """TRL's loss of the scores at the last tokens, of all chosen rows before all rejected ones."""
    order = torch.cat([batch["chosen"].nonzero(), (~batch["chosen"]).nonzero()]).squeeze(-1)
    score, last = batch["classifier_score"].clone().requires_grad_(), batch["mask"].sum(-1)
    logits = score.gather(1, last[:, None])[order]
    stub = SimpleNamespace(
        args=SimpleNamespace(**settings),
        accelerator=SimpleNamespace(gather=lambda x: x, gather_for_metrics=lambda x: x),
        model=SimpleNamespace(training=False),
        _total_train_tokens=0,
        _tp_size=1,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    loss = trl.RewardTrainer.compute_loss(stub, lambda **_: SimpleNamespace(logits=logits), columns)
    [gradient] = torch.autograd.grad(loss, score)
    return Result(score.new_zeros(0), loss.detach(), gradient)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", REWARD_MODEL_CASES)
def test_loss_of_a_reward_model_has_the_value_and_gradient_of_trl(name: str, seed: int) -> None:
    own, theirs = REWARD_MODEL_CASES[name]
    batch = completions(seed, prompts=6, samples=2)
    margin = batch["greedy_score"].abs()
    batch = with_fields(batch, chosen=batch["row"] % 2 == seed % 2, classifier_score=batch["value"], margin=margin)
    columns = {"margin": margin[batch["chosen"]]} if own.get("margin_coef") else {}
    algorithm = reward_model.algorithm(reward_model.Config(**own))
    assert_agree("TRL", result_of(algorithm, batch), _trl_reward_model(batch, theirs, columns))


def test_every_executed_preset_of_trl_is_compared() -> None:
    compared = {f"{name}@trl" for name in (*CASES, *PREFERENCE_PRESETS)}
    assert {preset.name for preset in presets().values() if preset.library == "TRL"} == compared
