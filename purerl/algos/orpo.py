"""ORPO, odds ratio preference optimization: Hong et al. 2024 (2403.07691).

ORPO is supervised fine-tuning on the chosen completions, which also pushes the rejected ones down. Both happen in one
run, without a reference model. P_i is the likelihood of a completion per token. Compared with the ratio of the
likelihoods, the ratio of their odds changes less for unlikely completions.

    log P_i     = (1 / n_i) sum_t logp_it
    log odds_i  = log P_i - log(1 - P_i)
    l_g         = -log sigmoid(log odds_chosen - log odds_rejected)
    loss        = -(1 / tokens) sum_it logp_it + (odds_coef / pairs) sum_g l_g

The first sum is over the `tokens` tokens of the chosen rows of the optimizer step. n_i is the number of tokens of row
i. The rest is as in `dpo`.

Choices that differ between libraries:

- The log-likelihood covers completions. That of TRL covers the prompts too.
- log P_i is at most -1e-6, so that the odds are finite.

Metrics, means over the pairs:

- `policy/accuracy`: fraction of pairs in which the chosen completion has the larger log P.
- `policy/margin`: odds_coef * (log P_chosen - log P_rejected). `policy/chosen_reward` and `policy/rejected_reward` are
  its two parts.
"""

from __future__ import annotations

import torch
from attrs import frozen

from purerl.algos import dpo
from purerl.algos.algebra import Algorithm, identity
from purerl.algos.modifiers import nll_loss
from purerl.algos.parts.elementwise import logsigmoid
from purerl.algos.parts.preferences import pair_objective, per_token, without_anchor
from purerl.algos.parts.settings import number
from purerl.composition import with_modifiers
from purerl.types import RowFloat

__all__ = ["EXEMPTIONS", "MAX_LOGP", "Config", "algorithm", "odds_ratio_loss"]

EXEMPTIONS = dpo.EXEMPTIONS

MAX_LOGP = -1e-6
"""The bound of a mean log-probability whose odds are computed, nats."""


@frozen(kw_only=True)
class Config:
    """Hyperparameters of ORPO."""

    odds_coef: float = number("weight of the odds ratio; the paper calls it lambda, TRL beta", 0.1, above=0)


def odds_ratio_loss(chosen: RowFloat, rejected: RowFloat) -> RowFloat:
    """Compute the loss of the odds ratio of two completions.

        log odds(x) = x - log(1 - exp(x))
        l           = -log sigmoid(log odds(c) - log odds(r))

    c and r are mean log-probabilities, nats per token; each is clamped at -1e-6 from above. Shapes: [rows] each.
    Source: ORPO (2403.07691, eq. 7).

    >>> odds_ratio_loss(torch.tensor([0.5]).log(), torch.tensor([0.25]).log()).exp()
    tensor([1.3333])
    """
    return -logsigmoid(_log_odds(chosen) - _log_odds(rejected))


def _log_odds(logp: RowFloat) -> RowFloat:
    bounded = logp.clamp(max=MAX_LOGP)
    return bounded - torch.log(-torch.expm1(bounded))


def algorithm(config: Config = Config()) -> Algorithm:
    """Build ORPO from `config`."""
    loss = ("preference", odds_ratio_loss, config.odds_coef)
    pairs = pair_objective(per_token(without_anchor), loss, reads=(), beta=config.odds_coef)
    return with_modifiers(Algorithm(reads=(), advantage=identity, objectives=(pairs,)), nll_loss.Config())
