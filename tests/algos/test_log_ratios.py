"""Log-probabilities of -inf: the values and gradients of ratios, divergences and losses."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import absolute_log_ratio, algebra, k1, k2, k3, policy_gradient, rloo, sequence_ratio, token_ratio
from purerl.algos.parts.distillation import topk_forward_kl, topk_reverse_kl
from purerl.algos.parts.log_ratios import LOGP_FLOOR, log_ratio
from purerl.algos.parts.surrogates import sequence_product_ratio
from purerl.algos.parts.weights import binary_kl
from purerl.batch import with_fields
from purerl.testing.outcome import find_difference, run
from tests.algos.helpers import MODULES, NAMES, example, with_advantage

INF = torch.inf
LOGP, OLD_LOGP = torch.tensor([[-1.0, -INF, -1.0, -INF]]), torch.tensor([[-1.5, -INF, -INF, -1.0]])
MASK = torch.tensor([[True, True, True, True]])
BOTH, OLD_ONLY, CURRENT_ONLY = 1, 2, 3


def with_gradient(function, logp=LOGP):
    leaf = logp.clone().requires_grad_()
    value = function(leaf)
    return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


def test_ratio_is_1_if_both_are_infinite_and_at_its_bound_if_one_is():
    value, gradient = with_gradient(lambda logp: token_ratio(logp, OLD_LOGP))
    assert value.log()[0, BOTH] == 0
    assert value.log()[0, OLD_ONLY] == 20
    assert value.log()[0, CURRENT_ONLY] == -20
    assert gradient[0, 0] == value[0, 0], "the other tokens are unchanged"
    assert not gradient[0, 1:].any()


def test_log_ratio_of_one_infinite_value_is_that_of_the_floor():
    assert log_ratio(LOGP, OLD_LOGP).tolist() == [[0.5, 0.0, -1.0 - LOGP_FLOOR, LOGP_FLOOR + 1.0]]


@pytest.mark.parametrize("estimate", [k1, k2, k3, absolute_log_ratio, binary_kl])
def test_divergences_are_0_if_both_are_infinite_and_finite_otherwise(estimate):
    value, gradient = with_gradient(lambda logp: estimate(logp, OLD_LOGP))
    assert value.isfinite().all()
    assert gradient.isfinite().all()
    assert value[0, BOTH] == 0
    assert gradient[0, [BOTH, CURRENT_ONLY]].tolist() == [0, 0]


@pytest.mark.parametrize("ratio", [sequence_ratio, sequence_product_ratio])
def test_ratios_of_rows_ignore_a_token_that_no_policy_can_sample(ratio):
    one_sided = torch.tensor([[True, True, False, False]])
    value, gradient = with_gradient(lambda logp: ratio(logp, OLD_LOGP, one_sided))
    expected = 0.25 if ratio is sequence_ratio else 0.5
    torch.testing.assert_close(value.log()[0, :2], torch.full((2,), expected))
    assert gradient.isfinite().all()
    assert gradient[0, BOTH] == 0


def test_policy_gradient_is_finite_also_without_an_advantage():
    value, gradient = with_gradient(lambda logp: policy_gradient(logp, torch.tensor([[1.0, 0.0, 1.0, 2.0]])))
    assert value.tolist() == [[1.0, 0.0, 1.0, -2 * LOGP_FLOOR]]
    assert gradient.tolist() == [[-1.0, 0.0, -1.0, 0.0]]


@pytest.mark.parametrize("divergence", [topk_reverse_kl, topk_forward_kl])
def test_top_k_divergences_leave_out_a_token_with_probability_0(divergence):
    teacher = torch.tensor([[[0.5, 0.0, 0.0]]]).log()
    value, gradient = with_gradient(lambda logp: divergence(logp, teacher), torch.tensor([[[0.5, 0.0, 0.25]]]).log())
    assert value.isfinite().all()
    assert gradient.isfinite().all()
    assert gradient[0, 0, 1] == 0


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_results_with_infinity_are_those_with_the_floor(module):
    """The value of every algorithm is defined: it is that of `LOGP_FLOOR`, and the current token has no gradient."""
    algorithm = module.algorithm()
    batch = example(algorithm)
    logps = {name: value for name, value in batch.items() if name.endswith("logp")}
    chosen = {n: torch.rand(v.shape, generator=torch.Generator().manual_seed(3)) < 0.3 for n, v in logps.items()}
    infinite, floor = (
        run(
            algorithm, with_fields(batch, **{name: value.masked_fill(chosen[name], x) for name, value in logps.items()})
        )
        for x in (-INF, LOGP_FLOOR)
    )
    for name, expected in floor.rows.items():
        output = name.split("gradient of ")[-1]
        expected = torch.where(chosen[output], 0, expected) if output in chosen else expected
        torch.testing.assert_close(infinite.rows[name], expected, equal_nan=False)
    assert find_difference(floor._replace(rows={}), infinite._replace(rows={})) is None


def test_infinite_values_are_replaced_before_every_function_of_an_algorithm():
    batch = example(rloo.algorithm())
    batch = with_fields(batch, logp=torch.full_like(batch["logp"], -INF))
    seen = []

    def loss(part):
        seen.append(part["logp"])
        return -part["logp"]

    (objective,) = rloo.algorithm().objectives
    objective = objective._replace(terms=(objective.terms[0]._replace(loss=loss),))
    step, counts = algebra.prepare_step(objective, with_advantage(rloo.algorithm(), batch))
    algebra.compute_loss(objective, step, counts)
    assert torch.where(batch["mask"], seen[0], LOGP_FLOOR).eq(LOGP_FLOOR).all()
