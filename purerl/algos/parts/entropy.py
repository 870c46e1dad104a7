"""An entropy bonus whose coefficient follows the entropy: it is there while the policy has too little of it.

A constant coefficient that holds the entropy of one model up lets that of another explode. Here it is a state, c, which
goes one step up after a batch of too little entropy, and one down after a batch of too much:

    H     = mean over counted tokens of the entropy when the update begins, nats
    loss  = that of the algorithm - c * reduce(entropy)       where H <= target; elsewhere without the bonus
    c    <- clip(c + step * sign(target - H), 0, most)

Source: adaptive entropy control in Skywork-OR1 (2505.22312), whose code has the bound `most` too.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, Objective, Term, Transform, bind, chain, of_fields
from purerl.batch import with_fields
from purerl.kernels.masks import count_true
from purerl.types import RowFloat, Scalar, TokenFloat

__all__ = ["adapt_entropy_coef", "with_adaptive_entropy"]


def adapt_entropy_coef(coefficient: Scalar, entropy: Scalar, *, target: float, step: float, most: float) -> Scalar:
    """clip(coefficient + step * sign(target - entropy), 0, most): the next coefficient.

    >>> adapt_entropy_coef(torch.tensor(0.25), torch.tensor(0.1), target=0.2, step=0.125, most=1.0)
    tensor(0.3750)
    """
    return (coefficient + step * (target - entropy).sign()).clamp(0, most)


def with_adaptive_entropy(
    algorithm: Algorithm, *, entropy_coef: float, target: float, step: float, most: float
) -> Algorithm:
    """`algorithm` with an entropy bonus of which the coefficient is `entropy_coef` at first, then adapted.

    It takes the place of the bonus that the policy's objective has, if it has one, and is reduced as its surrogate is.
    A batch in which nothing counts leaves the coefficient as it is.
    """
    bonus = Transform(
        bind(_coefficient, entropy_coef=entropy_coef), bind(_adaptive, target=target, step=step, most=most)
    )
    return algorithm._replace(
        reads=tuple(dict.fromkeys((*algorithm.reads, "old_entropy"))),
        advantage=chain(algorithm.advantage, bonus),
        objectives=tuple(_with_bonus(o) if o.role == "policy" else o for o in algorithm.objectives),
    )


def _coefficient(*, entropy_coef: float) -> Scalar:
    return torch.tensor(entropy_coef, dtype=torch.float64)


def _adaptive(
    coefficient: Scalar, batch: TensorDict, *, target: float, step: float, most: float
) -> tuple[Scalar, TensorDict]:
    mask, entropy = batch["mask"], batch["old_entropy"]
    tokens = count_true(mask).sum(-1)
    mean = torch.where(mask, entropy, 0).sum((-2, -1)) / tokens.clamp(min=1)
    now = torch.where(mean <= target, coefficient, 0).to(entropy.dtype)
    following = adapt_entropy_coef(coefficient, mean, target=target, step=step, most=most)
    return torch.where(tokens > 0, following, coefficient), with_fields(batch, entropy_coef=now.expand(mask.shape[:-1]))


def _with_bonus(objective: Objective) -> Objective:
    others = tuple(term for term in objective.terms if term.name != "entropy")
    bonus = Term("entropy", of_fields(_bonus, "entropy", "entropy_coef"), others[0].reduce, weight=-1.0)
    return objective._replace(
        reads=(*objective.reads, "entropy_coef"),
        outputs=tuple(dict.fromkeys((*objective.outputs, "entropy"))),
        watches=tuple(name for name in objective.watches if name != "entropy"),
        terms=(*others, bonus),
    )


def _bonus(entropy: TokenFloat, entropy_coef: RowFloat) -> TokenFloat:
    return entropy * entropy_coef.unsqueeze(-1)
