"""An entropy bonus with an adaptive coefficient.

A constant coefficient that keeps the entropy of one model from collapsing can make the entropy of another model
explode. Here the coefficient c is a state. It grows by one step after a batch with an entropy below the target, and
shrinks by one step after a batch above it. The bonus is only added if the entropy is not above the target:

    loss = loss of the algorithm - c * reduce(entropy)    if H <= target
           loss of the algorithm                          else
    c    <- clip(c + step_size * sign(target - H), 0, max_coef)

H is the mean entropy of the counted tokens under the policy at the start of the update, nats.

Source: adaptive entropy control in Skywork-OR1 (2505.22312). The bound `max_coef` is in the authors' code.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, Objective, Term, Transform, bind, chain, of_fields
from purerl.batch import with_fields
from purerl.kernels.masks import count_true
from purerl.types import RowFloat, Scalar, TokenFloat

__all__ = ["adapt_entropy_coef", "with_adaptive_entropy"]


def adapt_entropy_coef(
    coefficient: Scalar, entropy: Scalar, *, target: float, step_size: float, max_coef: float
) -> Scalar:
    """Compute the next coefficient of an adaptive entropy bonus.

        c <- clip(c + step_size * sign(target - entropy), 0, max_coef)

    `entropy` and `target` are in nats. All tensors are scalars. Source: Skywork-OR1 (2505.22312).

    >>> adapt_entropy_coef(torch.tensor(0.25), torch.tensor(0.1), target=0.2, step_size=0.125, max_coef=1.0)
    tensor(0.3750)
    """
    return (coefficient + step_size * (target - entropy).sign()).clamp(0, max_coef)


def with_adaptive_entropy(
    algorithm: Algorithm, *, entropy_coef: float, target: float, step_size: float, max_coef: float
) -> Algorithm:
    """Return `algorithm` with an adaptive entropy bonus. The first coefficient is `entropy_coef`.

    It replaces the entropy bonus of the policy's objective, if there is one, and uses the reduction of the surrogate.
    Without counted tokens in a batch, the coefficient does not change. The algorithm then also reads `old_entropy`.
    """
    bonus = Transform(
        bind(_coefficient, entropy_coef=entropy_coef),
        bind(_adaptive, target=target, step_size=step_size, max_coef=max_coef),
    )
    return algorithm._replace(
        reads=tuple(dict.fromkeys((*algorithm.reads, "old_entropy"))),
        advantage=chain(algorithm.advantage, bonus),
        objectives=tuple(_with_bonus(o) if o.role == "policy" else o for o in algorithm.objectives),
    )


def _coefficient(*, entropy_coef: float) -> Scalar:
    return torch.tensor(entropy_coef, dtype=torch.float64)


def _adaptive(
    coefficient: Scalar, batch: TensorDict, *, target: float, step_size: float, max_coef: float
) -> tuple[Scalar, TensorDict]:
    mask, entropy = batch["mask"], batch["old_entropy"]
    tokens = count_true(mask).sum(-1)
    mean = torch.where(mask, entropy, 0).sum((-2, -1)) / tokens.clamp(min=1)
    current = torch.where(mean <= target, coefficient, 0).to(entropy.dtype)
    updated = adapt_entropy_coef(coefficient, mean, target=target, step_size=step_size, max_coef=max_coef)
    batch = with_fields(batch, entropy_coef=current.expand(mask.shape[:-1]))
    return torch.where(tokens > 0, updated, coefficient), batch


def _with_bonus(objective: Objective) -> Objective:
    other_terms = tuple(term for term in objective.terms if term.name != "entropy")
    bonus = Term("entropy", of_fields(_bonus, "entropy", "entropy_coef"), other_terms[0].reduce, weight=-1.0)
    return objective._replace(
        reads=(*objective.reads, "entropy_coef"),
        outputs=tuple(dict.fromkeys((*objective.outputs, "entropy"))),
        metric_outputs=tuple(name for name in objective.metric_outputs if name != "entropy"),
        terms=(*other_terms, bonus),
    )


def _bonus(entropy: TokenFloat, entropy_coef: RowFloat) -> TokenFloat:
    return entropy * entropy_coef.unsqueeze(-1)
