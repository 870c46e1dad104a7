"""Scoring a batch under every model that an algorithm reads, and updating every model that it trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from tensordict import TensorDict

from purerl.algos.algebra import Objective, Weighted, merge, prepare_step
from purerl.algos.parts.bypass import use_current_outputs
from purerl.batch import FIELDS, with_fields
from purerl.loop.metrics import with_gap
from purerl.loop.run import Run, State, seed_of
from purerl.protocols import Generator, Trainer

__all__ = ["cut", "objectives_of", "score", "scored_fields", "sync", "update"]


def objectives_of(run: Run) -> tuple[Objective, ...]:
    """What the models minimize in a step of the loop.

    Where that is one optimizer step of each, what a model was when the step began it still is when the loss is taken:
    nothing is scored beforehand that the loss alone reads. The gap to the sampler is then told by the loss.
    """
    objectives = run.algorithm.objectives
    if run.config.ppo_epochs * run.config.num_minibatches > 1:
        return objectives
    return tuple(_unscored(objective, run) for objective in objectives)


def _unscored(objective: Objective, run: Run) -> Objective:
    own = {name: field.source[1] for name, field in FIELDS.items() if field.source[:1] == (objective.role,)}
    lean = use_current_outputs(
        objective, {name: output for name, output in own.items() if name not in run.algorithm.reads}
    )
    sampled = run.config.rollout is not None and "old_logp" in {*objective.reads} - {*lean.reads}
    return with_gap(lean) if sampled else lean


def scored_fields(objectives: Iterable[Objective], reads: Iterable[str] = ()) -> tuple[str, ...]:
    """The fields among `reads` and what `objectives` read that a model has to be asked for."""
    names = dict.fromkeys([*reads, *(name for objective in objectives for name in objective.reads)])
    return tuple(name for name in names if FIELDS[name].source)


def score(run: Run, batch: TensorDict, fields: Iterable[str]) -> TensorDict:
    """`batch` with `fields`, each from the model that is its source; a model is asked once for all of its own."""
    wanted: dict[str, dict[str, str]] = {}
    for name in fields:
        role, output = FIELDS[name].source
        wanted.setdefault(role, {})[name] = output
    for role, names in wanted.items():
        outputs = run.trainers[role].score(batch, tuple(dict.fromkeys(names.values())))
        batch = with_fields(batch, **{name: outputs[output] for name, output in names.items()})
    return batch


def update(run: Run, state: State, batch: TensorDict, objectives: Sequence[Objective]) -> dict[str, Weighted]:
    """Every objective's model, in their order, over `ppo_epochs` passes of `num_minibatches` optimizer steps each."""
    metrics: dict[str, Weighted] = {}
    for epoch in range(run.config.ppo_epochs):
        for objective in objectives:
            seed = seed_of(run.config.seed, "cut", state.step, epoch)
            for part in cut(batch, run.config.num_minibatches, objective.unit, seed):
                prepared, counts = prepare_step(objective, part)
                found = run.trainers[objective.role].step(prepared, objective, counts)
                metrics = merge(metrics, {f"{objective.role}/{name}": value for name, value in found.items()})
    return metrics


def cut(batch: TensorDict, parts: int, unit: str, seed: int) -> Iterator[TensorDict]:
    """Deal the rows of `batch` into `parts` optimizer steps, at random, without cutting a `unit` ("row" or "group")."""
    labels = batch["group"] if unit == "group" else torch.arange(len(batch))
    units, member = labels.unique(return_inverse=True)
    order = torch.randperm(len(units), generator=torch.Generator().manual_seed(seed))
    for chosen in order.tensor_split(parts):
        yield batch[torch.isin(member, chosen)]


def sync(trainer: Trainer, generator: Generator, version: int) -> None:
    """Hand the trainer's weights to the generator, as `version`."""
    generator.load_weights(trainer.weights(), version=version)
