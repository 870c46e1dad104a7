"""The gradient of the parameters in each optimizer step, as purerl computes it for the completions of a run of TRL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import (
    Algorithm,
    compute_advantages,
    compute_loss,
    prepare_step,
    select_rows,
)
from purerl.algos.parts.rows import at_last_action
from purerl.batch import with_fields
from purerl.seeds import derive_seed

from .trl_run import MODEL, scores, size, targets, value_of

__all__ = ["gradients", "model_of", "parameter_gradient", "rows_of", "scored"]


def gradients(algorithm: Algorithm, steps: Sequence[tuple[list[Tensor], Sequence[dict[str, Any]]]]) -> Iterator[Tensor]:
    """The gradient of each of `steps`, (parameters before it, its micro-batches), as one vector.

    Each step has completions of its own, and all of its rows are computed at once.
    """
    state = algorithm.advantage.init()
    [objective] = (objective for objective in algorithm.objectives if objective.role == "policy")
    for number, (parameters, micro_batches) in enumerate(steps):
        rows = rows_of(micro_batches)
        model = model_of(parameters)
        batch, logp, entropy = scored(model, rows)
        batch = with_fields(batch, noise=_noise(batch, number * len(micro_batches)))
        keep = select_rows(algorithm, batch)
        batch = with_fields(batch, mask=batch["mask"] & keep.unsqueeze(-1))
        state, batch = compute_advantages(algorithm, state, batch)
        step, counts = prepare_step(objective, batch)
        loss, _ = compute_loss(objective, with_fields(step, logp=logp, entropy=entropy), counts)
        yield parameter_gradient(model, loss)


def rows_of(micro_batches: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """The tensors of all micro-batches, in the order of the rows before TRL has shuffled them."""
    width = max(part["completion_ids"].shape[1] for part in micro_batches)
    names = [name for name, value in micro_batches[0].items() if isinstance(value, Tensor) and value.ndim]
    joined = {name: torch.cat([_padded(part, name, width) for part in micro_batches]) for name in names}
    order = joined["purerl/row"].argsort()
    return {name: value[order] for name, value in joined.items()}


def _padded(part: dict[str, Tensor], name: str, width: int) -> Tensor:
    value = part[name]
    missing = width - value.shape[1] if value.ndim > 1 and not name.startswith("prompt") else 0
    return torch.nn.functional.pad(value, (0, missing)) if missing else value


def scored(model: Any, rows: dict[str, Tensor]) -> tuple[TensorDict, Tensor, Tensor]:
    """(batch with all that TRL passes, logp, entropy) of `rows`, the last two with gradient."""
    mask = rows["completion_mask"].bool()
    inputs = torch.cat([rows["prompt_ids"], rows["completion_ids"]], 1)
    attention = torch.cat([rows["prompt_mask"], rows["completion_mask"]], 1)
    logp, entropy = scores(model, inputs, attention, mask.shape[1])
    with torch.no_grad():
        reference, _ = scores(model_of(None), inputs, attention, mask.shape[1])
    completions = [
        ids[:count] for ids, count in zip(rows["completion_ids"].tolist(), mask.sum(-1).tolist(), strict=True)
    ]
    components = torch.tensor([targets(completions), size(completions)], dtype=logp.dtype).T
    prompts = [tuple(ids) for ids in rows["prompt_ids"].tolist()]
    score = components.sum(-1)
    fields = {
        "tokens": rows["completion_ids"],
        "attention_mask": torch.ones_like(mask),
        "action": mask,
        "mask": mask,
        "row": torch.arange(len(mask)),
        "group": torch.tensor([prompts.index(prompt) for prompt in prompts]),
        "reward": at_last_action(score, mask),
        "score": score,
        "components": components,
        "optimal_value": torch.tensor([value_of(ids) for ids in rows["prompt_ids"].tolist()], dtype=logp.dtype),
        "old_logp": logp.detach(),
        "old_entropy": entropy.detach(),
        "ref_logp": reference,
        "rollout_logp": rows.get("sampling_per_token_logps", logp).detach(),
        "truncated": torch.tensor([ids[-1] != 1 for ids in completions]),
        "temperature": torch.ones(len(mask), dtype=logp.dtype),
    }
    return TensorDict(fields, batch_size=[len(mask)]), logp, entropy


def _noise(batch: TensorDict, step: int) -> Tensor:
    """The numbers that the trainer with the seed 3 draws: they decide nothing but which tokens `clip_cov` takes."""
    return torch.rand(batch["mask"].shape, generator=torch.Generator().manual_seed(derive_seed(3, "noise", step)))


def model_of(parameters: list[Tensor] | None) -> Any:
    """The model that all runs start from, with `parameters` if they are given."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(MODEL).train()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), parameters or (), strict=parameters is not None):
            parameter.copy_(value)
    return model


def parameter_gradient(model: Any, output: Tensor, weight: Tensor | None = None) -> Tensor:
    """The gradient of `output`, or of its sum times `weight`, of all parameters as one vector."""
    found = torch.autograd.grad(output, list(model.parameters()), weight, retain_graph=True)
    return torch.cat([gradient.flatten() for gradient in found])
