"""Recurrences over two or three action tokens, with manually computed values."""

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
from tests.golden.helpers import assert_values, f64, logs, mask_of


def test_other_tokens_have_the_index_of_the_action_before_them():
    action = mask_of("..x.x.")
    index = action_index(action)
    assert index.tolist() == [[0, 0, 0, 0, 1, 1]]
    sums = segment_sum(f64([1, 2, 4, 8, 16, 32]), index)
    assert_values(sums, [15, 48, 0, 0, 0, 0])
    assert_values(gather_to_actions(sums, index, action), [0, 0, 15, 0, 48, 0])


def test_gae():
    # delta = [0 + 2 - 1, 4 + 0 - 2] = [1, 2]; A = [1 + 2 / 2, 2]
    action = torch.tensor([[True, True]])
    actual = gae(torch.tensor([[0.0, 4.0]]), torch.tensor([[1.0, 2.0]]), action, discount=1.0, lambda_=0.5)
    assert actual.tolist() == [[2.0, 2.0]]


def test_returns_skip_tool_tokens():
    action = torch.tensor([[False, True, False, False, True, False]])
    reward = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0, 8.0]])
    assert discounted_returns(reward, action, discount=0.5).tolist() == [[0.0, 5.0, 0.0, 0.0, 8.0, 0.0]]


def test_rewards_before_the_first_action_move_to_it():
    action = torch.tensor([[False, False, True, True, False]])
    actual = move_rewards_to_actions(torch.tensor([[1.0, 2.0, 4.0, 8.0, 16.0]]), action)
    assert actual.tolist() == [[0.0, 0.0, 7.0, 24.0, 0.0]]


def test_rewards_of_a_row_without_actions_become_zero():
    assert not move_rewards_to_actions(torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.bool)).any()


def test_length_adaptive_lambda_grows_with_the_row():
    # max(0, 1 - 1 / (n / 2)) for n = 4, 2 and 0
    actual = length_adaptive_lambda(mask_of("xxxx", "xx..", "...."), alpha=0.5, dtype=torch.float64)
    assert_values(actual, [0.5], [0], [0])


RATIO, MU = logs([4, 0.5]), torch.zeros(1, 2, dtype=torch.float64)
ACTION = mask_of("xx")


def test_vtrace():
    # rho = min(4, 2), min(1/2, 2) = 2, 1/2 and c = min(r, 1/2) = 1/2; V = 1, 2; reward 0, 4; discount 1/2.
    # delta = 2 (0 + 1/2 * 2 - 1), 1/2 (4 - 2) = 0, 1. e = 0 + 1/2 * 1/2 * 1, 1 = 1/4, 1. v = 5/4, 3.
    value, reward, discount = f64([1, 2]), f64([0, 4]), 0.5
    target = vtrace_target(
        reward, value, RATIO, MU, ACTION, discount=discount, lambda_=1.0, rho_clip=2.0, trace_clip=0.5
    )
    assert_values(target, [1.25, 3])
    # The advantages are 2 (0 + 1/2 * 3 - 1) and 1/2 (4 - 2).
    actual = vtrace_advantage(reward, value, target, RATIO, MU, ACTION, discount=discount, rho_clip=2.0)
    assert_values(actual, [1, 1])


def test_vtrace_trace_decays_with_lambda():
    # As above, with lambda_ = 1/4: c = 1/4 * 1/2, e = 0 + 1/2 * 1/8 * 1, 1 = 1/16, 1.
    value, reward = f64([1, 2]), f64([0, 4])
    target = vtrace_target(reward, value, RATIO, MU, ACTION, discount=0.5, lambda_=0.25, rho_clip=2.0, trace_clip=0.5)
    assert_values(target, [1.0625, 3])


def test_vtrace_ignores_values_outside_of_actions():
    value, reward, none, first = f64([1, math.nan]), f64([2, 0]), f64([0, math.nan]), mask_of("x.")
    target = vtrace_target(reward, value, none, MU, first, discount=0.5, lambda_=1.0, rho_clip=2.0, trace_clip=0.5)
    assert_values(target, [2, 0])
    assert_values(vtrace_advantage(reward, value, target, none, MU, first, discount=0.5, rho_clip=2.0), [1, 0])


def test_discounted_returns_of_constant_rewards():
    """With a reward of 1 at each of n tokens, the return is (1 - discount^n) / (1 - discount)."""
    actual = discounted_returns(torch.ones(1, 5, dtype=torch.float64), mask_of("xxxxx"), discount=0.5)
    assert_values(actual, [(1 - 0.5**n) / (1 - 0.5) for n in (5, 4, 3, 2, 1)])
    assert math.isclose(float(actual[0, 0]), 1.9375)
