"""Turn credit: as in prime-rl, 2026.

An environment can often score the state after each turn, for example by the tests that pass. The outcome of an episode
does not show which turn was good; the change of this score does. The change after a turn is spread over this turn and
those before it, and added to the advantage of their tokens. The credits of a row add up to 0, so that the row as a
whole keeps its advantage.

    p_ik = phi_ik - phi_{i,k-1}
    z_k  = 1 + decay + ... + decay^(k - 1)
    c_ik = p_ik / z_k + decay c_{i,k+1}
    A_i  = s_i + sum_k p_ik - mean_g
    A_it = A_i + credit_coef (c_ik - mean_i)    at the tokens of turn k

phi_ik is the score of the state after turn k of row i. If there is none, p_ik is 0, and the next change is relative to
the last score. s_i is the sum of all rewards of row i. mean_g is the mean of s_i + sum_k p_ik over its group, and
mean_i that of the credits over the tokens of row i. A turn is a run of action tokens with the same `turn`. The
rest is as in `grpo`.

The field `progress` has p_ik at the last token of turn k. It comes from `Observation.score` of an environment, with
`environment.has_scores=true`. The score before the first turn is that of the first observation, or else 0.

Choices that differ between libraries:

- The first change is relative to 0, or to the score of the initial state if the environment gives one (unverified).
- A group of one row has the advantages of its credits.

Differences from the source:

1. Only the equations were read. The defaults of `credit_coef` and `decay`, and the loss of GRPO, are ours (unverified).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm, bind, stateless, write_field
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.estimators.steps import spread_progress
from purerl.algos.parts.rows import broadcast_to_tokens, row_mean, row_sum
from purerl.algos.parts.settings import number
from purerl.kernels.masks import any_true, masked
from purerl.types import TensorDict, TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of turn credit: the settings of GRPO, and those of the credits."""

    credit_coef: float = number("weight of the credit of a turn, relative to the advantage of the row", 1.0, min=0)
    decay: float = number("share of a turn's credit that the turn before it gets", 0.9, min=0, max=1)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build turn credit from `config`."""
    advantage = bind(_credited_advantage, credit_coef=config.credit_coef, decay=config.decay)
    return grpo.algorithm(config)._replace(
        reads=("reward", "progress", "turn"),
        advantage=stateless(write_field("advantage", advantage)),
        min_group_size=1,
    )


def _credited_advantage(batch: TensorDict, *, credit_coef: float, decay: float) -> TokenFloat:
    action, mask, progress = batch["action"], batch["mask"], batch["progress"]
    score = batch["reward"].sum(-1) + row_sum(progress, action)
    advantage = broadcast_to_tokens(group_centered_advantage(score, batch["group"], any_true(mask)), mask)
    credit = spread_progress(progress, batch["turn"], action, decay=decay)
    return advantage + credit_coef * masked(credit - row_mean(credit, mask).unsqueeze(-1), mask)
