"""Diagnostics of gradients, on a small policy, compared with one backward pass for each row."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import dpo, grpo
from purerl.algos.algebra import compute_loss, prepare_step
from purerl.algos.diagnostics import (
    chi_square,
    gradient_cosine,
    gradient_noise_scale,
    objective_gradient,
    row_gradient_norms,
)
from purerl.algos.modifiers import kl_loss
from purerl.batch import with_fields
from purerl.composition import with_modifiers
from purerl.errors import InputError
from tests.algos.helpers import example, with_advantage

ALGORITHM = with_modifiers(grpo.algorithm(), kl_loss.Config(coef=0.1))


def forward(parameters, batch):
    """A policy whose log-probabilities are a linear function of those at the start, and of the position."""
    logp = parameters["scale"] * batch["old_logp"] + parameters["bias"][: batch["old_logp"].shape[-1]]
    return {"logp": logp, "entropy": -logp.detach()}


PARAMETERS = {"scale": torch.tensor(0.9, dtype=torch.float64), "bias": torch.linspace(-0.2, 0.1, 9).double()}


def step_of(algorithm):
    batch = with_advantage(algorithm, example(algorithm))
    return prepare_step(algorithm.objectives[0], batch)


def gradient_by_hand(objective, part, counts):
    leaves = {name: value.clone().requires_grad_() for name, value in PARAMETERS.items()}
    loss, _ = compute_loss(objective, with_fields(part, **forward(leaves, part)), counts)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def norm(gradient):
    return torch.cat([value.reshape(-1) for value in gradient.values()]).norm()


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_row_gradients_are_those_of_batches_of_one_row(chunk_size):
    [objective] = ALGORITHM.objectives
    step, counts = step_of(ALGORITHM)
    norms = row_gradient_norms(objective, forward, PARAMETERS, step, counts, chunk_size=chunk_size)
    expected = torch.stack([norm(gradient_by_hand(objective, step[k : k + 1], counts)) for k in range(len(step))])
    assert 0 < int((expected > 0).sum()) < len(step), "a row without counted tokens has no gradient"
    torch.testing.assert_close(norms, expected)
    gradient = objective_gradient(objective, forward, PARAMETERS, step, counts)
    torch.testing.assert_close(gradient, gradient_by_hand(objective, step, counts))


def test_cosine_of_the_losses_of_an_algorithm_and_of_its_penalty():
    [objective] = ALGORITHM.objectives
    step, counts = step_of(ALGORITHM)
    parts = [objective._replace(terms=(term,)) for term in objective.terms]
    policy, penalty, both = (
        objective_gradient(each, forward, PARAMETERS, step, counts) for each in (*parts, objective)
    )
    torch.testing.assert_close(both, {name: policy[name] + penalty[name] for name in both})
    vectors = [torch.cat([value.reshape(-1) for value in each.values()]) for each in (policy, penalty)]
    expected = torch.nn.functional.cosine_similarity(*vectors, dim=0)
    torch.testing.assert_close(gradient_cosine(policy, penalty), expected)


def test_noise_scale_is_the_ratio_of_variance_and_squared_mean():
    """Both are estimated from many steps: the estimators of a step have no bias."""
    draw, rows, steps = torch.Generator().manual_seed(0), 8, 20_000
    samples = torch.tensor([1.0, 2.0]) + 3 * torch.randn(steps, rows, 2, generator=draw).double()
    norms, total = (samples / rows).norm(dim=-1), samples.mean(1).norm(dim=-1)
    scale = gradient_noise_scale(norms, total)
    square = total.square()
    noise = (rows * norms.square().sum(-1) - square) * rows / (rows - 1)
    assert noise.mean().item() == pytest.approx(2 * 3**2, rel=0.02)
    assert (square - noise / rows).mean().item() == pytest.approx(1 + 4, rel=0.03)
    finite = scale[scale.isfinite()]
    torch.testing.assert_close(finite, (noise / (square - noise / rows))[scale.isfinite()])


def test_rows_of_pairs_are_refused():
    [objective] = dpo.algorithm().objectives
    step, counts = step_of(dpo.algorithm())
    with pytest.raises(InputError, match="gradients of rows\n  got:  an objective with the unit 'group'"):
        row_gradient_norms(objective, forward, PARAMETERS, step, counts)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_chi_square_has_no_gradient_outside_of_the_mask(value: float) -> None:
    ratio = torch.tensor([[1.5, value]], dtype=torch.float64, requires_grad=True)
    actual = chi_square(ratio, torch.tensor([[True, False]]))
    assert actual.item() == 0.25
    assert torch.autograd.grad(actual, ratio)[0].tolist() == [[1.0, 0.0]]
