"""Algorithms after the policy has moved, by hand.

Where it has not, every ratio is 1, no bound is near, and much that is confused goes unnoticed.
"""

from __future__ import annotations

import math

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos import aspo, dppo_kl, gmpo, pf_ppo, ppo, sapo, vapo
from purerl.algos.algebra import Objective
from purerl.batch import with_fields
from tests.algos.running import loss_of, with_advantage
from tests.golden.hand import close, f64, logs, where


def batch_of(action: Tensor, mask: Tensor | None = None, **fields: Tensor) -> TensorDict:
    """Rows of one group; all tokens are there."""
    each = torch.arange(len(action))
    structure = dict(tokens=action.long(), action=action, mask=action if mask is None else mask, row=each)
    there = torch.ones_like(action)
    return TensorDict({**structure, "group": 0 * each, "attention_mask": there, **fields}, batch_size=[len(action)])


def learned(objective: Objective, batch: TensorDict) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient by what the model supplies."""
    [output] = objective.outputs
    leaf = batch[output].clone().requires_grad_()
    watched = dict.fromkeys(objective.metric_outputs, torch.zeros_like(leaf))
    loss = loss_of(objective, with_fields(batch, **{output: leaf}, **watched))
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def test_aspo_inverts_the_ratio_of_good_tokens():
    # r = 1.4, 1/4, 0.7, 2. Good: 1 / 1.4, as 1.4 < 1 + 0.5, and min(4, 3). Bad: 0, as 0.7 < 1 - 0.2, and 2.
    [objective] = aspo.algorithm(aspo.Config(clip_low=0.2, clip_high=0.5, weight_cap=3.0)).objectives
    now, before = [0.7, 0.1, 0.35, 0.8], [0.5, 0.4, 0.5, 0.4]
    advantage = f64([1, 2, -1, -2])
    batch = batch_of(where("xxxx"), logp=logs(now), old_logp=logs(before), advantage=advantage)
    loss, gradient = learned(objective, batch)
    slopes = [-1 / 1.4 / 4, -3 * 2 / 4, 0, 2 * 2 / 4]
    close(gradient, slopes)
    close(loss[None], sum(slope * math.log(p) for slope, p in zip(slopes, now, strict=True)))


def test_sapo_has_a_gate_for_good_tokens_and_one_for_bad_ones():
    # The ratios are 2 and 1/2, so the sigmoids are of 1 (2 - 1) = 1 and of 3 (1/2 - 1) = -3/2.
    [objective] = sapo.algorithm(sapo.Config(gate_positive=1.0, gate_negative=3.0)).objectives
    batch = batch_of(where("xx"), logp=logs([0.8, 0.2]), old_logp=logs([0.4, 0.4]), advantage=f64([1, -2]))
    loss, gradient = learned(objective, batch)
    good, bad = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1.5))
    close(loss[None], (-4 * good + 2 * 4 / 3 * bad) / 2)
    close(gradient, [-4 * good * (1 - good) * 2 / 2, 2 * 4 * bad * (1 - bad) * 0.5 / 2])


def test_dppo_kl_drops_what_has_moved_too_far():
    # q log(q / p) + (1 - q) log((1 - q) / (1 - p)) is 0.18, 0.19, 0.02 and 0.12: the first may be up to 0.2, the others
    # up to 0.05. The second is dropped; the last moves back, and its ratio of 3 is capped.
    config = dppo_kl.Config(divergence_low=0.05, divergence_high=0.2, ratio_cap=2.5)
    [objective] = dppo_kl.algorithm(config).objectives
    now, sampler = [0.6, 0.3, 0.4, 0.3], [0.3, 0.6, 0.5, 0.1]
    advantage = f64([1, -1, -1, -1])
    batch = batch_of(where("xxxx"), logp=logs(now), rollout_logp=logs(sampler), advantage=advantage)
    loss, gradient = learned(objective, batch)
    slopes = [-2 / 4, 0, 0.8 / 4, 2.5 / 4]
    close(gradient, slopes)
    close(loss[None], sum(slope * math.log(p) for slope, p in zip(slopes, now, strict=True)))


def test_gmpo_clips_each_log_ratio_on_its_side():
    # Good: 0.3 and min(0.6, 0.4), with the mean 0.35. Bad: -0.05 and max(-0.3, -0.1), with the mean -0.075.
    [objective] = gmpo.algorithm(gmpo.Config(log_clip_low=0.1, log_clip_high=0.4)).objectives
    before, moved = f64([-1, -2], [-1, -2]), f64([0.3, 0.6], [-0.05, -0.3])
    advantage = f64([1, 1], [-2, -2])
    batch = batch_of(where("xx", "xx"), logp=before + moved, old_logp=before, advantage=advantage)
    loss, gradient = learned(objective, batch)
    close(loss[None], (-math.exp(0.35) + 2 * math.exp(-0.075)) / 2)
    close(gradient, [-math.exp(0.35) / 4, 0], [2 * math.exp(-0.075) / 4, 0])


def test_a_critic_is_held_near_its_old_estimate():
    # V_clip = 1/2, -1/2. max(1, 9/4) / 2, clipped; max(9, 25/4) / 2, with the gradient -1 - 2.
    critic = ppo.algorithm(ppo.Config(value_clip=0.5)).objectives[0]
    batch = batch_of(where("xx"), value=f64([1, -1]), old_value=f64([0, 0]), returns=f64([2, 2]))
    loss, gradient = learned(critic, batch)
    close(loss[None], (1.125 + 4.5) / 2)
    close(gradient, [0, -3 / 2])


def test_vapo_decouples_the_critic_from_the_policy():
    # A prompt, an action, a tool's answer and three actions, of which the second does not count. The rewards at actions
    # are 2, 0, 0, 8 and the values 1, 2, 3, 4. With a discount of 1/2 the reward to go is 3, 2, 4, 8. The trace is that
    # of four actions, 1 - 1 / 2, so each error decays by 1/4: delta = 2, -1/2, -1, 4 and A = 15/8, -1/2, 0, 4.
    algorithm = vapo.algorithm(vapo.Config(discount=0.5, trace_alpha=0.5))
    reward, value = f64([0, 0, 2, 0, 0, 8]), f64([9, 1, 9, 2, 3, 4])
    batch = batch_of(where(".x.xxx"), where(".x.x.x"), reward=reward, old_value=value)
    batch = with_advantage(algorithm, batch)
    close(batch["returns"], [0, 3, 0, 2, 0, 8])
    assert batch["correct"].equal(where(".x.x.x"))
    advantage = [1.875, -0.5, 4]
    mean = sum(advantage) / 3
    deviation = math.sqrt(sum((a - mean) ** 2 for a in advantage) / 2)
    first, second, third = ((a - mean) / deviation for a in advantage)
    close(batch["advantage"], [0, first, 0, second, 0, third], digits=1e-6)


def test_pf_ppo_learns_from_the_rows_that_were_drawn():
    # Weights 2^2 and 1^2, of the sum 5: 0.1 * 5 and 0.7 * 5 both lie below 4, so the first row is drawn twice, and the
    # second never. By the tokens, 2 * 3 / 2: the mean over three tokens is that of the one that was drawn.
    algorithm = pf_ppo.algorithm(pf_ppo.Config(power=2.0, clip_low=0.1, clip_high=0.5, value_clip=0.5))
    critic, policy = algorithm.objectives
    reward, noise, still = f64([2, 0], [0, 1]), f64([0.1, 0], [0.7, 0]), f64([0, 0], [0, 0])
    batch = with_advantage(algorithm, batch_of(where("x.", "xx"), reward=reward, noise=noise, old_value=still))
    close(batch["copies"], 3, 0)
    batch = with_fields(
        batch, value=f64([-1, 0], [1, 2]), returns=f64([2, 0], [3, 4]), old_logp=logs([0.5, 1], [0.5, 0.5])
    )
    batch = with_fields(batch, logp=logs([0.7, 1], [0.1, 0.2]), advantage=f64([1, 0], [1, -1]))
    loss, gradient = learned(critic, batch)
    close(loss[None], 4.5)
    close(gradient, [-3, 0], [0, 0])
    # r = 1.4 is below 1 + 0.5
    loss, gradient = learned(policy, batch)
    close(loss[None], -1.4)
    close(gradient, [-1.4, 0], [0, 0])
