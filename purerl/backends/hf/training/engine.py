"""Training of a causal language model of Hugging Face's transformers with AdamW, on one rank or several.

    batch -> micro-batches of this rank -> hidden states before the action tokens -> the requested outputs
          -> compute_loss(objective, part, counts) -> backward, gradients add up -> sum over ranks -> clip -> AdamW

The loss of each micro-batch is already divided by the counts of the whole step. So gradients are summed, over
micro-batches and over ranks, and never averaged.

A model that FSDP2 has sharded sums its gradients itself. The gradients of a model that is not sharded are summed here.
A model is sharded entirely or not at all. Ranks that read the same rows (`mesh.py`) compute the same loss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Counts, Objective, Weighted, compute_loss, merge
from purerl.backends.collective import check_call, on_host, sum_metrics, sum_scores
from purerl.backends.hf.decoder.images import ImageReader
from purerl.backends.hf.decoder.limits import CHOICES, check_rows
from purerl.backends.hf.lora import notes_of
from purerl.backends.hf.mesh import RankMesh
from purerl.backends.hf.model.casts import Casts
from purerl.backends.hf.model.parallel import fsdp_parts, restore_shards, sum_undivided
from purerl.backends.hf.model.self_test import verify_images
from purerl.backends.hf.model.token_model import Extras, TokenModel
from purerl.backends.hf.model.twin import twin_of
from purerl.backends.hf.moe.replay import ROUTES, changed_choices
from purerl.backends.hf.moe.router import LOAD, balance_loss
from purerl.backends.hf.training.adapter import Adapter, BaseTrainer
from purerl.backends.hf.training.expert_records import open_records
from purerl.backends.hf.training.extras import ExtraReader
from purerl.backends.hf.training.flops import peak_of_ranks, training_flops
from purerl.backends.hf.training.idle_memory import release_memory
from purerl.backends.hf.training.layout import MicroBatch, arrange, arrange_packs, check_built_for, zero_score
from purerl.backends.hf.training.optimizer import build_optimizer, clear_gradients, clip_gradients, release_gradients
from purerl.backends.hf.training.optimizer_state import OPTIMIZER, load_state, state_like, state_of
from purerl.backends.hf.training.rounding import drop_remainders, rounding_of
from purerl.backends.hf.weights.checkpoint import WEIGHTS, SavePlans, ShardFiles, StagedTensors, kind_of
from purerl.backends.hf.weights.gather import full_tensors
from purerl.backends.hf.weights.model_weights import ModelWeights, copy_into, trained_in
from purerl.backends.hf.weights.shard_files import os_errors
from purerl.backends.optimizer_steps import skip_reason, step_metrics
from purerl.backends.predicted_tokens import predicted_tokens
from purerl.backends.weight_changes import change_tensors
from purerl.backends.weights import check_adapter
from purerl.batch import check_batch, select_fields, with_fields
from purerl.errors import CheckpointError, ConfigError, InputError
from purerl.expert_routes import RouteStore
from purerl.images import ImageStore
from purerl.kernels.accelerators import tf32_products
from purerl.protocols import Capabilities, Metrics, Trainer, Weights
from purerl.settings import Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from purerl.backends.hf.settings import TrainerConfig

__all__ = ["HFTrainer"]

_READS = ("tokens", "temperature")


class HFTrainer:
    """A `Trainer` of `module`. Its parameters are trained if they require a gradient, for `updates` optimizer steps.

    Dropout is off, so nothing in a step is random: the same calls give the same bits.
    """

    def __init__(
        self,
        config: TrainerConfig,
        module: TokenModel,
        *,
        model: Model,
        updates: int,
        mesh: RankMesh,
        share: bool,
        router_coefficient: float,
        adapter: Adapter | None = None,
        seed: int = 0,
    ) -> None:
        self.config, self.module, self.updates, self.mesh, self.share = config, module, updates, mesh, share
        self.model, self.router_coefficient, self.adapter = model, router_coefficient, adapter
        self.casts: Casts | None = None  # if a generator samples with them
        self.position, self.replaced = 0, False  # optimizer steps so far, and whether `load_weights` has been called
        self.fsdp = fsdp_parts(module)
        restore_shards(self.fsdp)  # `verify` has read the model
        self.parameters = dict(module.named_parameters())
        self.trained = {name: p for name, p in self.parameters.items() if p.requires_grad}
        self.rounding = rounding_of(self.trained, seed, keeps=config.keeps_remainders)
        self.optimizer = build_optimizer(module, config, self.rounding) if self.trained else None
        records = module.routers and open_records(config.replay_routes, mesh.data, mesh.device, module.routers)
        self.extras = ExtraReader(mesh.device, records, module.read_positions)
        self.outputs = [name for name in module.outputs if name != ROUTES or self.extras.records_experts]
        self._save_plans = SavePlans(mesh.all)
        self.capabilities = Capabilities(
            **module.limits._asdict(),
            outputs=frozenset(self.outputs),
            attention=module.attention,
            notes=notes_of(config.lora if adapter else None),
            images=module.reads_images and config.mesh.tensor == 1,
        )

    def use_images(self, images: ImageStore) -> None:
        self._refuse_split_matrices("images")
        self.extras.images = ImageReader(self.model, self.module.model, images)
        self.module.gathered(partial(verify_images, self.extras.images))
        restore_shards(self.fsdp)

    def limit_vocabulary(self, size: int) -> None:
        self._refuse_split_matrices("more token ids than the policy")
        self.module.limit_vocabulary(size)

    def use_routes(self, routes: RouteStore) -> None:
        self.extras.use_routes(routes)

    def _refuse_split_matrices(self, what: str) -> None:
        if self.config.mesh.tensor > 1:
            raise ConfigError("mesh.tensor", got=self.config.mesh.tensor, need=f"1 with {what}", do="use mesh.shard")

    # --- scores and steps --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def score(self, batch: TensorDict, outputs: Sequence[str]) -> TensorDict:
        """The model's `outputs` as `Trainer.score` defines them, in the dtype of the batch's floats.

        Raises: BatchError for a batch that does not follow the schema, and for rows with too many tokens or with ids
        that the model does not have; InputError for an output that this trainer was not built for.
        """
        check_built_for(outputs, self.outputs)
        check_call(self.mesh.all, "score", batch, tuple(outputs))
        parts = self._arrange(batch, _READS, "row")
        scores = {name: zero_score(batch, name, self.module.top_k) for name in outputs}
        if self.extras.replays(batch, "score"):
            parts = self.extras.fetch(batch, parts)
        self.extras.begin(batch, outputs)
        for part in parts:
            rows, extras = self._rows(batch, part, _READS), self.extras.of(batch, part)
            for name, result in self._forward(rows, part, outputs, extras).items():
                scores[name][part.rows] = self.extras.keep(part.rows, name, result).to(scores[name])
        restore_shards(self.fsdp)
        release_memory(self.mesh.device, None if self.trained else self.module)
        return sum_scores(TensorDict(scores, batch_size=batch.batch_size), self.mesh.data)

    def step(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> Metrics:
        """One optimizer step, as `Trainer.step` defines it.

        Beside the objective's metrics there are those of `step_metrics`. A step is skipped for the reasons of
        `skip_reason`: parameters, AdamW's moments and its count of steps stay as they are, and the schedule advances.

        Raises: BatchError as `score`, and for a missing field that `objective` reads; InputError for a model that is
        not trained, and for an output that this trainer was not built for.
        """
        metrics = self._accumulate("step", batch, objective, counts, router_coefficient=self.router_coefficient)
        metrics = self._optimize(metrics, counts)
        release_gradients(self.trained.values())
        release_memory(self.mesh.device)
        return metrics

    def gradient(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> dict[str, Tensor]:
        """The gradient that `step` would clip, without that of the loss of the router. Raises as `step`."""
        self._accumulate("gradient", batch, objective, counts, router_coefficient=0.0)
        found = {name: total.clone() for name, total in full_tensors({n: p.grad for n, p in self.trained.items()})}
        release_gradients(self.trained.values())
        return found

    def _accumulate(
        self,
        call: str,
        batch: TensorDict,
        objective: Objective,
        counts: Mapping[str, Counts],
        *,
        router_coefficient: float,
    ) -> Metrics:
        """Set the gradients to those of the whole batch, and return the metrics of the objective."""
        if self.optimizer is None:
            raise InputError("an optimizer step", got="a model that is not trained", need="a role that is trained")
        check_built_for((*objective.outputs, *objective.metric_outputs), self.outputs)
        check_call(self.mesh.all, call, batch, objective)
        replayed = [ROUTES] if self.extras.replays(batch, call) else []
        parts = self._arrange(batch, (*_READS, *replayed, *objective.reads), objective.unit)
        parts = self.extras.fetch(batch, parts) if replayed else parts
        clear_gradients(self.trained.values())
        device = self.mesh.device
        counts = {name: Counts(count.tokens.to(device), count.rows.to(device)) for name, count in counts.items()}
        experts = self._expert_counts(batch, parts) if router_coefficient > 0 else None
        metrics = merge(*(self._backward(batch, part, objective, counts, experts) for part in parts))
        sum_undivided(self.trained.values(), self.mesh)
        return sum_metrics(on_host(metrics), self.mesh.data)

    def _arrange(self, batch: TensorDict, reads: Sequence[str], unit: str) -> list[MicroBatch]:
        """Validate the whole batch, and divide it."""
        check_rows(check_batch(batch, reads), self.module.limits)
        tokens, action = self.module.read_positions(batch["tokens"], predicted_tokens(batch))
        batch = with_fields(batch.select("group"), tokens=tokens, action=action, **self.module.image_field(batch))
        options: dict[str, Any] = {"unit": unit, "budget": self.config.budget}
        if self.config.packing:
            return arrange_packs(batch, **options, ranks=self.mesh.data)
        return arrange(batch, **options, share=self.share, ranks=self.mesh.data)

    def _rows(self, batch: TensorDict, part: MicroBatch, reads: Sequence[str]) -> TensorDict:
        """The rows of one micro-batch, on the model's device."""
        return select_fields(batch, (*reads, *({CHOICES} & {*batch.keys()})))[part.rows].to(self.mesh.device)

    def _forward(
        self, rows: TensorDict, part: MicroBatch, outputs: Sequence[str], extras: Extras | None
    ) -> dict[str, Tensor]:
        return self.module(
            rows["tokens"],
            predicted_tokens(rows),
            rows["temperature"],
            tuple(outputs),
            prefixes=part.prefixes and part.prefixes.to(self.mesh.device),
            pack=part.pack and part.pack.to(self.mesh.device),
            choices=rows.get(CHOICES, None),
            extras=extras,
        )

    @torch.no_grad()
    def _expert_counts(self, batch: TensorDict, parts: Sequence[MicroBatch]) -> Tensor:
        """The number of times that each expert is chosen in the whole step."""
        name = "router_count"
        counts = [
            self._forward(self._rows(batch, part, _READS), part, (name,), self.extras.of(batch, part))[name]
            for part in parts
        ]
        restore_shards(self.fsdp)
        return self.mesh.data.sum(torch.stack(counts).sum(0))

    def _backward(
        self,
        batch: TensorDict,
        part: MicroBatch,
        objective: Objective,
        counts: Mapping[str, Counts],
        experts: Tensor | None = None,
    ) -> Metrics:
        """Add the gradient of one micro-batch to the gradients; with `experts`, also that of the auxiliary loss."""
        rows = self._rows(batch, part, (*_READS, *objective.reads))
        extras, load = self.extras.of(batch, part), () if experts is None else LOAD
        replayed = None if extras is None else extras.experts
        recorded = () if replayed is None else (ROUTES,)
        names = tuple(dict.fromkeys((*objective.outputs, *objective.metric_outputs, *load, *recorded)))
        outputs = self._forward(rows, part, names, extras)
        watched = {name: outputs[name].detach() for name in objective.metric_outputs}
        learned = {name: outputs[name] for name in objective.outputs}
        read = with_fields(select_fields(rows, objective.reads), **watched, **learned)
        loss, metrics = compute_loss(objective, read, counts)
        # Over the whole step the totals add up to the mean over action tokens, and the weights to 1.
        action_tokens = batch["action"].sum().clamp(min=1).to(loss.device)
        weight = rows["action"].sum() / action_tokens
        if replayed is not None:
            changed = changed_choices(outputs[ROUTES], replayed, rows["action"])
            metrics = {**metrics, "router_changed_fraction": Weighted(*(n / action_tokens for n in changed))}
        if experts is not None:
            balance = balance_loss(experts, outputs["router_probability"], self.module.config.num_experts_per_tok)
            loss = loss + self.router_coefficient * balance
            metrics = {**metrics, "router_aux_loss": Weighted(balance.detach(), weight)}  # each part has its own share
        release_memory(self.mesh.device)
        with tf32_products(loss.device, enabled=self.module.autocast is not None):
            loss.backward()
        return metrics

    def _optimize(self, metrics: Metrics, counts: Mapping[str, Counts]) -> Metrics:
        """Clip and step, or skip; add the trainer's own metrics."""
        rate = self.config.learning_rate(self.position, self.updates)
        norm = clip_gradients(self.trained.values(), self.config.max_grad_norm)
        lost, reason = None, skip_reason(norm, counts, skip_zero_gradients=self.config.skip_zero_gradients)
        if reason is None:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            lost = self.rounding.step(self.optimizer, self.position, self.mesh.all)
            self._refresh_casts()
            if self.position == 0 and self.config.optimizer is not None:
                self._optimizer_state()  # refuses what cannot be stored, before the first checkpoint
        self.position += 1
        return {**metrics, **step_metrics(norm, reason, learning_rate=rate, update_lost=lost)}

    # --- weights and files -------------------------------------------------------------------------------------------

    def decoding_model(self) -> PreTrainedModel:
        """The model for a generator that samples with the weights of this trainer, which has no other rank.

        With mixed precision its weights are casts. From now on they are the ones that the trainer computes with, too.
        """
        model, dtype = self.module.model, self.module.autocast
        if dtype is not None and self.casts is None:
            self.casts = Casts(model, dtype)
            self.casts.use_in(self.module.decoder)
        return twin_of(model, self.casts.of if self.casts else {}, attention=self.module.attention)

    def _refresh_casts(self) -> None:
        """The weights have changed."""
        if self.casts is not None:
            self.casts.refresh()

    def weights(self) -> Weights:
        """The trained weights of the language model under Hugging Face's names; those of an adapter under peft's."""
        return ModelWeights(self.module.model) if self.adapter is None else self.adapter.weights()

    def base(self) -> Trainer | None:
        return None if self.adapter is None or self.config.lora.initial else BaseTrainer(self, self.adapter)

    @torch.no_grad()
    def load_weights(self, weights: Weights, *, mix: float = 1.0) -> None:
        if self.adapter is not None:
            self.adapter.load_weights(weights, mix=mix)
            self._refresh_casts()
            return
        check_adapter(weights, self.capabilities)
        copy_into(self.module.model, weights, mix=mix)
        self._refresh_casts()
        if self.optimizer is not None:
            drop_remainders(self.optimizer)
        self.replaced = True

    def change_weights(self, names: Collection[str] | None, seed: int) -> list[str]:
        tensors = self.adapter.tensors if self.adapter else trained_in(self.module.model)
        changed = change_tensors(tensors, names, seed)
        self._refresh_casts()
        return changed

    def save(self, path: Path) -> dict[str, str]:
        return self.stage(copy=False).write(path, self.mesh.all)

    def stage(self, *, copy: bool = True) -> StagedTensors:
        weights = self.parameters if self.replaced else self.trained
        tensors = {f"{WEIGHTS}{name}": weight.detach() for name, weight in weights.items()}
        counters = {"position": torch.tensor(self.position), "replaced": torch.tensor(self.replaced)}
        return self._save_plans.stage(tensors | self._optimizer_state() | counters, copy=copy)

    def _optimizer_state(self) -> dict[str, Tensor]:
        return {} if self.optimizer is None else state_of(self.optimizer, self.trained, self.config.optimizer_address)

    @torch.no_grad()
    def load(self, path: Path) -> None:
        loaded: dict[str, Tensor] = {}
        self.mesh.all.on_all(lambda: loaded.update(self._read(path)), "loading a checkpoint")
        self.position, self.replaced = int(loaded["position"]), bool(loaded["replaced"])
        for name, parameter in self.parameters.items():
            if f"{WEIGHTS}{name}" in loaded:
                parameter.copy_(loaded[f"{WEIGHTS}{name}"])
        self._refresh_casts()
        if self.optimizer is not None:
            load_state(self.optimizer, self.trained, loaded)

    def _read(self, path: Path) -> dict[str, Tensor]:
        """This rank's part of the tensors in `path`. Raises CheckpointError if they do not fit, on this rank."""
        files = ShardFiles(path)
        counters = {"position": torch.tensor(0), "replaced": torch.tensor(data=False)}
        files.check_fit({name: kind_of(value) for name, value in counters.items()}, ignored=(WEIGHTS, OPTIMIZER))
        files.read(counters)
        if self.replaced and not counters["replaced"]:
            need = "a trainer that was just built: this one has lost the weights of its model's files"
            raise CheckpointError(f"{str(path)!r} cannot be loaded", got="weights that were replaced", need=need)
        weights = self.parameters if counters["replaced"] else self.trained
        expected = {f"{WEIGHTS}{name}": weight.detach() for name, weight in weights.items()}
        if self.optimizer is not None:
            expected |= state_like(self.trained, files.kinds, self.config.optimizer_address)
        ignored = (*counters, *((OPTIMIZER,) if self.optimizer is None else ()))
        files.check_fit({name: kind_of(value) for name, value in expected.items()}, ignored=ignored)
        values = {name: torch.empty_like(value) for name, value in expected.items()}
        files.read(values)
        return {**counters, **values}

    def export(self, path: Path) -> None:
        state = self._on_first(self.module.state_dict())

        def write_model() -> None:
            with os_errors():
                (self.adapter or self.module).export(path, state)

        self.mesh.all.on_first(write_model)

    def flops(self, tokens: int, length: float) -> float:
        return training_flops(self.module, tokens, length)

    def peak_flops(self) -> float | None:
        return peak_of_ranks(self.mesh, self.module)

    def _on_first(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`tensors` in full, on rank 0 and in the memory of the CPU if they are sharded; empty on other ranks."""
        full = full_tensors({name: tensor.detach() for name, tensor in tensors.items()})
        if not self.fsdp:
            return dict(full)
        return {name: tensor.cpu() for name, tensor in full if self.mesh.all.is_first}

    def close(self) -> None:
        self.optimizer, self.parameters, self.trained, self.fsdp = None, {}, {}, ()
        del self.module
