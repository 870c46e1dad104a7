"""One optimizer step of a trainer of TRL without a model: its own `_compute_loss` on micro-batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.parts.divergences import k1

from .compositions import Result

__all__ = ["SAMPLES", "trl_result"]

SAMPLES = 4
"""Rows of each prompt."""

_NAMES = ("loss_type", "beta", "epsilon", "epsilon_high", "delta", "scale_rewards", "importance_sampling_level")
_NAMES += ("top_entropy_quantile", "off_policy_mask_threshold", "entropy_coef", "use_vllm", "use_bias_correction_kl")
_PREFIXES = ("sapo_", "vespo_", "vllm_importance_sampling_")


def trl_result(batch: TensorDict, trainer: str, changes: Mapping[str, Any], *, micro_batches: int = 1) -> Result:
    """The result of TRL's GRPOTrainer or RLOOTrainer with its default settings, and `changes`.

    `batch` has completions that start at position 1. The gradient is with respect to `logp`.
    """
    settings, mask = _settings(trainer, changes, micro_batches), batch["mask"]
    advantage = _advantage(batch, trainer, settings)
    logp = batch["logp"].clone().requires_grad_()
    losses = []
    for rows in torch.arange(len(batch)).tensor_split(micro_batches):
        stub = _trainer(trainer, settings, micro_batches, logp[rows], batch["entropy"][rows])
        inputs = _inputs(batch[rows], advantage[rows], trainer, settings) | {
            "num_items_in_batch": mask.to(logp.dtype).sum()
        }
        losses.append(getattr(import_module("trl"), f"{trainer}Trainer")._compute_loss(stub, None, inputs))
    loss = torch.stack(losses).sum()
    [gradient] = torch.autograd.grad(loss, logp)
    return Result(advantage.unsqueeze(-1) * mask, loss.detach(), gradient)


def _settings(trainer: str, changes: Mapping[str, Any], micro_batches: int) -> SimpleNamespace:
    """TRL's default settings, with `changes`. A generation batch is one optimizer step."""
    fields = getattr(import_module("trl"), f"{trainer}Config").__dataclass_fields__
    names = [name for name in fields if name in _NAMES or name.startswith(_PREFIXES)]
    return SimpleNamespace(
        **{name: fields[name].default for name in names} | {"steps_per_generation": micro_batches, **changes}
    )


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


def _trainer(trainer: str, settings: SimpleNamespace, micro_batches: int, logp: Tensor, entropy: Tensor) -> Any:
    """The attributes of a trainer that `_compute_loss` reads."""
    cls = getattr(import_module("trl"), f"{trainer}Trainer")
    stub = SimpleNamespace(
        **{**vars(settings), "args": settings},
        epsilon_low=settings.epsilon,
        accelerator=SimpleNamespace(
            num_processes=1,
            sync_gradients=True,
            gather=lambda x: x,
            reduce=lambda x, reduction: x,
            pad_across_processes=lambda x, **_: x,
        ),
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        current_gradient_accumulation_steps=micro_batches,
        use_adaptive_entropy=False,
        _entropy_bonus_enabled=bool(getattr(settings, "entropy_coef", 0)),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, entropy, None),
    )
    stub.epsilon_high = settings.epsilon if settings.epsilon_high is None else settings.epsilon_high
    for name in ("get_gamma_weights", "get_off_policy_mask"):
        setattr(stub, name, getattr(cls, name, None))
    stub.get_high_entropy_mask = lambda *arguments: cls.get_high_entropy_mask(stub, *arguments)
    return stub


def _inputs(batch: TensorDict, advantage: Tensor, trainer: str, settings: SimpleNamespace) -> dict[str, Tensor]:
    """A micro-batch as TRL's trainers pass it to the loss. Tokens that are not counted are those of tools."""
    empty, counted = torch.zeros(len(batch), 0, dtype=torch.int64), batch["mask"].to(batch["logp"].dtype)
    completion = batch["attention_mask"].to(counted.dtype)
    completion[:, 0] = 0
    inputs = {
        "prompt_ids": empty,
        "prompt_mask": empty,
        "completion_ids": batch["tokens"],
        "completion_mask": counted if trainer == "RLOO" else completion,  # RLOOTrainer has no tools
        "tool_mask": counted,
        "advantages": advantage,
        "old_per_token_logps": batch["old_logp"],
        "old_logps": (batch["old_logp"] * counted).sum(-1),
        "ref_per_token_logps": batch["ref_logp"],
        "sampling_per_token_logps": batch["rollout_logp"],
    }
    if settings.use_vllm:
        inputs["importance_sampling_ratio"] = _importance_ratio(batch, settings)
    return inputs


def _importance_ratio(batch: TensorDict, settings: SimpleNamespace) -> Tensor:
    """TRL's weights, which it computes while it samples; written here from its code. [rows, time] or [rows, 1]."""
    level, how = settings.vllm_importance_sampling_mode.split("_")
    low, high = settings.vllm_importance_sampling_clip_min, settings.vllm_importance_sampling_clip_max
    log_ratio = torch.where(batch["mask"], batch["old_logp"] - batch["rollout_logp"], 0)
    ratio = (log_ratio.sum(-1, keepdim=True) if level == "sequence" else log_ratio).exp()
    if how == "truncate":
        return ratio.clamp(low, high)
    return ratio.masked_fill((ratio < (low or 0)) | (ratio > high), 0.0)
