"""Results of an algorithm on the rows of a step, and their changes if another algorithm replaces it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from purerl.algos.algebra import Algorithm, Objective, State, compute_advantages, compute_loss, prepare_step
from purerl.batch import select_fields, with_fields
from purerl.explain.comparison.changes import NOTHING, policy_of
from purerl.types import RowBool, TensorDict

__all__ = ["Computation", "Effect", "advantages_of", "effect_of", "effect_texts", "in_all_rows", "outcome_of"]


class Computation(NamedTuple):
    """Results of an algorithm on the rows of a step.

    advantage  [rows, time]; 0 in rows that are not kept, and if the algorithm computes none
    loss       of the policy
    gradient   of the loss with respect to each output of the policy, by name. Each has the shape of its output
    """

    advantage: Tensor
    loss: float
    gradient: Mapping[str, Tensor]


class Effect(NamedTuple):
    """Changes of the results on a batch if one algorithm is replaced by another.

    advantage      root mean square of the change of the advantages, divided by that of the advantages
    loss           the loss of the policy, before and after
    gradient_norm  the norm of its gradient with respect to the outputs of the policy, after divided by before
    cosine         the cosine of the two gradients

    A number is NaN if it is not defined: there are no advantages before, a gradient is 0, or the two gradients are
    those of different outputs, such as `logp` and `topk_logp`.
    """

    advantage: float
    loss: tuple[float, float]
    gradient_norm: float
    cosine: float


def advantages_of(algorithm: Algorithm, state: State, rows: TensorDict) -> tuple[State, TensorDict]:
    """The next state, and `rows` with the fields that the advantage of `algorithm` writes, from those that it reads."""
    state, after = compute_advantages(algorithm, state, select_fields(rows, algorithm.reads))
    return state, with_fields(rows, **dict(after.items()))


def outcome_of(algorithm: Algorithm, rows: TensorDict, keep: RowBool, *, has_outputs: bool = True) -> Computation:
    """The outcome for all rows of a step, of which `advantages_of` got those in `keep` and returned `rows`.

    The loss is that of one optimizer step with all `rows`, which have the outputs of the policy. If they do not, the
    loss is NaN, and there is no gradient.
    """
    loss, gradient = _gradient_of(policy_of(algorithm), rows) if has_outputs else (math.nan, {})
    zeros = torch.zeros_like(rows["mask"], dtype=torch.get_default_dtype())
    advantage = in_all_rows(rows["advantage"] if "advantage" in rows.keys() else zeros, keep)
    return Computation(advantage, loss, {name: in_all_rows(value, keep) for name, value in gradient.items()})


def _gradient_of(policy: Objective, rows: TensorDict) -> tuple[float, dict[str, Tensor]]:
    step, counts = prepare_step(policy, rows)
    outputs = {name: step[name].detach().clone().requires_grad_() for name in policy.outputs}
    loss, _ = compute_loss(policy, with_fields(step, **outputs), counts)
    gradients = torch.autograd.grad(loss, tuple(outputs.values()), allow_unused=True, materialize_grads=True)
    return float(loss.detach()), dict(zip(outputs, gradients, strict=True))


def in_all_rows(value: Tensor, keep: RowBool) -> Tensor:
    """`value`, which has the rows in `keep`, with zeros in the other rows."""
    canvas = value.new_zeros((len(keep), *value.shape[1:]))
    canvas[keep] = value
    return canvas


def effect_of(before: Computation, after: Computation) -> Effect:
    """The changes from `before` to `after`, which have the same rows."""
    size = float(before.advantage.norm())
    norms = [math.hypot(*(float(value.norm()) for value in result.gradient.values())) for result in (before, after)]
    common = [name for name in before.gradient if name in after.gradient]
    products = [float((before.gradient[name] * after.gradient[name]).sum()) for name in common]
    is_comparable = any(before.gradient[name].any() and after.gradient[name].any() for name in common)
    return Effect(
        advantage=float((after.advantage - before.advantage).norm()) / size if size else math.nan,
        loss=(before.loss, after.loss),
        gradient_norm=norms[1] / norms[0] if norms[0] else math.nan,
        cosine=sum(products) / (norms[0] * norms[1]) if is_comparable else math.nan,
    )


def effect_texts(effect: Effect | None) -> tuple[str, str, str, str]:
    """`effect` as texts: advantages, loss, gradient norm, cosine. A number that is not defined is "-".

    >>> effect_texts(Effect(0.5, (0.25, 0.125), 2.0, float("nan")))
    ('50.0%', '0.25 -> 0.125', 'x 2', '-')
    """
    if effect is None:
        return ("not alone", "", "", "")
    before, after = effect.loss
    numbers = {"{:.1%}": effect.advantage, "x {:.4g}": effect.gradient_norm, "{:.4f}": effect.cosine}
    texts = [NOTHING if math.isnan(number) else text.format(number) for text, number in numbers.items()]
    return texts[0], f"{before:.4g} -> {after:.4g}", texts[1], texts[2]
