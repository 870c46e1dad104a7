"""Losses of pairs, with manually computed values and gradients."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import pair_log_ratios
from purerl.algos.algebra import bind
from purerl.algos.modifiers.rank_matching import rank_labels, rank_matched_margin
from purerl.algos.orpo import odds_ratio_loss
from purerl.algos.parts.pair_losses import (
    apo_down,
    apo_zero,
    bco_pair,
    discopop,
    exo_pair,
    hinge,
    ipo,
    nca_pair,
    sigmoid,
    sppo_hard,
)
from purerl.algos.parts.preferences import pair_mask, robust_loss, sequence_logp, smoothed_loss
from purerl.algos.simpo import target_margin_loss
from tests.golden.helpers import assert_values, f64, gradient_of, ints, mask_of

LOG3 = math.log(3)  # sigmoid(log 3) = 3/4
LN2 = math.log(2)


# --- pairs -------------------------------------------------------------------------------------------------------


def test_pair_log_ratios_are_those_of_both_rows():
    chosen, rejected = pair_log_ratios(f64(1, -4, 7, 2), mask_of("x.x.")[0], ints(4, 4, -9, -9))
    assert_values(chosen, 1, 1, 7, 7)
    assert_values(rejected, -4, -4, 2, 2)


def test_pair_mask_clears_incomplete_pairs():
    """The groups are: chosen and rejected; two chosen rows; a single row; a row whose partner is not counted."""
    chosen, group = mask_of("x.xxxx.")[0], ints(1, 1, 2, 2, 3, 4, 4)
    mask = mask_of("x", "x", "x", "x", "x", "x", ".")
    assert pair_mask(chosen, group, mask)[:, 0].tolist() == [True, True, False, False, False, False, False]


def test_sequence_logp_is_the_sum_over_counted_tokens():
    assert_values(sequence_logp(f64([-1, -2, -4], [-1, -1, -1]), mask_of("x.x", "...")), -5, 0)


# --- values and gradients, by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("margin", "loss", "gradient"),
    [(0.0, 25.0, -10.0), (5.0, 0.0, 0.0), (7.0, 4.0, 4.0)],  # beta is .1, so the minimum is at a margin of 5
)
def test_ipo(margin, loss, gradient):
    assert ipo(f64(margin + 2), f64(2), beta=0.1).tolist() == [loss]
    assert gradient_of(lambda x: ipo(x, f64(2), beta=0.1), f64(margin + 2)).tolist() == [gradient]


def test_sigmoid_does_not_overflow():
    margin = f64(-1e4, 0.0, 1e4)
    zero = torch.zeros_like(margin)
    torch.testing.assert_close(sigmoid(margin, zero, beta=0.5), f64(5e3, LN2, 0.0))
    torch.testing.assert_close(gradient_of(lambda x: sigmoid(x, zero, beta=0.5), margin), f64(-0.5, -0.25, 0.0))


@pytest.mark.parametrize(
    ("loss", "chosen", "rejected", "value", "gradients"),
    [
        # Inside the margin of 1 / beta = 2, and outside.
        (bind(hinge, beta=0.5), 1.0, 0.0, 0.5, (-0.5, 0.5)),
        (bind(hinge, beta=0.5), 3.0, 0.0, 0.0, (0.0, 0.0)),
        # q = 3/4 = 1 - s: the divergence and its gradient are 0.
        (bind(exo_pair, beta=1.0, smoothing=0.25), LOG3, 0.0, 0.0, (0.0, 0.0)),
        # q = 1/2: the gradient is q (1 - q) (log(q / (1 - s)) - log((1 - q) / s)) = -1/4 log 3.
        (bind(exo_pair, beta=1.0, smoothing=0.25), 0.0, 0.0, LN2 - LOG3 / 2, (-LOG3 / 4, LOG3 / 4)),
        # m = 1/2: the value is (log 2 + 1) / 2, and the gradient (1 - log 2) / 4 - (1/2 + 1) / 2.
        (bind(discopop, beta=1.0, tau=1.0), 0.0, 0.0, (LN2 + 1) / 2, (-0.5 - LN2 / 4, 0.5 + LN2 / 4)),
        # -log 3/4 - 1/2 log 1/4 - 1/2 log 1/2; the gradients are -1/4 + 1/2 * 3/4 and 1/2 * 1/2.
        (bind(nca_pair, beta=1.0), LOG3, 0.0, math.log(4 / 3) + 1.5 * LN2, (0.125, 0.25)),
        (bind(bco_pair, beta=1.0), LOG3, 0.0, math.log(4 / 3) + LN2, (-0.25, 0.5)),
        # The targets are 2 and -2.
        (bind(sppo_hard, beta=0.25), 3.0, -4.0, 5.0, (2.0, -4.0)),
        # The derivative of sigmoid is 3/16 at log 3, and 1/4 at 0.
        (bind(apo_zero, beta=1.0), LOG3, 0.0, 0.75, (-3 / 16, 0.25)),
        (bind(apo_down, beta=1.0), LOG3, 0.0, 1.0, (0.0, 3 / 16)),
        # At a difference of 1/2, the argument of the sigmoid is 0.
        (bind(target_margin_loss, beta=2.0, target_margin=1.0), -1.0, -1.5, LN2, (-1.0, 1.0)),
        # The probabilities 3/4 and 1/2 have the odds 3 and 1, and d log odds / d log P = 1 / (1 - P).
        (odds_ratio_loss, math.log(3 / 4), -LN2, math.log(4 / 3), (-1.0, 0.5)),
        # A probability of 1 is one of exp(-1e-6), with the odds 1e6, and without a gradient.
        (odds_ratio_loss, 0.0, -LN2, 1e-6, (0.0, 2e-6)),
    ],
)
def test_loss_of_a_pair(loss, chosen, rejected, value, gradients):
    c, r = f64(chosen), f64(rejected)
    assert_values(loss(c, r), value, atol=1e-9)
    assert_values(gradient_of(lambda x: loss(x, r), c), gradients[0], atol=1e-9)
    assert_values(gradient_of(lambda x: loss(c, x), r), gradients[1], atol=1e-9)


def test_discopop_does_not_overflow():
    c = f64(-1e4, 1e4)
    assert discopop(c, f64(0, 0), beta=1.0, tau=0.05).tolist() == [1e4, math.exp(-20)]
    assert gradient_of(lambda x: discopop(x, f64(0, 0), beta=1.0, tau=0.05), c).tolist() == [-1.0, 0.0]


def test_smoothed_and_robust_loss():
    # l(c, r) = log(4/3) has the gradient -1/4, and l(r, c) = log 4 has the gradient 3/4. A label that is wrong with
    # probability 1/4 has its minimum there.
    def losses(x, function):
        return function(x, f64(0), loss=lambda c, r: sigmoid(c, r, beta=2.0), smoothing=0.25)

    margin, right, wrong = f64(LOG3 / 2), math.log(4 / 3), math.log(4)
    assert_values(losses(margin, smoothed_loss), 0.75 * right + 0.25 * wrong)
    assert_values(gradient_of(lambda x: losses(x, smoothed_loss), margin), 0)
    assert_values(losses(margin, robust_loss), (0.75 * right - 0.25 * wrong) / 0.5)
    assert_values(gradient_of(lambda x: losses(x, robust_loss), margin), -2 * (0.75 / 4 + 0.25 * 3 / 4) / 0.5)


# --- ranks -------------------------------------------------------------------------------------------------------


def test_rank_matched_margin_is_the_reference_of_the_same_rank():
    """The second row is not counted: neither its value nor its rank matters."""
    actual = rank_matched_margin(f64(5, -9, 1, 3), f64(10, -99, 20, 30), mask_of("x.xx")[0])
    assert_values(actual, 30, 0, 10, 20)


def test_rank_labels_pair_the_rows_of_the_same_rank():
    log_ratio, chosen = f64(5, 2, 1, 7, 9, 8), mask_of("x.x.x.")[0]
    labels = rank_labels(log_ratio, chosen, mask_of("xxxxxx")[0])
    assert labels.tolist() == [1, 0, 0, 1, 2, 2]
    without_last_pair = rank_labels(log_ratio.neg(), chosen, mask_of("xxxx..")[0])
    assert without_last_pair[:4].tolist() == [0, 1, 1, 0]
    assert min(without_last_pair[4:].tolist()) >= 2
