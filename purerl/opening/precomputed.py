"""Log-probabilities of a reference for every row of a run that learns from data, computed before the first step.

The model is open only while they are computed. They are stored in the run directory by a digest of the tokens of each
row, which depend on the data, the tokenizer and the chat template. A resumed run reads them, and computes those of rows
that are new, as in further steps. If the model or its settings are others than those that they were computed with, all
are computed again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from purerl.batch import collate
from purerl.config.requirements import ModelRole, Requirements
from purerl.config.schema import RunConfig
from purerl.config.structure import to_dict
from purerl.errors import EngineError, InputError
from purerl.images import ImageStore
from purerl.opening.engines import open_trainer, preview_engines
from purerl.opening.fit import check_fit, lengths_of
from purerl.opening.images import use_images
from purerl.opening.model_notes import limit_vocabularies
from purerl.placement.join import RankContext
from purerl.protocols import Capabilities, Metrics, Trainer, Weights
from purerl.rollouts.opened import EngineCapabilities, Task
from purerl.rollouts.types import Trajectory
from purerl.store.directory import RunDirectory
from purerl.system.devices.accelerator import release_cached_memory
from purerl.system.files import atomic_directory
from purerl.types import TensorDict

__all__ = ["StoredOutputs", "open_precomputed", "row_keys"]

_LOG = logging.getLogger(__name__)
_KEY = 16  # bytes


class StoredOutputs:
    """A `Trainer` of a model that is not loaded: its outputs were computed before. It is never trained.

    values   the outputs at the action tokens of each row, [outputs, tokens], by the key of the row
    outputs  their names
    """

    def __init__(self, values: Mapping[bytes, Tensor], outputs: tuple[str, ...]) -> None:
        self.values, self.outputs = values, outputs
        self.capabilities = Capabilities(outputs=frozenset(outputs), images=True)

    def use_images(self, images: ImageStore) -> None:
        """There is nothing to read: the outputs are known."""

    def score(self, batch: TensorDict, outputs: Sequence[str]) -> TensorDict:
        """The stored `outputs` of all rows, 0 where `action` is false. Raises: EngineError for a row without them."""
        from tensordict import TensorDict

        action, dtype = batch["action"], batch["temperature"].dtype
        scores = {name: torch.zeros(action.shape, dtype=dtype) for name in outputs}
        for row, key in enumerate(row_keys(batch)):
            if key not in self.values:
                need = "one of the rows that were computed before the first step"
                do = "remove the directory precomputed of the run, and resume it"
                raise EngineError("a stored output", got="a row that is not stored", need=need, do=do)
            for name in outputs:
                scores[name][row, action[row]] = self.values[key][self.outputs.index(name)].to(dtype)
        return TensorDict(scores, batch_size=batch.batch_size)

    def step(self, batch: TensorDict, objective: Any, counts: Any) -> Metrics:
        raise InputError("an optimizer step", got="a model that is not loaded", need="a role that is trained")

    def weights(self) -> Weights:
        raise EngineError("weights", got="a model that is not loaded", need="a model of its own")

    def load_weights(self, weights: Weights, *, mix: float = 1.0) -> None:
        raise EngineError("weights", got="a model that is not loaded", need="a model of its own")

    def save(self, path: Path) -> dict[str, str]:
        return {}

    def load(self, path: Path) -> None:
        """There is nothing to load: the outputs are not part of a checkpoint."""

    def export(self, path: Path) -> None:
        raise EngineError("an export", got="a model that is not loaded", need="a model that is trained")

    def close(self) -> None:
        """There is nothing to release."""


def row_keys(batch: TensorDict) -> list[bytes]:
    """A digest of the tokens of each row, without padding, of those that are learned, and of its images."""
    names = [name for name in ("tokens", "action", "image") if name in batch.keys()]
    columns, lengths = [batch[name].numpy() for name in names], batch["attention_mask"].sum(-1).tolist()
    return [
        blake2b(b"".join(column[row, :length].tobytes() for column in columns), digest_size=_KEY).digest()
        for row, length in enumerate(lengths)
    ]


def open_precomputed(
    config: RunConfig,
    needs: Requirements,
    task: Task,
    directory: RunDirectory,
    *,
    context: RankContext,
    fingerprints: Mapping[str, Mapping[str, Any]],
    rows: Callable[[], Iterator[list[Trajectory]]],
) -> dict[str, StoredOutputs]:
    """The outputs of each model with the setting `precompute`, for all rows of the run. Collective.

    `fingerprints` are those of all models, by role, and `rows` iterates over all rows.

    Raises: ConfigError and DataError as `open_trainer` and `check_fit`.
    """
    names = [name for name, role in needs.models.items() if role.settings.precompute]
    found = {}
    for name in names:
        role, folder = needs.models[name], directory.path / "precomputed"
        identity = _identity(role, needs.models["policy"], fingerprints.get(name, {}))
        values = _read(folder / f"{name}.safetensors", identity)
        if not all(context.ranks.gather(len(values), "stored outputs")):
            values = {}  # a rank does not see the file, so all ranks compute
        known = len(values)
        with ExitStack() as stack:
            opened = _Opened(name, config, needs, task, context, stack)
            for trajectories in rows():
                _add(values, trajectories, opened, role.outputs)
        release_cached_memory()
        if len(values) > known:
            context.ranks.on_first(partial(_write, folder, name, values, identity), "stored outputs")
        found[name] = StoredOutputs(values, role.outputs)
    return found


def _identity(role: ModelRole, policy: ModelRole, fingerprint: Mapping[str, Any]) -> str:
    """A digest of what the outputs of a row depend on: the model, its settings, and the ids that the policy has."""
    described = [dict(fingerprint), to_dict(role.settings), to_dict(policy.settings)["model"], [*role.outputs]]
    return blake2b(json.dumps(described, sort_keys=True, default=str).encode(), digest_size=_KEY).hexdigest()


class _Opened:
    """The trainer `name` of a run, which is opened when it is first needed, and which `stack` closes."""

    def __init__(
        self, name: str, config: RunConfig, needs: Requirements, task: Task, context: RankContext, stack: ExitStack
    ) -> None:
        self._name, self._config, self._needs, self._task = name, config, needs, task
        self._context, self._stack = context, stack
        self._trainer: Trainer | None = None

    def get(self) -> Trainer:
        """The trainer. Raises: ConfigError and DataError if it cannot read the rows of the run."""
        if self._trainer is None:
            name, needs, config, task = self._name, self._needs, self._config, self._task
            trainer = open_trainer(name, needs.models[name], 0, seed=config.seed, processes=self._context.processes)
            self._stack.callback(trainer.close)
            policy = preview_engines(needs, None).trainers.get("policy")
            limit_vocabularies(needs.models, {name: trainer}, policy and policy.vocab_size)
            use_images(task.chat, {f"trainer of the {name}": trainer})
            steps = needs.schedule.num_steps(task.training.examples.num_rows)
            check_fit(task, EngineCapabilities({name: trainer.capabilities}), **lengths_of(config, steps))
            self._trainer = trainer
        return self._trainer


def _add(
    values: dict[bytes, Tensor], trajectories: list[Trajectory], opened: _Opened, outputs: tuple[str, ...]
) -> None:
    """Compute the `outputs` of those rows that `values` does not have."""
    if not trajectories:
        return
    batch = collate([trajectory.fields for trajectory in trajectories])
    new = {key: row for row, key in enumerate(row_keys(batch)) if key not in values}
    if not new:
        return
    part = batch[[*new.values()]]
    scores = opened.get().score(part, outputs)
    for row, key in enumerate(new):
        action = part["action"][row]
        values[key] = torch.stack([scores[name][row, action] for name in outputs]).float()


def _read(path: Path, identity: str) -> dict[bytes, Tensor]:
    """The values in the file `path`, if they have this `identity`; empty without them, or if the file is damaged."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("identity") != identity:
                return {}
            tensors = {name: file.get_tensor(name) for name in ("keys", "lengths", "values")}
            if metadata.get("digest") != _digest(tensors):
                raise SafetensorError("the tensors do not have their digest")
    except SafetensorError as error:
        _LOG.warning("%s is damaged, and computed again: %s", path, error)
        return {}
    parts = tensors["values"].split(tensors["lengths"].tolist(), dim=-1)
    return {key.numpy().tobytes(): part for key, part in zip(tensors["keys"], parts, strict=True)}


def _write(folder: Path, name: str, values: Mapping[bytes, Tensor], identity: str) -> None:
    """Write `values` into the directory `folder`, which replaces the one that is there."""
    from safetensors.torch import save_file

    tensors = {
        "keys": torch.frombuffer(bytearray(b"".join(values)), dtype=torch.uint8).reshape(-1, _KEY),
        "lengths": torch.tensor([value.shape[-1] for value in values.values()]),
        "values": torch.cat([*values.values()], -1),
    }
    metadata = {"identity": identity, "digest": _digest(tensors)}
    with atomic_directory(folder) as new:
        save_file(tensors, new / f"{name}.safetensors", metadata=metadata)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = blake2b(digest_size=_KEY)
    for _, tensor in sorted(tensors.items()):
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
