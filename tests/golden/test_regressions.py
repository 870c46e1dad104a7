"""Losses of pairs and of whole rows, by cases."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import dpo_loss, gvpo_loss, ipo_loss, pair_margin, sppo_loss
from purerl.algos.flowrl import balance_loss, clipped_row_weight
from purerl.algos.parts.preferences import pair_mask
from purerl.algos.parts.rows import at_last_action
from purerl.algos.prime import implicit_reward_loss, leave_one_out_process
from tests.golden.hand import close, f64, ints, slope, where


def test_the_margin_of_a_pair():
    # The log-ratios are 0 + 1 = 1 and, for its second token does not count, -4: the margin is 1 + 4.
    logp, anchor, mask = f64([0, -1], [-3, -9]), f64([0, -2], [1, 0]), where("xx", "x.")
    close(pair_margin(logp, anchor, where("x.")[0], ints(4, 4), mask), 5, 5)


def test_who_has_no_partner_is_no_pair():
    """Chosen and rejected; two chosen; one alone; one whose partner does not count."""
    chosen, group = where("x.xxxx.")[0], ints(1, 1, 2, 2, 3, 4, 4)
    mask = where("x", "x", "x", "x", "x", "x", ".")
    assert pair_mask(chosen, group, mask)[:, 0].tolist() == [True, True, False, False, False, False, False]


def test_gvpo_of_two():
    # beta times the deviations 1 and -1 of L, less A = 1/2, -1/2: 1/2 each, squared 1/4, times N / (2 (N - 1)) = 1
    close(gvpo_loss(f64(2, 0), f64(0.5, -0.5), ints(5, 5), where("xx")[0], beta=1.0), 0.25, 0.25)


def test_a_token_is_measured_by_the_mean_rows_of_the_others():
    # Row means 2 and 6; N / (N - 1) = 2: 2 p - 8
    found = leave_one_out_process(f64([1, 3], [6, 0]), ints(5, 5), where("xx", "x."))
    close(found, [-6, -2], [4, 0])


def test_the_reward_model_s_cross_entropy():
    # sigmoid(log 3) = 3/4
    close(implicit_reward_loss(f64(math.log(9)).repeat(2), f64(1, 0), beta=0.5), -math.log(3 / 4), -math.log(1 / 4))


@pytest.mark.parametrize(
    ("margin", "loss", "gradient"),
    [(0.0, 25.0, -10.0), (5.0, 0.0, 0.0), (7.0, 4.0, 4.0)],  # beta .1: the goal is 5, and beyond it is back
)
def test_ipo_by_cases(margin, loss, gradient):
    assert ipo_loss(f64(margin), beta=0.1).tolist() == [loss]
    assert slope(lambda x: ipo_loss(x, beta=0.1), f64(margin)).tolist() == [gradient]


def test_dpo_saturates_without_overflow():
    margin = f64(-1e4, 0.0, 1e4)
    torch.testing.assert_close(dpo_loss(margin, beta=0.5), f64(5e3, math.log(2), 0.0))
    torch.testing.assert_close(slope(lambda x: dpo_loss(x, beta=0.5), margin), f64(-0.5, -0.25, 0.0))


def test_sppo_is_least_where_the_log_ratio_is_eta_times_the_win_rate():
    assert sppo_loss(f64(5.0, 4.0), f64(0.5, 0.5), eta=10.0).tolist() == [0.0, 1.0]
    assert slope(lambda x: sppo_loss(x, f64(0.5), eta=10.0), f64(4.0)).tolist() == [-2.0]


def test_the_balance_is_least_where_flows_agree_and_its_weight_has_no_gradient():
    assert slope(lambda x: balance_loss(x, f64(2.0), f64(0.5), beta=6.0), f64(1.0)).tolist() == [0.0]
    logp = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    weight = clipped_row_weight(logp, torch.zeros(1, 2), torch.ones(1, 2) > 0, clip_low=0.2, clip_high=0.2)
    assert weight.tolist() == pytest.approx([0.8])
    assert not weight.requires_grad


def test_the_outcome_sits_on_the_last_action_token():
    action = torch.tensor([[False, True, True, False], [False] * 4])
    assert at_last_action(torch.tensor([3.0, 5.0]), action).tolist() == [[0, 0, 3, 0], [0] * 4]
