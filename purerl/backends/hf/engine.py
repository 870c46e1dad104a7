"""Training of a causal language model of Hugging Face's transformers with AdamW, on one rank or several.

    batch -> micro-batches of this rank -> hidden states before the action tokens -> the requested outputs
          -> compute_loss(objective, part, counts) -> backward, gradients add up -> sum over ranks -> clip -> AdamW

The loss of each micro-batch is already divided by the counts of the whole step. So gradients are summed, over
micro-batches and over ranks, and never averaged.

A model that was sharded from outside by FSDP2's `fully_shard` sums its gradients itself. The gradients of a model that
is not sharded are summed here. A model is sharded entirely or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from purerl.algos.algebra import Counts, Objective, Weighted, compute_loss, merge
from purerl.backends.collective import check_call, sum_metrics, sum_scores
from purerl.backends.hf.checkpoint import check_fit, os_errors, read, write
from purerl.backends.hf.gather import full_tensors
from purerl.backends.hf.layout import MicroBatch, arrange
from purerl.backends.hf.limits import check_rows
from purerl.backends.hf.module import TokenModel
from purerl.backends.hf.optimizer import adamw, clear_gradients, learning_rate
from purerl.backends.hf.sharding import check_sharding, fsdp_parts, restore_shards, sum_gradients
from purerl.backends.hf.weights import ModelWeights, copy_into
from purerl.backends.weights import check_adapter, shard_like
from purerl.batch import check_batch, select_fields, with_fields
from purerl.errors import CheckpointError, InputError
from purerl.protocols import Capabilities, Metrics, Weights
from purerl.ranks import Ranks

if TYPE_CHECKING:
    from purerl.backends.hf.trainer import Config as HFTrainerConfig

__all__ = ["HFTrainer"]

_READS = ("tokens", "temperature")
_CHOICES = "teacher_topk_tokens"


class HFTrainer:
    """A `Trainer` of `module`. Its parameters are trained if they require a gradient, for `updates` optimizer steps.

    Dropout is off, so nothing in a step is random: the same calls give the same bits.

    Raises: ConfigError if only some of the trained parameters are sharded.
    """

    def __init__(self, config: HFTrainerConfig, module: TokenModel, *, updates: int, ranks: Ranks, share: bool) -> None:
        self.config, self.module, self.updates, self.ranks, self.share = config, module, updates, ranks, share
        self.position = 0  # optimizer steps so far, including skipped ones
        self.replaced = False  # whether `load_weights` has been called
        self.parameters = dict(module.named_parameters())
        self.trained = {name: p for name, p in self.parameters.items() if p.requires_grad}
        self.is_sharded = check_sharding(self.trained)
        self.fsdp = fsdp_parts(module)
        sum_gradients(self.fsdp)
        adam = {"lr": config.lr, "betas": config.betas, "eps": config.eps, "weight_decay": config.weight_decay}
        self.optimizer = adamw(module, **adam) if self.trained else None
        self.capabilities = Capabilities(
            max_sequence_length=module.limits.max_sequence_length, outputs=frozenset(module.outputs)
        )

    # --- scores and steps --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def score(self, batch: TensorDict, outputs: Sequence[str]) -> TensorDict:
        """The model's `outputs` as `Trainer.score` defines them, in the dtype of the batch's floats.

        Raises: BatchError for a batch that does not follow the schema, and for rows with too many tokens or with ids
        that the model does not have; InputError for an output that this trainer was not built for.
        """
        self._check_outputs(outputs)
        check_call(self.ranks, "score", batch, tuple(outputs))
        parts = self._arrange(batch, _READS, "row")
        scores = {name: self._zeros(batch, name) for name in outputs}
        for part in parts:
            for name, result in self._forward(self._rows(batch, part, _READS), part, outputs).items():
                scores[name][part.rows] = result.to(scores[name])
        restore_shards(self.fsdp)
        return sum_scores(TensorDict(scores, batch_size=batch.batch_size), self.ranks)

    def step(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> Metrics:
        """One optimizer step, as `Trainer.step` defines it.

        Beside the objective's metrics there are `grad_norm` (before clipping), `learning_rate` and `skipped`. A step is
        skipped if the gradient is not finite or no token is counted: parameters and AdamW's moments stay as they are,
        and the schedule advances. (Otherwise momentum would move the weights with a gradient of 0.)

        Raises: BatchError as `score`, and for a missing field that `objective` reads; InputError for a model that is
        not trained, and for an output that this trainer was not built for.
        """
        if self.optimizer is None:
            raise InputError("an optimizer step", got="a model that is not trained", need="a role that is trained")
        self._check_outputs((*objective.outputs, *objective.metric_outputs))
        check_call(self.ranks, "step", batch, objective)
        parts = self._arrange(batch, (*_READS, *objective.reads), objective.unit)
        clear_gradients(self.trained.values())
        device = self._device
        counts = {name: Counts(count.tokens.to(device), count.rows.to(device)) for name, count in counts.items()}
        metrics = merge(*(self._backward(batch, part, objective, counts) for part in parts))
        if not self.is_sharded:
            self.ranks.sum_in_place([p.grad for p in self.trained.values()])
        return self._optimize(sum_metrics(_on_host(metrics), self.ranks), counts)

    def _check_outputs(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in self.module.outputs]
        if unknown:
            got, need = ", ".join(unknown), "among " + ", ".join(self.module.outputs)
            raise InputError("an output that this trainer was not built for", got=got, need=need)

    def _arrange(self, batch: TensorDict, reads: Sequence[str], unit: str) -> list[MicroBatch]:
        """Validate the whole batch, and divide it."""
        check_rows(check_batch(batch, reads), self.module.limits)
        budget = self.config.max_tokens_per_microbatch
        return arrange(batch, unit=unit, budget=budget, share=self.share, ranks=self.ranks)

    def _zeros(self, batch: TensorDict, output: str) -> Tensor:
        shape = list(batch["action"].shape)
        if output.startswith("topk"):
            shape.append(batch[_CHOICES].shape[-1] if _CHOICES in batch.keys() else self.module.top_k)
        return batch["temperature"].new_zeros(shape, dtype=torch.int64 if output == "topk_tokens" else None)

    @property
    def _device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    def _rows(self, batch: TensorDict, part: MicroBatch, reads: Sequence[str]) -> TensorDict:
        """The rows of one micro-batch, on the model's device."""
        choices = [_CHOICES] if _CHOICES in batch.keys() else []
        return select_fields(batch, (*reads, *choices))[part.rows].to(self._device)

    def _forward(self, rows: TensorDict, part: MicroBatch, outputs: Sequence[str]) -> dict[str, Tensor]:
        return self.module(
            rows["tokens"],
            rows["action"],
            rows["temperature"],
            tuple(outputs),
            prefixes=part.prefixes and part.prefixes.to(self._device),
            choices=rows.get(_CHOICES, None),
        )

    def _backward(
        self, batch: TensorDict, part: MicroBatch, objective: Objective, counts: Mapping[str, Counts]
    ) -> Metrics:
        """Add the gradient of one micro-batch to the gradients."""
        rows = self._rows(batch, part, (*_READS, *objective.reads))
        outputs = self._forward(rows, part, tuple(dict.fromkeys((*objective.outputs, *objective.metric_outputs))))
        watched = {name: outputs[name].detach() for name in objective.metric_outputs}
        learned = {name: outputs[name] for name in objective.outputs}
        rows = with_fields(select_fields(rows, objective.reads), **watched, **learned)
        loss, metrics = compute_loss(objective, rows, counts)
        loss.backward()
        return metrics

    def _optimize(self, metrics: Metrics, counts: Mapping[str, Counts]) -> Metrics:
        """Clip and step, or skip; add the trainer's own metrics."""
        config = self.config
        rate = learning_rate(
            self.position,
            lr=config.lr,
            lr_scheduler=config.lr_scheduler,
            warmup_steps=config.warmup(self.updates),
            min_lr_ratio=config.min_lr_ratio,
            updates=config.schedule_steps(self.updates),
        )
        norm = nn.utils.clip_grad_norm_(self.trained.values(), config.max_grad_norm)
        norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        counted = sum(int(count.tokens) for count in counts.values())
        stepped = math.isfinite(norm) and counted > 0
        if stepped:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        self.position += 1
        extra = {"learning_rate": rate, "skipped": float(not stepped)} | ({"grad_norm": norm} if stepped else {})
        weight = torch.ones((), dtype=torch.float64)
        return {**metrics, **{name: Weighted(value * weight, weight) for name, value in extra.items()}}

    # --- weights and files -------------------------------------------------------------------------------------------

    def weights(self) -> Weights:
        """The trained weights of the language model under Hugging Face's names."""
        return ModelWeights(self.module.model)

    @torch.no_grad()
    def load_weights(self, weights: Weights, *, mix: float = 1.0) -> None:
        check_adapter(weights, self.capabilities)
        copy_into(self.module.model, weights, mix=mix)
        self.replaced = True

    def save(self, path: Path) -> dict[str, str]:
        saved = self.parameters if self.replaced else self.trained
        weights = {name: value.detach() for name, value in full_tensors(saved)}
        moments = self.optimizer.state_dict()["state"] if self.optimizer else {}
        moments = {index: dict(full_tensors(state)) for index, state in moments.items()}
        state = {"moments": moments, "position": self.position, "replaced": self.replaced}
        digests: dict[str, str] = {}
        self.ranks.on_first(lambda: digests.update(write(path, weights, state)))
        return digests

    @torch.no_grad()
    def load(self, path: Path) -> None:
        weights, state = read(path)
        if self.replaced and not state["replaced"]:
            need = "a trainer that was just built: this one has lost the weights of its model's files"
            raise CheckpointError(f"{str(path)!r} cannot be loaded", got="weights that were replaced", need=need)
        saved = self.parameters if state["replaced"] else self.trained
        check_fit(path, weights, saved)
        self.replaced, self.position = state["replaced"], state["position"]
        for name, parameter in saved.items():
            parameter.copy_(shard_like(weights[name], parameter))
        if self.optimizer:
            self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": self._sharded(state["moments"])})

    def _sharded(self, moments: Mapping[int, Mapping[str, Tensor]]) -> dict[int, dict[str, Tensor]]:
        """`moments` of full tensors as the optimizer holds them: each like its parameter."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        return {
            index: {name: _like(parameters[index], value) for name, value in state.items()}
            for index, state in moments.items()
        }

    def export(self, path: Path) -> None:
        state = {name: value.detach() for name, value in full_tensors(self.module.state_dict())}

        def write_model() -> None:
            with os_errors():
                self.module.export(path, state)

        self.ranks.on_first(write_model)

    def close(self) -> None:
        self.optimizer, self.parameters, self.trained, self.fsdp = None, {}, {}, ()
        del self.module


def _like(parameter: Tensor, value: Tensor) -> Tensor:
    """A copy of the full tensor `value`, sharded like `parameter` if it has its shape; step counts stay as they are."""
    if value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, dtype=value.dtype).copy_(shard_like(value, parameter))


def _on_host(metrics: Metrics) -> dict[str, Weighted]:
    """Metrics as float64 on the CPU, with one transfer per dtype. They are widened there: MPS has no float64."""
    wide = torch.float64
    flat = [x if isinstance(x, Tensor) else torch.tensor(x, dtype=wide) for metric in metrics.values() for x in metric]
    kinds = [(x.device, x.dtype) for x in flat]
    values: dict[int, Any] = {}
    for kind in dict.fromkeys(kinds):
        indices = [index for index, candidate in enumerate(kinds) if candidate == kind]
        values.update(zip(indices, torch.stack([flat[index] for index in indices]).cpu().double(), strict=True))
    return {name: Weighted(values[2 * k], values[2 * k + 1]) for k, name in enumerate(metrics)}
