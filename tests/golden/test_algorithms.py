"""Complete algorithms on a few rows, with manually computed values."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import dapo, dpo, dr_grpo, grpo, gspo, rloo
from purerl.algos.algebra import compute_loss, prepare_step
from purerl.batch import with_fields
from tests.algos.helpers import group_with_rewards, with_advantage


@pytest.mark.parametrize(
    ("module", "correct", "incorrect"),
    [(grpo, 1.5, -0.5), (dapo, 1.5, -0.5), (gspo, 1.5, -0.5), (dr_grpo, 0.75, -0.25), (rloo, 1.0, -1 / 3)],
)
def test_advantage_of_one_correct_row_in_four(module, correct, incorrect):
    actual = with_advantage(module.algorithm(), group_with_rewards([1.0, 0.0, 0.0, 0.0]))["advantage"]
    expected = torch.tensor([correct] + [incorrect] * 3)[:, None] * torch.tensor([0.0, 1.0, 1.0])
    torch.testing.assert_close(actual, expected, atol=4e-6, rtol=0)


def test_dpo_loss_and_metrics():
    # D = (-1 - 1) - (-2 - 3) = 3, relative to a reference of 0.
    batch = group_with_rewards([0.0, 0.0], chosen=[True, False])
    logp = torch.tensor([[0.0, -1.0, -1.0], [0.0, -2.0, -3.0]])
    batch = with_fields(batch, logp=logp, ref_logp=torch.zeros_like(logp))
    [objective] = dpo.algorithm(dpo.Config(beta=0.5)).objectives
    step, counts = prepare_step(objective, batch)
    loss, metrics = compute_loss(objective, step, counts)
    torch.testing.assert_close(loss, torch.tensor(math.log(1 + math.exp(-1.5))))
    means = {name: float(metric.total / metric.weight) for name, metric in metrics.items()}
    assert (means["accuracy"], means["margin"]) == (1.0, 1.5)


def test_policy_metrics():
    batch = group_with_rewards([1.0, 0.0])
    logp = torch.tensor([[0.0, 1.5, 1.0], [0.0, 1.5, 1.0]]).log().clamp(min=-1)
    batch = with_fields(batch, logp=logp, old_logp=torch.zeros_like(logp), entropy=torch.full_like(logp, 2.0))
    algorithm = grpo.algorithm()
    batch = with_advantage(algorithm, batch)
    step, counts = prepare_step(algorithm.objectives[0], batch)
    metrics = compute_loss(algorithm.objectives[0], step, counts)[1]
    means = {name: round(float(metric.total / metric.weight), 4) for name, metric in metrics.items()}
    k3 = 1.5 - math.log(1.5) - 1
    assert means["ratio"] == 1.25
    assert (means["clip_fraction"], means["clip_fraction_low"], means["clip_fraction_high"]) == (0.25, 0.0, 0.25)
    assert means["entropy"] == 2.0
    assert means["approx_kl"] == round(k3 / 2, 4)
