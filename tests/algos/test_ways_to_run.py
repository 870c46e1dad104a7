"""Every algorithm under vmap, grad and compile; and what its gradient is in the mean."""

from __future__ import annotations

import itertools

import pytest
import torch

from purerl.algos import dr_grpo, rloo
from purerl.batch import collate, put
from tests.algos.running import MODULES, NAMES, all_at_once, example, loss_of, with_advantage


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_vmap_is_a_loop(module):
    function, batches = all_at_once(module.algorithm()), [example(module.algorithm(), seed=seed) for seed in range(3)]
    loop = [torch.stack(found) for found in zip(*map(function, batches), strict=True)]
    torch.testing.assert_close(list(torch.func.vmap(function)(torch.stack(batches))), loop)


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_functional_gradients_are_those_of_backward(module):
    algorithm = module.algorithm()
    batch = with_advantage(algorithm, example(algorithm))
    for objective in algorithm.objectives:
        name = objective.outputs[0]
        leaf = batch[name].clone().requires_grad_()
        [expected] = torch.autograd.grad(loss_of(objective, put(batch, **{name: leaf})), leaf)
        found = torch.func.grad(lambda x, o=objective, n=name: loss_of(o, put(batch, **{n: x})))(batch[name])
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_compiled_it_is_the_same(module):
    torch.compiler.reset()
    function, batch = all_at_once(module.algorithm()), example(module.algorithm())
    torch.testing.assert_close(torch.compile(function, fullgraph=True, backend="eager")(batch), function(batch))


def test_gradients_are_compiled_too():
    algorithm = dr_grpo.algorithm(dr_grpo.Config(kl_loss_coef=0.1))
    batch = with_advantage(algorithm, example(algorithm))

    def loss(logp: torch.Tensor) -> torch.Tensor:
        return loss_of(algorithm.objectives[0], put(batch, logp=logp))

    logp = batch["logp"].clone().requires_grad_()
    [found] = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(logp), logp)
    torch.testing.assert_close(found, torch.func.grad(loss)(batch["logp"]))


@pytest.mark.parametrize(("module", "factor"), [(rloo, 1.0), (dr_grpo, 2 / 3)])
def test_the_mean_gradient_over_all_groups_is_that_of_the_expected_reward(module, factor):
    """Every group of three one-token rows, weighed with its probability. Dr. GRPO: (N - 1) / N of the gradient."""
    logits = torch.tensor([0.3, -0.8, 0.5], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([1.0, 0.0, 0.3], dtype=torch.float64)
    algorithm = module.algorithm(*[dr_grpo.Config(norm_length=1)] if module is dr_grpo else [])
    rows = collate([dict(tokens=[0, 0], action=[0, 1], row=k, group=0) for k in range(3)])

    def loss(group: tuple[int, ...]) -> torch.Tensor:
        choice, logp = torch.tensor(group), logits.log_softmax(-1)
        batch = put(rows, **{name: torch.zeros(3, 2, dtype=torch.float64) for name in ("reward", "logp", "entropy")})
        batch = put(batch, reward=torch.stack([torch.zeros(3, dtype=torch.float64), reward[choice]], -1))
        batch = with_advantage(algorithm, batch)
        now = torch.stack([torch.zeros(3, dtype=torch.float64), logp[choice]], -1)
        probability = logp[choice].sum().exp().detach()
        return probability * loss_of(algorithm.objectives[0], put(batch, logp=now, old_logp=now.detach()))

    mean = sum(loss(group) for group in itertools.product(range(3), repeat=3))
    exact = -(logits.softmax(-1) * reward).sum()
    [found], [expected] = torch.autograd.grad(mean, logits), torch.autograd.grad(exact, logits)
    torch.testing.assert_close(found, factor * expected)
