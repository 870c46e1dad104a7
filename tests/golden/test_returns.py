"""Recurrences over action tokens: two or three steps, by hand."""

from __future__ import annotations

import math

import torch

from purerl.algos import (
    discounted_returns,
    gae,
    length_adaptive_lambda,
    move_rewards_to_actions,
    vtrace_advantage,
    vtrace_target,
)
from purerl.algos.parts.actions import action_index, gather_to_actions, segment_sum
from tests.golden.hand import close, f64, logs, where


def test_tokens_share_the_place_of_the_action_before_them():
    action = where("..x.x.")
    place = action_index(action)
    assert place.tolist() == [[0, 0, 0, 0, 1, 1]]
    folded = segment_sum(f64([1, 2, 4, 8, 16, 32]), place)
    close(folded, [15, 48, 0, 0, 0, 0])
    close(gather_to_actions(folded, place, action), [0, 0, 15, 0, 48, 0])


def test_gae_by_hand():
    # delta = [0 + 2 - 1, 4 + 0 - 2] = [1, 2]; A = [1 + 2 / 2, 2]
    yes = torch.tensor([[True, True]])
    found = gae(torch.tensor([[0.0, 4.0]]), torch.tensor([[1.0, 2.0]]), yes, discount=1.0, lambda_=0.5)
    assert found.tolist() == [[2.0, 2.0]]


def test_tool_tokens_are_stepped_over():
    action = torch.tensor([[False, True, False, False, True, False]])
    reward = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0, 8.0]])
    assert discounted_returns(reward, action, discount=0.5).tolist() == [[0.0, 5.0, 0.0, 0.0, 8.0, 0.0]]


def test_rewards_before_the_first_action_go_to_it():
    action = torch.tensor([[False, False, True, True, False]])
    folded = move_rewards_to_actions(torch.tensor([[1.0, 2.0, 4.0, 8.0, 16.0]]), action)
    assert folded.tolist() == [[0.0, 0.0, 7.0, 24.0, 0.0]]


def test_a_row_without_actions_has_nobody_to_reward():
    assert not move_rewards_to_actions(torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.bool)).any()


def test_the_trace_grows_with_the_row():
    # 1 - 1 / (n / 2), for n = 4, 2 and 0: 1/2, 0, and no less than 0
    found = length_adaptive_lambda(where("xxxx", "xx..", "...."), alpha=0.5, dtype=torch.float64)
    close(found, [0.5], [0], [0])


RATIO, MU = logs([4, 0.5]), torch.zeros(1, 2, dtype=torch.float64)
YES = where("xx")


def test_vtrace_by_hand():
    # rho = min(4, 2), min(1/2, 2) = 2, 1/2 and c = min(r, 1/2) = 1/2; V = 1, 2; reward 0, 4; discount 1/2.
    # delta = 2 (0 + 1/2 * 2 - 1), 1/2 (4 - 2) = 0, 1. e = 0 + 1/2 * 1/2 * 1, 1 = 1/4, 1. v = 5/4, 3.
    value, reward, discount = f64([1, 2]), f64([0, 4]), 0.5
    target = vtrace_target(reward, value, RATIO, MU, YES, discount=discount, lambda_=1.0, rho_clip=2.0, trace_clip=0.5)
    close(target, [1.25, 3])
    # The advantages are 2 (0 + 1/2 * 3 - 1) and 1/2 (4 - 2).
    found = vtrace_advantage(reward, value, target, RATIO, MU, YES, discount=discount, rho_clip=2.0)
    close(found, [1, 1])


def test_the_trace_of_vtrace_decays_with_lambda():
    # As above, with lambda_ = 1/4: c = 1/4 * 1/2, e = 0 + 1/2 * 1/8 * 1, 1 = 1/16, 1.
    value, reward = f64([1, 2]), f64([0, 4])
    target = vtrace_target(reward, value, RATIO, MU, YES, discount=0.5, lambda_=0.25, rho_clip=2.0, trace_clip=0.5)
    close(target, [1.0625, 3])


def test_vtrace_reads_nothing_outside_of_actions():
    value, reward, none, first = f64([1, math.nan]), f64([2, 0]), f64([0, math.nan]), where("x.")
    target = vtrace_target(reward, value, none, MU, first, discount=0.5, lambda_=1.0, rho_clip=2.0, trace_clip=0.5)
    close(target, [2, 0])
    close(vtrace_advantage(reward, value, target, none, MU, first, discount=0.5, rho_clip=2.0), [1, 0])


def test_the_effective_horizon_of_a_discount():
    """With a reward of 1 at each of n tokens the return is (1 - discount^n) / (1 - discount)."""
    found = discounted_returns(torch.ones(1, 5, dtype=torch.float64), where("xxxxx"), discount=0.5)
    close(found, [(1 - 0.5**n) / (1 - 0.5) for n in (5, 4, 3, 2, 1)])
    assert math.isclose(float(found[0, 0]), 1.9375)
