"""A trainer in actors, as a `Trainer` of the driver."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import frozen
from torch import Tensor

from purerl.algos.algebra import Counts, Objective
from purerl.placement.actors.arrays import pack, unpack
from purerl.placement.actors.group import ActorGroup
from purerl.placement.actors.host import Built
from purerl.placement.actors.package import load_ray
from purerl.placement.actors.weights import RemoteWeights, load_weights
from purerl.protocols import Metrics, Trainer, Weights
from purerl.ranks import Ranks
from purerl.types import TensorDict

__all__ = ["RemoteTrainer", "build_trainer"]

_NUMBERS = itertools.count()  # of staged states


class RemoteTrainer:
    """The trainer `name` in the actors of `group`, which are its ranks.

    A batch is put into the object store once. It has those optional methods of `purerl.protocols` that the trainer has.
    """

    def __init__(self, group: ActorGroup, name: str, built: Built) -> None:
        self.group, self.name, self.capabilities = group, name, built.capabilities
        self._weights = RemoteWeights(group, name)
        optional: dict[str, Callable] = {
            "base": self._base,
            "flops": partial(self._call, "flops", None),
            "gradient": self._gradient,
            "limit_vocabulary": partial(self._call, "limit_vocabulary", None),
            "peak_flops": partial(self._call, "peak_flops", None),
            "stage": self._stage,
            "use_images": partial(self._call, "use_images", None),
            "use_routes": partial(self._call, "use_routes", None),
        }
        # Attributes of this object, because it must not seem to have the methods that the trainer does not have.
        vars(self).update({method: call for method, call in optional.items() if method in built.methods})

    def _call(self, method: str, batch: TensorDict | None, *arguments: Any, **keywords: Any) -> Any:
        packed = None if batch is None else load_ray().put(pack(batch))
        return unpack(self.group.call_engine(self.name, method, packed, *arguments, **keywords)[0])

    def score(self, batch: TensorDict, outputs: Sequence[str]) -> TensorDict:
        return self._call("score", batch, tuple(outputs)).clone()

    def step(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> Metrics:
        return self._call("step", batch, objective, counts)

    def _gradient(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> Mapping[str, Tensor]:
        return self._call("gradient", batch, objective, counts)

    def weights(self) -> RemoteWeights:
        return self._weights

    def load_weights(self, weights: Weights, *, mix: float = 1.0) -> None:
        load_weights(weights, self.group, self.name, mix=mix)

    def change_weights(self, names: Collection[str] | None, seed: int) -> list[str]:
        return self.group.call("change_weights", self.name, names, seed)[0]

    def save(self, path: Path) -> Mapping[str, str]:
        return _merged(self.group.call("call_each", self.name, "save", None, path.absolute()))

    def load(self, path: Path) -> None:
        self._call("load", None, path.absolute())

    def export(self, path: Path) -> None:
        self._call("export", None, path.absolute())

    def close(self) -> None:
        self.group.close(self.name)

    def _base(self) -> Trainer | None:
        name = f"{self.name} at its start"
        built = self.group.call("open_base", self.name, name)[0]
        return None if built is None else RemoteTrainer(self.group, name, built)

    def _stage(self) -> _StagedState:
        number = next(_NUMBERS)
        self.group.call("stage", self.name, number)
        return _StagedState(self.group, number)


@frozen
class _StagedState:
    """The state `number` that the actors of `group` keep."""

    group: ActorGroup
    number: int

    def write(self, path: Path, ranks: Ranks) -> Mapping[str, str]:
        return _merged(self.group.call("write_staged", self.number, path.absolute(), thread="checkpoints"))


def _merged(digests: Sequence[Mapping[str, str] | None]) -> dict[str, str]:
    """The digests of all ranks. A file without one is read again by the caller."""
    return {name: digest for each in digests for name, digest in (each or {}).items()}


def build_trainer(group: ActorGroup, name: str, build: Callable[[], Trainer]) -> RemoteTrainer:
    """The trainer that `build` returns in each actor of `group`."""
    return RemoteTrainer(group, name, group.call("build", name, build)[0])
