"""One step of a run, for every algorithm and every engine."""

from __future__ import annotations

import torch
from attrs import evolve
from tensordict import TensorDict

from purerl.algos.algebra import compute_advantages
from purerl.batch import collate, empty_batch, with_fields
from purerl.loop.metrics import batch_metrics, means
from purerl.loop.run import Clock, Run, Sample, State, seed_of
from purerl.loop.update import objectives_of, score, scored_fields, sync, update

__all__ = ["step"]


def step(run: Run, state: State, clock: Clock) -> tuple[State, TensorDict | None, list[Sample], dict[str, float]]:
    """Draw rows, score them, work out advantages, update the models.

    Gives the next state, the batch with all that was worked out about it, the samples that it was made of, and metrics.
    Where the algorithm kept no row there is no batch, and no model is changed; but its optimizer steps count as such in
    a schedule.

    With `rollout.max_staleness` of 1 the generator gets the weights of the previous update just before this one.
    Otherwise the caller of `step` hands over the weights of this one.
    """
    algorithm, objectives = run.algorithm, objectives_of(run)
    state, samples, metrics = run.source(run, state, clock)
    if run.lag:
        with clock("sync"):
            sync(run.trainers["policy"], run.generator, version=state.step)
    if not samples:
        for learned in (algorithm.before, objectives):
            update(run, state, empty_batch(), learned)
        return evolve(state, step=state.step + 1), None, samples, metrics
    batch = collate([sample.fields for sample in samples])
    if "noise" in run.reads:
        draw = torch.Generator().manual_seed(seed_of(run.config.seed, "noise", state.step))
        batch = with_fields(batch, noise=torch.rand(batch["tokens"].shape, generator=draw))
    with clock("update"):
        batch = score(run, batch, scored_fields(algorithm.before))
        updates = update(run, state, batch, algorithm.before)
    with clock("score"):
        batch = score(run, batch, scored_fields(objectives, algorithm.reads))
    with clock("advantage"):
        transform, batch = compute_advantages(algorithm, state.transform, batch)
    with clock("update"):
        updates |= update(run, state, batch, objectives)
    learned = means(updates)
    if "policy/logp_abs_diff" in learned:
        learned["mismatch/logp_abs_diff"] = learned.pop("policy/logp_abs_diff")
    metrics |= learned | batch_metrics(batch)
    return evolve(state, step=state.step + 1, transform=transform), batch, samples, metrics
