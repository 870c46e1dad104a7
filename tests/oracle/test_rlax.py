"""Estimators, surrogates and the entropy of token outputs against the functions of rlax.

rlax has functions of one sequence, and no masks. Here a row has tokens between its actions, which rlax does not get.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from purerl.algos.estimators.returns import discounted_returns, gae, vtrace_advantage, vtrace_target
from purerl.algos.parts.surrogates import clip_surrogate, policy_gradient
from purerl.kernels.logp import chunked, reference

from .agreement import assert_agree
from .compositions import Result

jax = pytest.importorskip("jax", reason="jax is not installed: nox -s oracle")
rlax = pytest.importorskip("rlax", reason="rlax is not installed: nox -s oracle")
jax.config.update("jax_enable_x64", True)
jnp = jax.numpy

SEEDS = range(25)
ROWS, TIME, ACTIONS, VOCABULARY = 6, 9, 5, 7
DISCOUNT, LAMBDA, RHO = 0.95, 0.8, 1.2


def _after(value: Any) -> Any:
    """The value of the next action; 0 after the last one."""
    return jnp.append(value[1:], 0.0)


def _rlax_gae(reward: Any, value: Any, logp: Any, rollout_logp: Any) -> Any:
    discount = jnp.full_like(reward, DISCOUNT)
    return rlax.truncated_generalized_advantage_estimation(reward, discount, LAMBDA, jnp.append(value, 0.0))


def _rlax_lambda_returns(reward: Any, value: Any, logp: Any, rollout_logp: Any) -> Any:
    return rlax.lambda_returns(reward, jnp.full_like(reward, DISCOUNT), _after(value), LAMBDA)


def _rlax_returns(reward: Any, value: Any, logp: Any, rollout_logp: Any) -> Any:
    return rlax.discounted_returns(reward, jnp.full_like(reward, DISCOUNT), jnp.zeros_like(reward))


def _rlax_vtrace(name: str, lambda_: float, reward: Any, value: Any, logp: Any, rollout_logp: Any) -> Any:
    """`name` is errors or pg_advantage."""
    result = rlax.vtrace_td_error_and_advantage(
        value,
        _after(value),
        reward,
        jnp.full_like(reward, DISCOUNT),
        jnp.exp(logp - rollout_logp),
        lambda_,
        clip_rho_threshold=RHO,
        clip_pg_rho_threshold=RHO,
        stop_target_gradients=False,
    )
    return getattr(result, name)


def _gae(reward: Tensor, value: Tensor, logp: Tensor, rollout_logp: Tensor, action: Tensor) -> Tensor:
    return gae(reward, value, action, discount=DISCOUNT, lambda_=LAMBDA)


def _lambda_returns(reward: Tensor, value: Tensor, logp: Tensor, rollout_logp: Tensor, action: Tensor) -> Tensor:
    return _gae(reward, value, logp, rollout_logp, action) + torch.where(action, value, 0)


def _returns(reward: Tensor, value: Tensor, logp: Tensor, rollout_logp: Tensor, action: Tensor) -> Tensor:
    return discounted_returns(reward, action, discount=DISCOUNT)


def _vtrace_error(reward: Tensor, value: Tensor, logp: Tensor, rollout_logp: Tensor, action: Tensor) -> Tensor:
    inputs, clips = (reward, value, logp, rollout_logp, action), {"rho_clip": RHO, "trace_clip": 1.0}
    target = vtrace_target(*inputs, discount=DISCOUNT, lambda_=LAMBDA, **clips)
    return torch.where(action, target - value, 0)


def _vtrace_advantage(reward: Tensor, value: Tensor, logp: Tensor, rollout_logp: Tensor, action: Tensor) -> Tensor:
    inputs, clips = (logp, rollout_logp, action), {"rho_clip": RHO, "trace_clip": 1.0}
    target = vtrace_target(reward, value, *inputs, discount=DISCOUNT, lambda_=1.0, **clips)
    return vtrace_advantage(reward, value, target, *inputs, discount=DISCOUNT, rho_clip=RHO)


CASES: dict[str, tuple[Callable, Callable]] = {
    "gae": (_gae, _rlax_gae),
    "lambda_returns": (_lambda_returns, _rlax_lambda_returns),
    "discounted_returns": (_returns, _rlax_returns),
    "vtrace_target": (_vtrace_error, partial(_rlax_vtrace, "errors", LAMBDA)),
    "vtrace_advantage": (_vtrace_advantage, partial(_rlax_vtrace, "pg_advantage", 1.0)),
}


def _rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def _positions(rng: torch.Generator) -> Tensor:
    """The positions of the actions of each row [ROWS, ACTIONS], in ascending order."""
    return torch.rand(ROWS, TIME, generator=rng).argsort(-1)[:, :ACTIONS].sort(-1).values


def _ours(function: Callable, inputs: list[Tensor], factor: Tensor) -> Result:
    """The values, their sum weighted by `factor`, and its gradients with respect to `inputs`."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    values = function(*leaves)
    total = (values * factor).sum()
    gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return Result(values.detach(), total.detach(), torch.stack(gradients))


