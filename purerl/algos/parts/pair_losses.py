"""Losses of a pair of completions of one prompt: a chosen one, c, and a rejected one, r.

c and r are the log-ratios of the two completions, nats, relative to an anchor such as the reference model. Each
function here is a loss by this name: ``algorithm.losses`` of `dpo` is a list of them.

    sigmoid      -log sigmoid(beta (c - r))                                        DPO
    hinge        max(0, 1 - beta (c - r))                                          SLiC
    ipo          (c - r - 1 / (2 beta))^2                                          IPO
    exo_pair     q log(q / (1 - s)) + (1 - q) log((1 - q) / s)                     EXO, q = sigmoid(beta (c - r))
    discopop     (1 - m) (-log q) + m exp(-beta (c - r)), m = sigmoid(beta (c - r) / tau)      DiscoPOP
    nca_pair     -log sigmoid(beta c) - 1/2 log sigmoid(-beta c) - 1/2 log sigmoid(-beta r)    NCA
    bco_pair     -log sigmoid(beta c) - log sigmoid(-beta r)                       BCO, without its shift of the rewards
    sppo_hard    (c - 1 / (2 beta))^2 + (r + 1 / (2 beta))^2                       SPPO, with win rates of 1 and 0
    apo_zero     1 - sigmoid(beta c) + sigmoid(beta r)                             APO-zero
    apo_down     sigmoid(beta c) + 1 - sigmoid(beta (c - r))                       APO-down

The first five depend only on the margin c - r: the same change of both probabilities has no effect. The others also
have a target for each completion by itself.

Shapes: [rows] each; the result is [rows]. Every loss and its gradient are finite for finite arguments.
"""

from __future__ import annotations

import torch

from purerl.algos.parts.elementwise import log, log1p, logsigmoid
from purerl.algos.parts.surrogates import LOG_RATIO_BOUND
from purerl.types import RowFloat

__all__ = [
    "apo_down",
    "apo_zero",
    "bco_pair",
    "discopop",
    "exo_pair",
    "hinge",
    "ipo",
    "nca_pair",
    "sigmoid",
    "sppo_hard",
]


def sigmoid(chosen: RowFloat, rejected: RowFloat, *, beta: float) -> RowFloat:
    """Compute the DPO loss.

        l = -log sigmoid(beta (c - r))

    It decreases toward 0 with the margin. Source: DPO (2305.18290, eq. 7).

    >>> sigmoid(torch.tensor([2.0]), torch.tensor([2.0]), beta=0.5)
    tensor([0.6931])
    """
    return -logsigmoid(beta * (chosen - rejected))


def hinge(chosen: RowFloat, rejected: RowFloat, *, beta: float) -> RowFloat:
    """Compute the hinge loss of SLiC.

        l = max(0, 1 - beta (c - r))

    A margin above 1 / beta has no loss and no gradient. Source: SLiC (2305.10425), relative to an anchor as in RSO
    (2309.06657).

    >>> hinge(torch.tensor([1.0, 9.0]), torch.tensor([0.0, 0.0]), beta=0.5)
    tensor([0.5000, 0.0000])
    """
    return (1 - beta * (chosen - rejected)).clamp(min=0)


def ipo(chosen: RowFloat, rejected: RowFloat, *, beta: float) -> RowFloat:
    """Compute the IPO loss.

        l = (c - r - 1 / (2 beta))^2

    The minimum is at a margin of 1 / (2 beta); a larger margin is penalized too. Source: IPO (2310.12036, eq. 17).

    >>> ipo(torch.tensor([5.0, 6.0]), torch.tensor([0.0, 0.0]), beta=0.1)
    tensor([0., 1.])
    """
    return (chosen - rejected - 1 / (2 * beta)).square()


