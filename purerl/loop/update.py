"""Scoring a batch with the models that an algorithm reads, and updating the models that it trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Weighted, merge, prepare_step
from purerl.algos.parts.bypass import use_current_outputs
from purerl.batch import FIELDS, with_fields
from purerl.config.requirements import StepSchedule
from purerl.loop.metrics.mismatch import is_measured, with_mismatch
from purerl.protocols import Trainer
from purerl.seeds import derive_seed
from purerl.types import RowInt, TensorDict

__all__ = ["Schedule", "loop_objectives", "score", "scored_fields", "split", "units_of", "update"]


@frozen
class Schedule:
    """The use of the rows of a step: passes and mini-batches of each model, and the seed of the split.

    In the first `critic_warmup` steps of `steps` only the critic is trained.
    """

    steps: StepSchedule
    seed: int

    def active(self, objectives: Sequence[Objective], step: int) -> tuple[Objective, ...]:
        """The objectives whose models are trained in the step after `step`."""
        return tuple(o for o in objectives if step >= self.steps.critic_warmup or o.role == "critic")


def loop_objectives(algorithm: Algorithm, schedule: StepSchedule, *, is_sampling: bool) -> tuple[Objective, ...]:
    """The objectives of `algorithm` as the loop uses them.

    If a step is one optimizer step of a model, the model at the start of the update is the model of the loss. Then
    scores of it that only the loss reads, such as `old_logp`, are not computed beforehand; and the training-inference
    mismatch is measured by the loss.
    """
    return tuple(
        objective
        if schedule.passes(objective.role).updates > 1
        else _without_scores(objective, algorithm.reads, is_sampling)
        for objective in algorithm.objectives
    )


def _without_scores(objective: Objective, reads: Sequence[str], is_sampling: bool) -> Objective:  # noqa: FBT001
    fields = {name: field.source[1] for name, field in FIELDS.items() if field.source[:1] == (objective.role,)}
    lean = use_current_outputs(objective, {name: output for name, output in fields.items() if name not in reads})
    return with_mismatch(lean) if is_sampling and "old_logp" in {*objective.reads} - {*lean.reads} else lean


def scored_fields(objectives: Iterable[Objective], reads: Iterable[str] = ()) -> tuple[str, ...]:
    """The fields, among `reads` and those that `objectives` read, that models compute."""
    names = dict.fromkeys([*reads, *(name for objective in objectives for name in objective.reads)])
    return tuple(name for name in names if FIELDS[name].source)


def score(trainers: Mapping[str, Trainer], batch: TensorDict, fields: Iterable[str]) -> TensorDict:
    """`batch` with `fields`, each computed by the model that is its source, with one call per model.

    The pass that computes `old_logp` also writes `routes`, if the trainer of the policy has this output.
    """
    by_role: dict[str, dict[str, str]] = {}
    fields = tuple(fields)
    has_routes = "old_logp" in fields and "routes" in trainers["policy"].capabilities.outputs
    for name in (*fields, *["routes"] * has_routes):
        role, output = FIELDS[name].source
        by_role.setdefault(role, {})[name] = output
    for role, names in by_role.items():
        outputs = tuple(dict.fromkeys(names.values()))
        trainer = trainers.get(role)
        scores = trainer.score(batch, outputs) if trainer else _by_teacher(trainers, batch, role, outputs)
        batch = with_fields(batch, **{name: scores[output] for name, output in names.items()})
    return batch


def _by_teacher(trainers: Mapping[str, Trainer], batch: TensorDict, role: str, outputs: tuple[str, ...]) -> TensorDict:
    """The scores of each row by the model that `teacher_index` selects."""
    from tensordict import TensorDict

    teachers = [trainer for name, trainer in trainers.items() if name.startswith(f"{role}s.")]
    rows = [(batch["teacher_index"] == index).nonzero()[:, 0] for index in range(len(teachers))]
    scores = [t.score(batch[part], outputs) for t, part in zip(teachers, rows, strict=True) if len(part)]
    return TensorDict.cat(scores, 0)[torch.cat(rows).argsort()]


def units_of(batch: TensorDict, unit: str) -> RowInt:
    """A label of the `unit` ("row" or "group") that each row of `batch` belongs to. The rows of an episode are one."""
    rows = batch["episode"] if "episode" in batch.keys() else torch.arange(len(batch))
    return batch["group"] if unit == "group" else rows


def update(
    trainers: Mapping[str, Trainer], batch: TensorDict, objectives: Sequence[Objective], schedule: Schedule, step: int
) -> dict[str, Weighted]:
    """Update the model of each objective, in order, in every mini-batch of every pass of this model.

    If `batch` has no `old_logp`, the training-inference mismatch is measured in the forward pass of the first optimizer
    step of the policy, which has the weights after `step`, of tokens that were sampled with these.
    """
    metrics: dict[str, Weighted] = {}
    measured = _not_measured(batch, objectives)
    passes = {objective.role: schedule.steps.passes(objective.role) for objective in objectives}
    for epoch in range(max((each.ppo_epochs for each in passes.values()), default=0)):
        seed = derive_seed(schedule.seed, "split", step, epoch)
        for objective in (each for each in objectives if epoch < passes[each.role].ppo_epochs):
            for part in split(batch, passes[objective.role].minibatches, objective.unit, seed):
                used = with_mismatch(objective, step) if objective is measured else objective
                measured = None if objective is measured else measured
                prepared, counts = prepare_step(used, part)
                report = trainers[objective.role].step(prepared, used, counts)
                metrics = merge(metrics, {f"{objective.role}/{name}": value for name, value in report.items()})
    return metrics


def _not_measured(batch: TensorDict, objectives: Sequence[Objective]) -> Objective | None:
    """The first objective of the policy, if sampled rows have nothing else from which the mismatch is computed."""
    if (
        not {"rollout_logp", "version"} <= {*batch.keys()}
        or "old_logp" in batch.keys()
        or any(map(is_measured, objectives))
    ):
        return None
    return next((each for each in objectives if each.role == "policy" and "logp" in each.outputs), None)


def split(batch: TensorDict, parts: int, unit: str, seed: int) -> Iterator[TensorDict]:
    """Distribute the rows of `batch` randomly over `parts` mini-batches.

    A `unit` ("row" or "group") stays together, and so do the rows of an episode.
    """
    units, member = units_of(batch, unit).unique(return_inverse=True)
    order = torch.randperm(len(units), generator=torch.Generator().manual_seed(seed))
    for chosen in order.tensor_split(parts):
        yield batch[torch.isin(member, chosen)]