def _theirs(function: Callable, inputs: list[Tensor], factor: Tensor) -> Result:
    """The same with a function of jax."""
    values, pull = jax.vjp(function, *(jnp.asarray(x.numpy()) for x in inputs))
    gradients = np.stack([np.asarray(g) for g in pull(jnp.asarray(factor.numpy()))])
    values = torch.tensor(np.asarray(values))
    return Result(values, (values * factor).sum(), torch.tensor(gradients))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_estimator_has_the_value_and_gradient_of_rlax(name: str, seed: int) -> None:
    rng, (ours, theirs) = _rng(seed), CASES[name]
    positions = _positions(rng)
    action = torch.zeros(ROWS, TIME, dtype=torch.bool).scatter(-1, positions, True)
    reward, value, logp, factor = (_draw(rng, ROWS, TIME) for _ in range(4))
    inputs = [torch.where(action, reward, 0), value, logp, logp + 0.5 * _draw(rng, ROWS, TIME)]
    mine = _ours(lambda *leaves: ours(*leaves, action), inputs, factor)
    compact = [x.gather(-1, positions) for x in (*inputs, factor)]
    other = _theirs(jax.vmap(theirs), compact[:-1], compact[-1])
    at_actions = (mine.advantage.gather(-1, positions), mine.gradient.gather(-1, positions.expand(4, -1, -1)))
    assert_agree("rlax", Result(at_actions[0], mine.loss, at_actions[1]), other)


@pytest.mark.parametrize("seed", SEEDS)
def test_clipped_surrogate_has_the_value_and_gradient_of_rlax(seed: int) -> None:
    rng = _rng(seed)
    ratio, advantage, one = (0.4 * _draw(rng, ACTIONS)).exp(), _draw(rng, ACTIONS), torch.ones(1, dtype=torch.float64)
    mine = _ours(lambda r: clip_surrogate(r, advantage, clip_low=0.2, clip_high=0.2).mean(-1, True), [ratio], one)
    theirs = _theirs(
        lambda r: rlax.clipped_surrogate_pg_loss(r, jnp.asarray(advantage.numpy()), 0.2)[None], [ratio], one
    )
    assert_agree("rlax", mine, theirs)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kernel", [reference.token_outputs, partial(chunked.token_outputs, chunk=2)])
def test_policy_gradient_and_entropy_have_the_value_and_gradient_of_rlax(kernel: Callable, seed: int) -> None:
    rng = _rng(seed)
    logits, advantage, weight = _draw(rng, ACTIONS, VOCABULARY), _draw(rng, ACTIONS), _draw(rng, ACTIONS).abs()
    tokens = torch.randint(VOCABULARY, (ACTIONS,), generator=rng)

    def ours(logits: Tensor) -> Tensor:
        head, ones = torch.eye(VOCABULARY, dtype=torch.float64), torch.ones(ACTIONS)
        outputs = kernel(logits, head, None, tokens, ones, outputs=("logp", "entropy"), scale=1.0, softcap=None)
        loss = policy_gradient(outputs["logp"], advantage)
        return torch.stack([(weight * loss).mean(), -(weight * outputs["entropy"]).mean()])

    def theirs(logits: Any) -> Any:
        action, scale, weights = (jnp.asarray(x.numpy()) for x in (tokens, advantage, weight))
        loss = rlax.policy_gradient_loss(logits, action, scale, weights)
        return jnp.stack([loss, rlax.entropy_loss(logits, weights)])

    factor = _draw(rng, 2)
    assert_agree("rlax", _ours(ours, [logits], factor), _theirs(theirs, [logits], factor))
