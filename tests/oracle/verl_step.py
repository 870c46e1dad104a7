"""One optimizer step of verl's actor without a model: verl's own `ppo_loss` on micro-batches of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

__all__ = ["actor_config", "gradient_of_step", "micro_batch"]

_ACTOR = {"strategy": "fsdp", "rollout_n": 1, "ppo_mini_batch_size": 1, "ppo_micro_batch_size_per_gpu": 1}
_PROMPT = 2


def actor_config(loss_mode: str, policy_loss: Mapping[str, Any] | None = None, **settings: Any) -> Any:
    """verl's ActorConfig with `loss_mode`, and with settings that differ from the defaults."""
    actor = import_module("verl.workers.config.actor")
    loss = actor.PolicyLossConfig(loss_mode=loss_mode, **(policy_loss or {}))
    return actor.ActorConfig(**_ACTOR, policy_loss=loss, **settings)


def micro_batch(
    batch: TensorDict, logp: Tensor, advantage: Tensor, **info: Any
) -> tuple[dict[str, Tensor], TensorDict]:
    """(model output, data) as verl's engines give them to a loss: sequences of different lengths, without padding.

    A completion is all from the first to the last action token; `mask` may have holes, or no token of a row. If `batch`
    has `weight`, they are verl's `rollout_is_weights`. `info` are the counts of the mini-batch.
    """
    action = batch["action"]
    completion = (action.cumsum(-1) > 0) & (action.flip(-1).cumsum(-1).flip(-1) > 0)

    def nested(values: Tensor) -> Tensor:
        rows = [row[keep] for row, keep in zip(values, completion, strict=True)]
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    def outputs(values: Tensor) -> Tensor:
        # The output for a token is at the position before it, and the last position of a row has none.
        rows = zip(values, completion, strict=True)
        return torch.cat([torch.cat([row.new_zeros(_PROMPT - 1), row[keep], row.new_zeros(1)]) for row, keep in rows])

    ones = [torch.ones(_PROMPT, dtype=torch.int64) for _ in batch]
    fields = {
        "prompts": torch.nested.as_nested_tensor(ones, layout=torch.jagged),
        "responses": nested(batch["tokens"]),
        "response_mask": nested(batch["mask"].long()),
        "old_log_probs": nested(batch["old_logp"]),
        "advantages": nested(advantage),
        "ref_log_prob": nested(batch["ref_logp"]),
    }
    if "weight" in batch.keys():
        fields["rollout_is_weights"] = nested(batch["weight"])
    data = TensorDict(fields, batch_size=[len(batch)])
    for name, value in info.items():
        data.set_non_tensor(name, value)
    return {"log_probs": outputs(logp), "entropy": outputs(batch["entropy"])}, data


def gradient_of_step(
    config: Any, batch: TensorDict, advantage: Tensor, *, ranks: int = 1, micro_batches: int = 1
) -> tuple[Tensor, Tensor]:
    """(loss, gradient with respect to `logp`) of an optimizer step, over ranks whose gradients are averaged."""
    ppo_loss = import_module("verl.workers.utils.losses").ppo_loss
    logp = batch["logp"].clone().requires_grad_()
    info = {"dp_size": ranks, "batch_num_tokens": int(batch["mask"].sum()), "global_batch_size": len(batch)}
    losses = []
    for rows in _parts(len(batch), ranks * micro_batches):
        output, data = micro_batch(batch[rows], logp[rows], advantage[rows], **info)
        loss, _ = ppo_loss(config, output, data)
        losses.append(loss)
    total = torch.stack(losses).sum() / ranks
    [gradient] = torch.autograd.grad(total, logp)
    return total.detach(), gradient


def _parts(rows: int, parts: int) -> Iterator[Tensor]:
    yield from torch.arange(rows).tensor_split(parts)
