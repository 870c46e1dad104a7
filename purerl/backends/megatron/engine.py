"""Training of a model that Megatron-core divides, see `mesh.py`.

    batch -> micro-batches of this data rank -> hidden states, stage by stage -> outputs -> compute_loss -> backward
          -> gradients are summed over the data and context ranks -> clip -> AdamW

The last stage of the pipeline computes outputs, losses and metrics, and tells the other stages. Ranks that split the
matrices or the positions of the last stage compute the same losses and metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Counts, Objective, Weighted, compute_loss, merge
from purerl.backends.collective import check_call, on_host, sum_metrics, sum_scores
from purerl.backends.hf.decoder.limits import CHOICES, Limits, check_rows
from purerl.backends.hf.moe.replay import ROUTES, Routers
from purerl.backends.hf.training.expert_records import open_records
from purerl.backends.hf.training.extras import ExtraReader
from purerl.backends.hf.training.layout import MicroBatch, check_built_for, zero_score
from purerl.backends.megatron import checkpoint, optimizer
from purerl.backends.megatron.bridge import Bridge
from purerl.backends.megatron.expert_replay import NUMBER, number_tokens
from purerl.backends.megatron.export import export
from purerl.backends.megatron.optimizer_state import restore, set_steps, steps_of
from purerl.backends.megatron.router import RouterLoad, install, routed_layers
from purerl.backends.megatron.schedule import Reader, arrange, run
from purerl.backends.optimizer_steps import skip_reason, step_metrics
from purerl.backends.predicted_tokens import predicted_tokens
from purerl.backends.weight_changes import ChangedWeights
from purerl.backends.weights import check_adapter
from purerl.batch import check_batch, select_fields, with_fields
from purerl.errors import CheckpointError, InputError
from purerl.expert_routes import RouteStore
from purerl.protocols import Capabilities, Metrics, Weights
from purerl.ranks import Ranks
from purerl.settings import Model

if TYPE_CHECKING:
    from purerl.backends.megatron.settings import TrainerConfig

__all__ = ["MegatronTrainer"]

_READS = ("tokens", "temperature")


class MegatronTrainer:
    """A `Trainer` of the model of `reader`, which is trained for `updates` optimizer steps.

    Dropout is off, so nothing in a step is random: the same calls give the same bits.
    """

    def __init__(
        self,
        config: TrainerConfig,
        reader: Reader,
        bridge: Bridge,
        *,
        model: Model,
        outputs: Sequence[str],
        updates: int,
        replays: bool,
        router_coefficient: float,
    ) -> None:
        self.config, self.bridge, self.updates, self.model = config, bridge, updates, model
        self.groups, self.router_coefficient = reader.groups, router_coefficient
        self.position = 0  # optimizer steps so far, including skipped ones
        self.replaced = False  # whether `load_weights` has been called
        self.load_of_routers = RouterLoad(reader.shape.top_k)
        self.choices = install(reader.model, self.load_of_routers, k=reader.shape.top_k)
        routed = tuple(index for index, is_moe in enumerate(reader.shape.moe_layers) if is_moe)
        routers = Routers(routed_layers(reader.model), reader.shape.experts, reader.shape.top_k, routed)
        records = open_records(config.replay_routes, self.groups.data, self.groups.device, routers)
        self.extras = ExtraReader(self.groups.device, records if replays else None)
        self.outputs = (*outputs, ROUTES) if self.extras.records_experts else tuple(outputs)
        self.optimizer: Any = None
        if updates:
            reader = reader._replace(module=optimizer.wrap(reader.model, config))
            self.optimizer = optimizer.build_optimizer(reader.module, config)
        else:
            reader.model.requires_grad_(False)  # noqa: FBT003 - torch's only argument
        self.reader = reader
        self.limits = Limits(reader.shape.max_sequence_length, reader.shape.vocab_size)
        self.capabilities = Capabilities(
            max_sequence_length=reader.shape.max_sequence_length, outputs=frozenset(self.outputs)
        )

    def use_routes(self, routes: RouteStore) -> None:
        self.extras.use_routes(routes)

    # --- scores and steps --------------------------------------------------------------------------------------------

    def score(self, batch: TensorDict, outputs: Sequence[str]) -> TensorDict:
        """The model's `outputs` as `Trainer.score` defines them, in the dtype of the batch's floats.

        Raises: BatchError for a batch that does not follow the schema, and for rows with too many tokens or with ids
        that the model does not have; InputError for an output that this trainer was not built for.
        """
        check_built_for(outputs, self.outputs)
        check_call(self.groups.all, "score", batch, tuple(outputs))
        parts = self._arrange(batch, _READS, "row")
        rows_of_parts = self._rows(batch, parts, _READS)
        scores = {name: zero_score(batch, name, self.reader.top_k) for name in outputs}
        computed = [name for name in outputs if name != ROUTES]
        if self.extras.replays(batch, "score"):
            self._replay(batch, parts, rows_of_parts)
        self.extras.begin(batch, outputs)
        if ROUTES in outputs:
            self.choices.record(rows_of_parts, self.groups.device)

        def evaluate(hidden: Tensor, rows: TensorDict) -> dict[str, Tensor]:
            return self.reader.outputs(hidden, rows, computed, rows.get(CHOICES, None))

        results = run(self.reader, rows_of_parts, evaluate, with_gradient=False)
        self.choices.stop()
        if ROUTES in outputs:
            routes = self.choices.records(rows_of_parts, self.groups.positions)
            numbers = [self.extras.keep(part, ROUTES, of_part) for part, of_part in zip(parts, routes, strict=True)]
            results = [{**result, ROUTES: number} for result, number in zip(results, numbers, strict=bool(results))]
        if self.groups.is_source:
            for part, result in zip(parts, results, strict=True):
                for name, value in result.items():
                    scores[name][part] = value.to(scores[name])
        return sum_scores(TensorDict(scores, batch_size=batch.batch_size), self.groups.all)

    def step(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> Metrics:
        """One optimizer step, as `Trainer.step` defines it.

        Beside the objective's metrics there are those of `step_metrics`. A step is skipped for the reasons of
        `skip_reason`: parameters, AdamW's moments and its count of steps stay as they are, and the schedule advances.

        Raises: BatchError as `score`, and for a missing field that `objective` reads; InputError for a model that is
        not trained, and for an output that this trainer was not built for.
        """
        metrics = self._accumulate("step", batch, objective, counts, router_coefficient=self.router_coefficient)
        return self._optimize(metrics, counts)

    def gradient(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> dict[str, Tensor]:
        """The gradient that `step` would clip, by the names in Hugging Face's files, without that of the routers' loss.

        Raises: as `step`; InputError with the distributed optimizer, with which no rank has the sums of its weights.
        """
        if self.config.distributed_optimizer:
            need = "trainer.distributed_optimizer=false, with which each rank has the gradient of its weights"
            raise InputError("gradients", got="a distributed optimizer", need=need)
        self._accumulate("gradient", batch, objective, counts, router_coefficient=0.0)
        gradients = self.bridge.full_tensors(lambda parameter: parameter.main_grad)
        return {name: gradient.clone() for name, gradient in gradients}

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
        check_call(self.groups.all, call, batch, objective)
        replays = self.extras.replays(batch, call)
        reads = (*_READS, *([ROUTES] if replays else []), *objective.reads)
        indices = self._arrange(batch, reads, objective.unit)
        parts = self._rows(batch, indices, reads)
        if replays:
            self._replay(batch, indices, parts)
        device = self.groups.device
        counts = {name: Counts(count.tokens.to(device), count.rows.to(device)) for name, count in counts.items()}

        def evaluate(hidden: Tensor, rows: TensorDict) -> tuple[Tensor, Metrics]:
            return self._loss(hidden, rows, objective, counts)

        if router_coefficient > 0:
            self.load_of_routers.balance(self._count_choices(parts), router_coefficient)
        self.optimizer.zero_grad()
        self.reader.module.zero_grad_buffer()
        results = run(self.reader, parts, evaluate, with_gradient=True)
        self.load_of_routers.stop()
        self.choices.stop()
        metrics = self._tell_stages(sum_metrics(on_host(merge(*results)), self.groups.data) if results else {})
        changed = self._changed_fraction() if replays else {}
        return {**metrics, **changed, **self._router_metrics(router_coefficient)}

    def _replay(self, batch: TensorDict, indices: Sequence[Tensor], parts: Sequence[Any]) -> None:
        """Use recorded experts from now on, in the micro-batches `parts`, which have the rows `indices`."""
        fetched = self.extras.fetch(batch, [*map(MicroBatch, indices)])
        experts = (self.extras.experts(each, part[NUMBER].shape[1]) for each, part in zip(fetched, parts, strict=True))
        self.choices.replay([each for each in experts if each is not None], self.groups.device)

    def _loss(
        self, hidden: Tensor, rows: TensorDict, objective: Objective, counts: Mapping[str, Counts]
    ) -> tuple[Tensor, Metrics]:
        """The loss and the metrics of one micro-batch."""
        names = tuple(dict.fromkeys((*objective.outputs, *objective.metric_outputs)))
        outputs = self.reader.outputs(hidden, rows, names, rows.get(CHOICES, None))
        watched = {name: outputs[name].detach() for name in objective.metric_outputs}
        learned = {name: outputs[name] for name in objective.outputs}
        return compute_loss(objective, with_fields(select_fields(rows, objective.reads), **watched, **learned), counts)

    def _count_choices(self, parts: Sequence[TensorDict]) -> Tensor:
        """The number of times that each expert is chosen in the whole step, from one more forward pass."""
        load = self.load_of_routers
        load.count(self.reader.shape.experts, self.groups.device)
        run(self.reader, parts, lambda hidden, rows: None, with_gradient=False)
        return self.groups.all.sum(load.counts)

    def _router_metrics(self, coefficient: float) -> dict[str, Weighted]:
        if coefficient == 0:
            return {}
        total = self.groups.all.sum(self.load_of_routers.loss) / coefficient
        return {"router_aux_loss": Weighted(total.cpu().double(), torch.ones((), dtype=torch.float64))}

    def _changed_fraction(self) -> dict[str, Weighted]:
        """The fraction of replayed choices that are not those of the live router, over all layers and ranks."""
        changed, replayed = self.groups.all.sum(self.choices.changed).cpu().double()
        weight = replayed.clamp(max=1)
        return {"router_changed_fraction": Weighted(changed / replayed.clamp(min=1), weight)}

    def _tell_stages(self, metrics: Metrics) -> Metrics:
        """The metrics of the last stage, on all stages."""
        group = self.groups.pipeline
        return Ranks(group.rank(), group.size(), group).gather(metrics)[-1]

    def _optimize(self, metrics: Metrics, counts: Mapping[str, Counts]) -> Metrics:
        """Clip and step, or skip; add the trainer's own metrics."""
        rate = self.config.learning_rate(self.position, self.updates)
        norm = optimizer.clip_gradients(self.optimizer, self.config.max_grad_norm)
        reason = skip_reason(norm, counts, skip_zero_gradients=self.config.skip_zero_gradients)
        if reason is None:
            optimizer.set_learning_rate(self.optimizer, rate)
            self.optimizer.step_with_ready_grads()
        self.position += 1
        return {**metrics, **step_metrics(norm, reason, learning_rate=rate)}

    def _arrange(self, batch: TensorDict, reads: Sequence[str], unit: str) -> list[Tensor]:
        """Validate the whole batch, and divide it."""
        check_rows(check_batch(batch, reads), self.limits)
        read = with_fields(batch.select("group"), action=self.reader.positions(predicted_tokens(batch)))
        return arrange(read, unit=unit, budget=self.config.budget, ranks=self.groups.data)

    def _rows(self, batch: TensorDict, parts: Sequence[Tensor], reads: Sequence[str]) -> list[TensorDict]:
        """The rows of each micro-batch, on the device of the model, with numbers of their tokens."""
        choices = [CHOICES] if CHOICES in batch.keys() else []
        selected = select_fields(batch, (*reads, *choices))
        rows = [selected[part].to(self.groups.device) for part in parts]
        return number_tokens(rows, [self.reader.positions(predicted_tokens(part)) for part in rows])

    # --- weights and files -------------------------------------------------------------------------------------------

    def weights(self) -> Weights:
        """The weights of the language model under the names in Hugging Face's files."""
        return self.bridge

    def load_weights(self, weights: Weights, *, mix: float = 1.0) -> None:
        check_adapter(weights, self.capabilities)
        self._copy(weights, mix=mix)
        self.replaced = True

    def change_weights(self, names: Collection[str] | None, seed: int) -> list[str]:
        self._copy(ChangedWeights(self.bridge, names, seed), mix=1.0)
        return [*self.bridge.metadata]

    def _copy(self, weights: Weights, *, mix: float) -> None:
        self.bridge.copy(weights, mix=mix)
        if self.optimizer is not None:
            optimizer.reload_weights(self.optimizer)

    def save(self, path: Path) -> dict[str, str]:
        steps = 0 if self.optimizer is None else steps_of(self.optimizer)
        counters = {"position": self.position, "replaced": self.replaced, "steps": steps}
        saved = self.reader.model if self.optimizer is not None or self.replaced else None
        return checkpoint.write(path, saved, self.optimizer, counters)

    def load(self, path: Path) -> None:
        loaded: dict[str, Any] = {}
        self.groups.all.on_all(lambda: loaded.update(self._read(path)), "loading a checkpoint")
        self.position, self.replaced = loaded["counters"]["position"], loaded["counters"]["replaced"]
        if "model" in loaded:
            self.reader.model.load_state_dict(loaded["model"])
        if self.optimizer is not None:
            restore(self.optimizer, loaded["optimizer"])
            set_steps(self.optimizer, loaded["counters"]["steps"])

    def _read(self, path: Path) -> dict[str, Any]:
        counters = checkpoint.read_counters(path)
        if self.replaced and not counters["replaced"]:
            need = "a trainer that was just built: this one has lost the weights of its model's files"
            raise CheckpointError(f"{str(path)!r} cannot be loaded", got="weights that were replaced", need=need)
        if self.optimizer is None and not counters["replaced"]:
            return {"counters": counters}
        return checkpoint.read(path, self.reader.model, self.optimizer)

    def export(self, path: Path) -> None:
        export(path, self.model, self.bridge, getattr(self.reader.model, "heads", {}), self.groups)

    def close(self) -> None:
        self.optimizer = None
        del self.reader, self.bridge
