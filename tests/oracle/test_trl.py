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
from purerl.algos.parts.divergences import k1
from purerl.batch import with_fields
from purerl.presets import presets

from .agreement import assert_agree
from .compositions import Result, algorithm_of, completions, result_of
from .test_trl_preferences import PRESETS as PREFERENCE_PRESETS

trl = pytest.importorskip("trl", reason="TRL is not installed: nox -s oracle")

SEEDS = range(25)
SAMPLES = 4

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
    "vespo": ("GRPO", {"loss_type": "vespo", "use_vllm": True, "vllm_importance_sampling_correction": True}),
    "rloo": ("RLOO", {}),
}


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """TRL makes tensors of the default dtype from numbers. Here they are float64, so that rounding hides nothing."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def _settings(trainer: str, changes: dict[str, Any]) -> SimpleNamespace:
    """TRL's default settings, with `changes`."""
    fields = getattr(trl, f"{trainer}Config").__dataclass_fields__
    names = {*changes, "loss_type", "beta", "epsilon", "epsilon_high", "delta", "scale_rewards", "entropy_coef"}
    names |= {"importance_sampling_level", "top_entropy_quantile", "off_policy_mask_threshold"}
    names |= {"use_vllm", *(name for name in fields if name.startswith(("sapo_", "vespo_")))}
    defaults = {name: fields[name].default for name in names if name in fields}
    return SimpleNamespace(**defaults | {"use_bias_correction_kl": True, "steps_per_generation": 1} | changes)


def _advantage(batch: TensorDict, trainer: str, settings: SimpleNamespace) -> Tensor:
    """TRL's advantages, which it computes while it samples; written here from its code."""
    mask, reward = batch["mask"], batch["reward"].sum(-1)
    if settings.beta and trainer == "RLOO":
        kl = torch.where(mask, k1(batch["old_logp"], batch["ref_logp"]), 0).sum(-1)
        reward = reward - settings.beta * kl
    groups = reward.view(-1, SAMPLES)
    if trainer == "RLOO":
        baseline = (groups.sum(1, keepdim=True) - groups) / (SAMPLES - 1)
        return (groups - baseline).flatten()
    centered = groups - groups.mean(1, keepdim=True)
    return (
        centered / (groups.std(1, keepdim=True) + 1e-4) if settings.scale_rewards == "group" else centered
    ).flatten()


def _trl(batch: TensorDict, trainer: str, changes: dict[str, Any]) -> Result:
    settings, mask = _settings(trainer, changes), batch["mask"]
    advantage, completion_mask = _advantage(batch, trainer, settings), mask.double()
    logp = batch["logp"].clone().requires_grad_()
    stub = SimpleNamespace(
        **{**vars(settings), "args": settings},
        epsilon_low=settings.epsilon,
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        current_gradient_accumulation_steps=1,
        use_adaptive_entropy=False,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        get_gamma_weights=trl.GRPOTrainer.get_gamma_weights,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, batch["entropy"], None),
    )
    stub.epsilon_high = settings.epsilon if settings.epsilon_high is None else settings.epsilon_high
    empty = torch.zeros(len(batch), 0, dtype=torch.int64)
    inputs = {
        "prompt_ids": empty,
        "prompt_mask": empty,
        "completion_ids": batch["tokens"],
        "completion_mask": completion_mask,
        "advantages": advantage,
        "old_per_token_logps": batch["old_logp"],
        "old_logps": (batch["old_logp"] * completion_mask).sum(-1),
        "ref_per_token_logps": batch["ref_logp"],
        "num_items_in_batch": completion_mask.sum(),
    }
    if settings.use_vllm:
        log_ratio = torch.where(mask, batch["old_logp"] - batch["rollout_logp"], 0)
        inputs["importance_sampling_ratio"] = log_ratio.exp()
    loss = getattr(trl, f"{trainer}Trainer")._compute_loss(stub, None, inputs)
    [gradient] = torch.autograd.grad(loss, logp)
    return Result(advantage.unsqueeze(-1) * completion_mask, loss.detach(), gradient)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_preset_has_the_value_and_gradient_of_trl(name: str, seed: int) -> None:
    batch = completions(seed, samples=SAMPLES)
    assert_agree("TRL", result_of(algorithm_of(f"{name}@trl"), batch), _trl(batch, *CASES[name]))


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
