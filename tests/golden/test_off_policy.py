"""Algorithms with a policy that has changed since the rollout, with manually computed values.

If it has not changed, every ratio is 1 and no clip is active, so tests would miss mistakes in ratios and clips.
"""

from __future__ import annotations

import math

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos import aspo, dppo_kl, gmpo, pf_ppo, ppo, sapo, vapo
from purerl.algos.algebra import Objective
from purerl.batch import with_fields
from tests.algos.helpers import loss_of, with_advantage
from tests.golden.helpers import assert_values, f64, logs, mask_of


def batch_of(action: Tensor, mask: Tensor | None = None, **fields: Tensor) -> TensorDict:
    """Rows of one group, without padding."""
    row = torch.arange(len(action))
    structure = dict(
        tokens=action.long(),
        attention_mask=torch.ones_like(action),
        action=action,
        mask=action if mask is None else mask,
        row=row,
        group=0 * row,
    )
    return TensorDict({**structure, **fields}, batch_size=[len(action)])


def loss_and_gradient(objective: Objective, batch: TensorDict) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient with respect to the output of the model."""
    [output] = objective.outputs
    leaf = batch[output].clone().requires_grad_()
    metric_outputs = dict.fromkeys(objective.metric_outputs, torch.zeros_like(leaf))
    loss = loss_of(objective, with_fields(batch, **{output: leaf}, **metric_outputs))
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def test_aspo_inverts_the_ratio_of_tokens_with_positive_advantage():
    # r = 1.4, 1/4, 0.7, 2. If A > 0, the weights are 1 / 1.4, because 1.4 < 1 + 0.5, and min(4, 3). If A < 0, they are
    # 0, because 0.7 < 1 - 0.2, and 2.
    [objective] = aspo.algorithm(aspo.Config(clip_low=0.2, clip_high=0.5, weight_cap=3.0)).objectives
    current, old = [0.7, 0.1, 0.35, 0.8], [0.5, 0.4, 0.5, 0.4]
    advantage = f64([1, 2, -1, -2])
    batch = batch_of(mask_of("xxxx"), logp=logs(current), old_logp=logs(old), advantage=advantage)
    loss, gradient = loss_and_gradient(objective, batch)
    expected = [-1 / 1.4 / 4, -3 * 2 / 4, 0, 2 * 2 / 4]
    assert_values(gradient, expected)
    assert_values(loss[None], sum(g * math.log(p) for g, p in zip(expected, current, strict=True)))


def test_sapo_has_separate_gates_for_positive_and_negative_advantages():
    # The ratios are 2 and 1/2, so the arguments of the sigmoids are 1 (2 - 1) = 1 and 3 (1/2 - 1) = -3/2.
    [objective] = sapo.algorithm(sapo.Config(gate_positive=1.0, gate_negative=3.0)).objectives
    batch = batch_of(mask_of("xx"), logp=logs([0.8, 0.2]), old_logp=logs([0.4, 0.4]), advantage=f64([1, -2]))
    loss, gradient = loss_and_gradient(objective, batch)
    positive, negative = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1.5))
    assert_values(loss[None], (-4 * positive + 2 * 4 / 3 * negative) / 2)
    assert_values(gradient, [-4 * positive * (1 - positive) * 2 / 2, 2 * 4 * negative * (1 - negative) * 0.5 / 2])


def test_dppo_kl_drops_tokens_with_a_large_divergence():
    # q log(q / p) + (1 - q) log((1 - q) / (1 - p)) is 0.18, 0.19, 0.02 and 0.12. The bound is 0.2 for the first token
    # and 0.05 for the others. The second token is dropped. The last one has r > 1 and A < 0, so it is not dropped, and
    # its ratio of 3 is capped.
    config = dppo_kl.Config(divergence_low=0.05, divergence_high=0.2, ratio_cap=2.5)
    [objective] = dppo_kl.algorithm(config).objectives
    current, rollout = [0.6, 0.3, 0.4, 0.3], [0.3, 0.6, 0.5, 0.1]
    advantage = f64([1, -1, -1, -1])
    batch = batch_of(mask_of("xxxx"), logp=logs(current), rollout_logp=logs(rollout), advantage=advantage)
    loss, gradient = loss_and_gradient(objective, batch)
    expected = [-2 / 4, 0, 0.8 / 4, 2.5 / 4]
    assert_values(gradient, expected)
    assert_values(loss[None], sum(g * math.log(p) for g, p in zip(expected, current, strict=True)))


def test_gmpo_clips_each_log_ratio_on_one_side():
    # If A > 0, the log-ratios are 0.3 and min(0.6, 0.4), with the mean 0.35. If A < 0, they are -0.05 and
    # max(-0.3, -0.1), with the mean -0.075.
    [objective] = gmpo.algorithm(gmpo.Config(log_clip_low=0.1, log_clip_high=0.4)).objectives
    old, log_ratio = f64([-1, -2], [-1, -2]), f64([0.3, 0.6], [-0.05, -0.3])
    advantage = f64([1, 1], [-2, -2])
    batch = batch_of(mask_of("xx", "xx"), logp=old + log_ratio, old_logp=old, advantage=advantage)
    loss, gradient = loss_and_gradient(objective, batch)
    assert_values(loss[None], (-math.exp(0.35) + 2 * math.exp(-0.075)) / 2)
    assert_values(gradient, [-math.exp(0.35) / 4, 0], [2 * math.exp(-0.075) / 4, 0])


def test_ppo_clips_the_value_near_the_old_value():
    # V_clip = 1/2, -1/2. The losses are max(1, 9/4) / 2, clipped, and max(9, 25/4) / 2, with the gradient -1 - 2.
    critic = ppo.algorithm(ppo.Config(value_clip=0.5)).objectives[0]
    batch = batch_of(mask_of("xx"), value=f64([1, -1]), old_value=f64([0, 0]), returns=f64([2, 2]))
    loss, gradient = loss_and_gradient(critic, batch)
    assert_values(loss[None], (1.125 + 4.5) / 2)
    assert_values(gradient, [0, -3 / 2])


def test_vapo_uses_separate_lambdas_for_critic_and_policy():
    # The row has a prompt token, an action, a tool token and three actions; the second of these is masked out. At the
    # actions, the rewards are 2, 0, 0, 8 and the values 1, 2, 3, 4. With a discount of 1/2, the returns are 3, 2, 4, 8.
    # lambda_ for four actions is 1 - 1 / 2, so errors decay by 1/4: delta = 2, -1/2, -1, 4 and A = 15/8, -1/2, 0, 4.
    algorithm = vapo.algorithm(vapo.Config(discount=0.5, trace_alpha=0.5))
    reward, value = f64([0, 0, 2, 0, 0, 8]), f64([9, 1, 9, 2, 3, 4])
    batch = batch_of(mask_of(".x.xxx"), mask_of(".x.x.x"), reward=reward, old_value=value)
    batch = with_advantage(algorithm, batch)
    assert_values(batch["returns"], [0, 3, 0, 2, 0, 8])
    assert batch["correct"].equal(mask_of(".x.x.x"))
    advantage = [1.875, -0.5, 4]
    mean = sum(advantage) / 3
    std = math.sqrt(sum((a - mean) ** 2 for a in advantage) / 2)
    first, second, third = ((a - mean) / std for a in advantage)
    assert_values(batch["advantage"], [0, first, 0, second, 0, third], atol=1e-6)


def test_pf_ppo_trains_on_the_resampled_rows():
    # The weights are 2^2 and 1^2, with the sum 5. 0.1 * 5 and 0.7 * 5 are below 4, so the first row is drawn twice and
    # the second is not drawn. `copies` is 2 * 3 / 2 = 3: the mean over three tokens is then the value of the one token
    # that was drawn.
    algorithm = pf_ppo.algorithm(pf_ppo.Config(power=2.0, clip_low=0.1, clip_high=0.5, value_clip=0.5))
    critic, policy = algorithm.objectives
    reward, noise, zero = f64([2, 0], [0, 1]), f64([0.1, 0], [0.7, 0]), f64([0, 0], [0, 0])
    batch = with_advantage(algorithm, batch_of(mask_of("x.", "xx"), reward=reward, noise=noise, old_value=zero))
    assert_values(batch["copies"], 3, 0)
    batch = with_fields(
        batch, value=f64([-1, 0], [1, 2]), returns=f64([2, 0], [3, 4]), old_logp=logs([0.5, 1], [0.5, 0.5])
    )
    batch = with_fields(batch, logp=logs([0.7, 1], [0.1, 0.2]), advantage=f64([1, 0], [1, -1]))
    loss, gradient = loss_and_gradient(critic, batch)
    assert_values(loss[None], 4.5)
    assert_values(gradient, [-3, 0], [0, 0])
    # r = 1.4 is below 1 + 0.5.
    loss, gradient = loss_and_gradient(policy, batch)
    assert_values(loss[None], -1.4)
    assert_values(gradient, [-1.4, 0], [0, 0])
