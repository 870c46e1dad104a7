"""KTO, compared with its definition row by row."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import kto
from purerl.algos.algebra import compute_loss, prepare_step
from purerl.batch import with_fields
from tests.algos.helpers import example

SETTINGS = dict(beta=0.5, desirable_weight=2.0, undesirable_weight=0.7)


def expected_rows(batch, z: float) -> list[float]:
    losses = []
    for row in range(len(batch)):
        mask = batch["mask"][row]
        if mask.any() and not batch["mismatched"][row]:
            log_ratio = float((batch["logp"] - batch["ref_logp"])[row][mask].sum())
            sign, weight = (1, 2.0) if batch["desirable"][row] else (-1, 0.7)
            losses.append(weight * (1 - 1 / (1 + math.exp(-sign * 0.5 * (log_ratio - z)))))
    return losses


@pytest.mark.parametrize("drift", [0.4, -0.4])
def test_kto_equals_its_definition(drift):
    """With a negative estimate of the divergence, z is 0."""
    [objective] = kto.algorithm(kto.Config(**SETTINGS)).objectives
    batch = example(kto.algorithm(), seed=2)
    batch = with_fields(batch, old_logp=batch["ref_logp"] + drift, mismatched=torch.arange(len(batch)) % 3 == 0)
    counted = batch["mask"].sum(-1)[batch["mismatched"] & batch["mask"].any(-1)]
    z = max(0.0, drift * float(counted.double().mean()))
    losses = expected_rows(batch, z)
    step, counts = prepare_step(objective, batch)
    loss, metrics = compute_loss(objective, step, counts)
    assert len(losses) > 1
    assert float(loss) == pytest.approx(sum(losses) / len(losses))
    assert float(metrics["reference_point"].total / metrics["reference_point"].weight) == pytest.approx(z)


def test_rewards_of_both_labels_are_metrics():
    [objective] = kto.algorithm(kto.Config(beta=0.5)).objectives
    batch = example(kto.algorithm(), seed=2)
    step, counts = prepare_step(objective, batch)
    metrics = compute_loss(objective, step, counts)[1]
    reward = 0.5 * torch.where(batch["mask"], batch["logp"] - batch["ref_logp"], 0).sum(-1)
    rows = batch["mask"].any(-1) & ~batch["mismatched"]
    for name, label in (("desirable_reward", batch["desirable"]), ("undesirable_reward", ~batch["desirable"])):
        assert float(metrics[name].weight) == int((rows & label).sum())
        torch.testing.assert_close(metrics[name].total, reward[rows & label].sum())


def test_mismatched_rows_have_no_gradient():
    [objective] = kto.algorithm().objectives
    batch = example(kto.algorithm(), seed=4)
    logp = batch["logp"].clone().requires_grad_()
    step, counts = prepare_step(objective, with_fields(batch, logp=logp))
    [gradient] = torch.autograd.grad(compute_loss(objective, step, counts)[0], logp)
    has_gradient, rows = gradient.abs().sum(-1) > 0, batch["mask"].any(-1)
    assert (has_gradient == (rows & ~batch["mismatched"])).all()
    assert (rows & batch["mismatched"]).any()
