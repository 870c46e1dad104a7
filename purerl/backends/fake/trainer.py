"""A trainer for tests: plain stochastic gradient descent on a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError

import torch
from attrs import field, frozen
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Counts, Objective, Weighted, compute_loss
from purerl.backends.fake.model import export_weights, initial_weights, outputs_of
from purerl.batch import STRUCTURE, with_fields
from purerl.errors import CheckpointError, ConfigError
from purerl.protocols import Metrics, Model

__all__ = ["Config", "FakeTrainer", "build"]

_FILE = "weights.pt"


@frozen(kw_only=True)
class Config:
    """Settings of the fake trainer."""

    vocabulary: int = field(default=16, metadata={"help": "tokens that there are"})
    learning_rate: float = field(default=1.0, metadata={"help": "the gradient is multiplied by it; constant"})

    def __attrs_post_init__(self) -> None:
        if self.vocabulary < 1:
            raise ConfigError("vocabulary", got=self.vocabulary, need="at least 1")
        if not self.learning_rate > 0:
            raise ConfigError("learning_rate", got=self.learning_rate, need="above 0")


def build(config: Config, *, model: Model, role: str, updates: int, seed: int) -> FakeTrainer:
    """A trainer with the weights of `model`. It has no schedule and draws nothing: no use for `updates` and `seed`."""
    return FakeTrainer(config, initial_weights(model, config.vocabulary, role))


class FakeTrainer:
    """A `Trainer` of one process: weights <- weights - learning_rate * gradient."""

    def __init__(self, config: Config, weights: dict[str, Tensor]) -> None:
        self._config, self._weights = config, weights

    @torch.no_grad()
    def score(self, batch: TensorDict, outputs: Sequence[str]) -> TensorDict:
        return TensorDict(outputs_of(self._weights, batch, outputs), batch_size=batch.batch_size)

    def step(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> Metrics:
        """One step; a gradient that is not finite changes nothing, and `skipped` is 1 instead of 0."""
        leaves = {name: value.detach().requires_grad_() for name, value in self._weights.items()}
        found = outputs_of(leaves, batch, (*objective.outputs, *objective.metric_outputs))
        found |= {name: found[name].detach() for name in objective.metric_outputs if name not in objective.outputs}
        loss, metrics = compute_loss(
            objective, with_fields(batch.select(*STRUCTURE, *objective.reads), **found), counts
        )
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        own = {"skipped": torch.ones_like(norm)}
        if norm.isfinite():
            rate, pairs = self._config.learning_rate, zip(self._weights.items(), gradients, strict=True)
            self._weights = {name: value - rate * gradient for (name, value), gradient in pairs}
            own = {"skipped": torch.zeros_like(norm), "grad_norm": norm}
        return metrics | {name: Weighted(value, torch.ones_like(norm)) for name, value in own.items()}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._weights.items()

    def save(self, path: Path) -> None:
        torch.save(self._weights, path / _FILE)

    def load(self, path: Path) -> None:
        try:
            weights = torch.load(path / _FILE, weights_only=True)
        except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
            raise CheckpointError(f"no weights can be read from {str(path)!r}", got=str(error)) from error
        shapes = [{name: list(value.shape) for name, value in one.items()} for one in (weights, self._weights)]
        if shapes[0] != shapes[1]:
            raise CheckpointError(f"the weights in {str(path)!r} do not fit", got=shapes[0], need=str(shapes[1]))
        self._weights = weights

    def export(self, path: Path) -> None:
        export_weights(self._weights, path)
