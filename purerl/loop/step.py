"""One step of a run, for every algorithm and every engine."""

from __future__ import annotations

import torch
from attrs import evolve
from tensordict import TensorDict

from purerl.algos.algebra import advantages
from purerl.batch import collate, no_rows, put
from purerl.loop.metrics import batch_metrics, means
from purerl.loop.run import Clock, Run, Sample, State, seed_of
from purerl.loop.update import objectives_of, score, scored_fields, sync, update

__all__ = ["step"]


def step(run: Run, state: State, clock: Clock) -> tuple[State, TensorDict | None, list[Sample], dict[str, float]]:
    """Draw rows, score them, work out advantages, update the models.

    Gives the next state, the batch with all that was worked out about it, the samples that it was made of, and metrics.
    Where the algorithm kept no row there is no batch, and no model is changed; but its optimiser steps count as such in
    a schedule.

    With `rollout.lag` of 1 the sampler gets the weights of the update before, just before this one; otherwise whoever
    calls `step` hands it the weights of this one. One step off policy is a matter of when `sync` is called.
    """
    algorithm, objectives = run.algorithm, objectives_of(run)
    state, samples, metrics = run.source(run, state, clock)
    if run.lag:
        with clock("sync"):
            sync(run.trainers["policy"], run.generator, version=state.step)
    if not samples:
        for learnt in (algorithm.before, objectives):
            update(run, state, no_rows(), learnt)
        return evolve(state, step=state.step + 1), None, samples, metrics
    batch = collate([sample.fields for sample in samples])
    if "noise" in run.reads:
        draw = torch.Generator().manual_seed(seed_of(run.config.seed, "noise", state.step))
        batch = put(batch, noise=torch.rand(batch["tokens"].shape, generator=draw))
    with clock("update"):
        batch = score(run, batch, scored_fields(algorithm.before))
        updates = update(run, state, batch, algorithm.before)
    with clock("score"):
        batch = score(run, batch, scored_fields(objectives, algorithm.reads))
    with clock("advantage"):
        transform, batch = advantages(algorithm, state.transform, batch)
    with clock("update"):
        updates |= update(run, state, batch, objectives)
    metrics |= means(updates) | batch_metrics(batch)
    return evolve(state, step=state.step + 1, transform=transform), batch, samples, metrics