def exo_pair(chosen: RowFloat, rejected: RowFloat, *, beta: float, smoothing: float) -> RowFloat:
    """Compute the EXO loss of a pair: the reverse KL divergence from the labels.

        q = sigmoid(beta (c - r))
        l = q log(q / (1 - s)) + (1 - q) log((1 - q) / s)

    DPO has the forward divergence. `smoothing`, s, is the probability that the labels give to the rejected completion.
    The minimum is at q = 1 - s. Source: EXO (2402.00856, eq. 16).
    """
    logit = beta * (chosen - rejected)
    right = torch.sigmoid(logit) * (logsigmoid(logit) - log1p(-smoothing))
    wrong = torch.sigmoid(-logit) * (logsigmoid(-logit) - log(smoothing))
    return right + wrong


def discopop(chosen: RowFloat, rejected: RowFloat, *, beta: float, tau: float) -> RowFloat:
    """Compute the DiscoPOP loss: the logistic loss at small margins, and the exponential loss at large ones.

        m = sigmoid(beta (c - r) / tau)
        l = (1 - m) (-log sigmoid(beta (c - r))) + m exp(-beta (c - r))

    The exponent is clamped to +-20. The loss is not monotonic near a margin of 0. Source: DiscoPOP (2406.08414, eq. 5).
    """
    logit = beta * (chosen - rejected)
    mix = torch.sigmoid(logit / tau)
    exponential = (-logit).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    return (1 - mix) * -logsigmoid(logit) + mix * exponential


def nca_pair(chosen: RowFloat, rejected: RowFloat, *, beta: float) -> RowFloat:
    """Compute the NCA loss of a pair: each completion is distinguished from one of the anchor.

        l = -log sigmoid(beta c) - 1/2 log sigmoid(-beta c) - 1/2 log sigmoid(-beta r)

    It does not increase the margin by making both completions unlikely. Source: NCA (2402.05369).
    """
    up, down = logsigmoid(beta * chosen), logsigmoid(-beta * chosen) + logsigmoid(-beta * rejected)
    return -up - down / 2


def bco_pair(chosen: RowFloat, rejected: RowFloat, *, beta: float) -> RowFloat:
    """Compute the BCO loss of a pair: a classifier of chosen and rejected completions, with log-ratios as logits.

        l = -log sigmoid(beta c) - log sigmoid(-beta r)

    The paper subtracts a moving average of the rewards from both logits. Here it is 0, as in the pair loss of TRL.
    Source: BCO (2404.04656).
    """
    return -logsigmoid(beta * chosen) - logsigmoid(-beta * rejected)


def sppo_hard(chosen: RowFloat, rejected: RowFloat, *, beta: float) -> RowFloat:
    """Compute the SPPO loss of a pair whose completions have win rates of 1 and 0.

        l = (c - 1 / (2 beta))^2 + (r + 1 / (2 beta))^2

    `sppo` estimates win rates from the rewards of more than two completions. Source: SPPO (2405.00675, eq. 4.7).

    >>> sppo_hard(torch.tensor([5.0, 4.0]), torch.tensor([-5.0, -3.0]), beta=0.1)
    tensor([0., 5.])
    """
    target = 1 / (2 * beta)
    return (chosen - target).square() + (rejected + target).square()


def apo_zero(chosen: RowFloat, rejected: RowFloat, *, beta: float) -> RowFloat:
    """Compute the APO-zero loss, for chosen completions that are better than those of the model.

        l = 1 - sigmoid(beta c) + sigmoid(beta r)

    Chosen completions become more likely, and rejected ones less likely. Source: APO (2408.06266, eq. 7).

    >>> apo_zero(torch.tensor([0.0]), torch.tensor([0.0]), beta=0.5)
    tensor([1.])
    """
    return torch.sigmoid(-beta * chosen) + torch.sigmoid(beta * rejected)


def apo_down(chosen: RowFloat, rejected: RowFloat, *, beta: float) -> RowFloat:
    """Compute the APO-down loss, for chosen completions that are worse than those of the model.

        l = sigmoid(beta c) + 1 - sigmoid(beta (c - r))

    Both become less likely, and rejected ones more so. Source: APO (2408.06266, eq. 8).

    >>> apo_down(torch.tensor([0.0]), torch.tensor([0.0]), beta=0.5)
    tensor([1.])
    """
    return torch.sigmoid(beta * chosen) + torch.sigmoid(-beta * (chosen - rejected))
