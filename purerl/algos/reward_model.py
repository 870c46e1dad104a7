"""Reward model: a classifier that scores completions, trained on preference pairs (Ouyang et al. 2022, 2203.02155).

The model is a sequence classifier. It reads a conversation and has one score, which is linear in the hidden state of
the last token. It learns from pairs of completions of one prompt, of which one is preferred. The two completions of a
pair are rows of one group. The field `chosen` marks the preferred one.

    s_i  = score at the last counted token of row i
    D_g  = s_chosen - s_rejected
    l_g  = -log sigmoid(D_g - margin - margin_coef * m_g) + centering_coef * (s_chosen + s_rejected)^2
    loss = (1 / pairs) sum_g l_g

s_chosen and s_rejected are the scores of the two rows of pair g. `pairs` is the number of pairs of the optimizer step.
m_g is the number in the column `margin` of the data: how clearly one completion is better (Touvron et al. 2023,
2307.09288, eq. 2). The last term keeps the mean of the scores near 0 (Eisenstein et al. 2023, 2312.09244). Without it
the scores are determined up to a constant. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- The column `margin` is read only if `margin_coef` is not 0. TRL always subtracts it, if the data set has it.
- A group that does not have exactly one chosen and one rejected row, each with a counted token, is not a pair. It is
  left out of the value, the gradient and the denominator.

Metrics, means over the pairs:

- `policy/accuracy`: fraction of pairs with D_g > 0.
- `policy/margin`: D_g.
- `policy/score`: the mean of the two scores.

Differences from the paper:

1. Ouyang et al. rank K completions of a prompt, and compare all pairs of them in one optimizer step. Here each pair is
   an example of its own.
2. Ouyang et al. add a constant to the scores after training, so that the demonstrations have the mean score 0. Here
   centering is a term of the loss.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term, Weighted, bind, identity, of_fields, write_field
from purerl.algos.parts.groups import group_sum
from purerl.algos.parts.preferences import bradley_terry_loss, centering_loss, pair_difference, pair_mask
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.rows import broadcast_to_tokens, last_counted
from purerl.algos.parts.settings import number, optional
from purerl.kernels.masks import any_true, masked
from purerl.types import RowFloat, TensorDict, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "episode_invariance": "a pair consists of two rows",
    "reinforce_gradient_on_policy": "it trains a classifier, which has no log-probabilities",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of the training of a reward model."""

    margin: float = number("by how much the chosen completion should score higher, in every pair", 0.0, unit="reward")
    margin_coef: float = number("factor of the margin in the column `margin` of the data", 0.0, min=0)
    centering_coef: float = number("coefficient of the squared sum of the scores of a pair", 0.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build the training of a reward model from `config`."""
    margin = bind(_margin_of_data, coef=config.margin_coef) if config.margin_coef else _no_margin
    preference = bind(_preference, constant=config.margin, margin=margin)
    centering = Term("centering", _centering, sequence_mean_of_token_mean, weight=config.centering_coef)
    objective = Objective(
        role="policy",
        reads=("chosen", *optional(config.margin_coef, "margin")),
        outputs=("classifier_score",),
        # All tokens of a row have the same value, so the mean over its tokens is the value of the row. Both rows of a
        # pair have the same value, so the mean over rows is the mean over pairs.
        terms=(
            Term("preference", preference, sequence_mean_of_token_mean),
            *optional(config.centering_coef, centering),
        ),
        prepare=write_field("mask", of_fields(pair_mask, "chosen", "group", "mask")),
        metrics=_metrics,
        unit="group",
    )
    return Algorithm(reads=(), advantage=identity, objectives=(objective,))


def _score(batch: TensorDict) -> RowFloat:
    return last_counted(batch["classifier_score"], batch["mask"])


def _difference(batch: TensorDict) -> RowFloat:
    return pair_difference(_score(batch), batch["chosen"], batch["group"])


def _no_margin(batch: TensorDict) -> float:
    return 0.0


def _margin_of_data(batch: TensorDict, *, coef: float) -> RowFloat:
    """The margin of the pair of each row: that of its chosen row, times `coef`."""
    return coef * group_sum(torch.where(batch["chosen"] & any_true(batch["mask"]), batch["margin"], 0), batch["group"])


def _preference(batch: TensorDict, *, constant: float, margin: Callable[[TensorDict], RowFloat | float]) -> TokenFloat:
    loss = bradley_terry_loss(_difference(batch), constant + margin(batch))
    return broadcast_to_tokens(loss, batch["mask"])


def _centering(batch: TensorDict) -> TokenFloat:
    return broadcast_to_tokens(centering_loss(group_sum(_score(batch), batch["group"])), batch["mask"])


def _metrics(batch: TensorDict) -> dict[str, Weighted]:
    difference, counted = _difference(batch), any_true(batch["mask"])
    rows = counted.sum(-1)
    values = {
        "accuracy": (counted & (difference > 0)).sum(-1),
        "margin": masked(difference, counted).sum(-1),
        "score": masked(_score(batch), counted).sum(-1),
    }
    return {name: Weighted(value, rows) for name, value in values.items()}
