"""A trainer for tests: stochastic gradient descent on a table, on any number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from purerl.algos.algebra import Counts, Objective, compute_loss
from purerl.backends.collective import check_call, sum_metrics, sum_scores
from purerl.backends.fake.model import BIGRAM, OUTPUTS, compute_outputs, export_weights, initial_weights
from purerl.backends.fake.settings import TrainerConfig as Config
from purerl.backends.optimizer_steps import skip_reason, step_metrics
from purerl.backends.weights import TensorWeights, check_adapter, copy_weights
from purerl.batch import select_fields, with_fields
from purerl.errors import CheckpointError
from purerl.kernels.partition import assign_ranks, tokens_needed
from purerl.protocols import Capabilities, Metrics, Weights
from purerl.ranks import Ranks, current_ranks
from purerl.settings import Model
from purerl.types import TensorDict

__all__ = ["Config", "FakeTrainer", "build", "capabilities", "conformance", "depends_on_length"]

_FILE = "weights.safetensors"


def capabilities() -> Capabilities:
    """The capabilities of a trainer."""
    return Capabilities(outputs=frozenset(OUTPUTS))


def depends_on_length(config: Config) -> bool:
    """Whether learning rates depend on the number of optimizer steps of the run: the learning rate is constant."""
    return False


def build(config: Config, *, model: Model, role: str, outputs: Sequence[str], updates: int, seed: int) -> FakeTrainer:
    """A trainer with the weights of `model`. `updates` and `seed` have no effect: nothing is scheduled or random."""
    return FakeTrainer(config, initial_weights(model, config.vocab_size, outputs), current_ranks())


class FakeTrainer:
    """A `Trainer`: weights <- weights - lr * gradient. Each rank computes the gradient of its rows."""

    def __init__(self, config: Config, weights: dict[str, Tensor], ranks: Ranks) -> None:
        self._config, self._weights, self._ranks = config, weights, ranks
        self.capabilities = capabilities()

    @torch.no_grad()
    def score(self, batch: TensorDict, outputs: Sequence[str]) -> TensorDict:
        from tensordict import TensorDict

        check_call(self._ranks, "score", batch, tuple(outputs))
        rows = self._rows(batch, "row")
        local = compute_outputs(self._weights, batch[rows], outputs, top_k=self._config.top_k)
        scores = {name: value.new_zeros(len(batch), *value.shape[1:]) for name, value in local.items()}
        for name, value in scores.items():
            value[rows] = local[name]
        return sum_scores(TensorDict(scores, batch_size=batch.batch_size), self._ranks)

    def step(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> Metrics:
        """Take one step, or skip it for one of the reasons of `skip_reason`."""
        gradients, metrics = self._gradients("step", batch, objective, counts)
        norm = float(torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt())
        reason = skip_reason(norm, counts, skip_zero_gradients=True)
        if reason is None:
            self._weights = {name: value - self._config.lr * gradients[name] for name, value in self._weights.items()}
        return sum_metrics(metrics, self._ranks) | step_metrics(norm, reason, learning_rate=self._config.lr)

    def gradient(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> dict[str, Tensor]:
        return self._gradients("gradient", batch, objective, counts)[0]

    def _gradients(
        self, call: str, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]
    ) -> tuple[dict[str, Tensor], Metrics]:
        """The gradient of the whole batch, and the metrics of this rank's rows."""
        check_call(self._ranks, call, batch, objective)
        leaves = {name: value.detach().requires_grad_() for name, value in self._weights.items()}
        part = batch[self._rows(batch, objective.unit)]
        names = (*objective.outputs, *objective.metric_outputs)
        outputs = compute_outputs(leaves, part, names, top_k=self._config.top_k)
        outputs |= {name: outputs[name].detach() for name in set(names).difference(objective.outputs)}
        fields = select_fields(part, objective.reads)
        loss, metrics = compute_loss(objective, with_fields(fields, **outputs), counts)
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        self._ranks.sum_in_place(gradients)
        return dict(zip(leaves, gradients, strict=True)), metrics

    def weights(self) -> Weights:
        return TensorWeights({BIGRAM: self._weights[BIGRAM]})

    def load_weights(self, weights: Weights, *, mix: float = 1.0) -> None:
        check_adapter(weights, self.capabilities)
        copies = {name: value.clone() for name, value in self._weights.items()}
        copy_weights(weights, copies, mix=mix)
        self._weights = copies

    def save(self, path: Path) -> None:
        self.stage().write(path, self._ranks)

    def stage(self) -> FakeState:
        return FakeState(self._weights)

    def load(self, path: Path) -> None:
        try:
            weights = load_file(path / _FILE)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"no weights can be read from {str(path)!r}", got=str(error)) from error
        shapes = [{name: list(value.shape) for name, value in group.items()} for group in (weights, self._weights)]
        if shapes[0] != shapes[1]:
            raise CheckpointError(f"the weights in {str(path)!r} do not fit", got=shapes[0], need=str(shapes[1]))
        self._weights = weights

    def export(self, path: Path) -> None:
        self._ranks.on_first(lambda: export_weights(self._weights, path))

    def close(self) -> None:
        self._weights = {}

    def _rows(self, batch: TensorDict, unit: str) -> Tensor:
        """The indices of this rank's rows."""
        labels = batch["group"] if unit == "group" else torch.arange(len(batch))
        rank_of_row = assign_ranks(tokens_needed(batch["action"]), labels, ranks=self._ranks.size)
        return (rank_of_row == self._ranks.rank).nonzero()[:, 0]


@frozen
class FakeState:
    """Weights of a `FakeTrainer`, which replaces them and never changes them in place."""

    weights: Mapping[str, Tensor]

    def write(self, path: Path, ranks: Ranks) -> None:
        """Write them into `path`, on rank 0."""
        ranks.on_first(lambda: (path / _FILE).write_bytes(save(dict(self.weights))), "writing weights")


def conformance(directory: Path) -> dict[str, Any]:
    """The arguments of `purerl.testing.check_trainer` for this trainer; nothing is written into `directory`."""

    def logits(weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
        return weights[BIGRAM][tokens]

    def load(path: Path) -> FakeTrainer:
        model = Model(str(path), dtype="float64")
        return build(Config(vocab_size=11, lr=0.1), model=model, role="policy", outputs=OUTPUTS, updates=10, seed=0)

    make, sgd = partial(load, Path("conformance")), partial(torch.optim.SGD, lr=0.1)
    return {"build": make, "vocab_size": 11, "logits": logits, "optimizer": sgd, "load": load}
