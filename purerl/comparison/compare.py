"""The effect of each difference between two algorithms, and of all of them, on a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from purerl.algos.algebra import Algorithm, compute_advantages, compute_loss, prepare_step, select_rows
from purerl.batch import select_fields, with_fields
from purerl.comparison.changes import NOTHING, aligned, changes, fields_to_compare, policy_of, texts_of
from purerl.errors import InputError
from purerl.types import TensorDict

__all__ = ["Difference", "Effect", "compare", "effect_texts"]


class Effect(NamedTuple):
    """What changes on a batch if one algorithm is replaced by another.

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


class Difference(NamedTuple):
    """A part in which two algorithms differ: its text in each, and the effect of this difference alone.

    There is no effect if the part cannot be exchanged alone, because another part writes what it reads.
    """

    part: str
    first: str
    second: str
    effect: Effect | None


def compare(first: Algorithm, second: Algorithm, batch: TensorDict) -> tuple[list[Difference], Effect]:
    """The differences of `second` from `first`, and the effect of all of them.

    `batch` needs the fields that either algorithm reads, and the outputs of the policy. Losses of other models, such as
    a critic, are compared as text. They do not change the step of the policy.

    Raises: InputError if a field is missing, and if one of the two has no policy.
    """
    missing = [name for name in fields_to_compare(first, second) if name not in batch.keys()]
    if missing:
        raise InputError("a batch", got=f"no field {', '.join(missing)}", need="the fields of both algorithms")
    first, second = aligned(first, second)
    before = _result(first, batch)
    ours, theirs = dict(texts_of(first)), dict(texts_of(second))
    differences = [
        Difference(part, ours.get(part, NOTHING), theirs.get(part, NOTHING), _alone(before, changed, batch))
        for part, changed in changes(first, second).items()
    ]
    return differences, _effect(before, _result(second, batch))


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


# --- numbers -----------------------------------------------------------------------------------------------------


class _Result(NamedTuple):
    advantage: Tensor
    loss: float
    gradient: Mapping[str, Tensor]


def _result(algorithm: Algorithm, batch: TensorDict) -> _Result:
    """Advantages, the policy's loss and its gradient by output, on the rows that are kept; 0 in other rows."""
    keep = select_rows(algorithm, batch)
    kept = batch[keep]
    _, after = compute_advantages(algorithm, algorithm.advantage.init(), select_fields(kept, algorithm.reads))
    policy = policy_of(algorithm)
    step, counts = prepare_step(policy, with_fields(kept, **dict(after.items())))
    outputs = {name: step[name].detach().clone().requires_grad_() for name in policy.outputs}
    loss, _ = compute_loss(policy, with_fields(step, **outputs), counts)
    gradients = torch.autograd.grad(loss, tuple(outputs.values()), allow_unused=True, materialize_grads=True)
    advantage = after["advantage"] if "advantage" in after.keys() else torch.zeros_like(kept["mask"], dtype=loss.dtype)
    gradient = {name: _in_all_rows(value, keep) for name, value in zip(outputs, gradients, strict=True)}
    return _Result(_in_all_rows(advantage, keep), float(loss.detach()), gradient)


def _in_all_rows(value: Tensor, keep: Tensor) -> Tensor:
    """`value`, which has the rows in `keep`, with zeros in the other rows."""
    canvas = value.new_zeros((len(keep), *value.shape[1:]))
    canvas[keep] = value
    return canvas


def _alone(before: _Result, changed: Algorithm, batch: TensorDict) -> Effect | None:
    if not policy_of(changed).terms:
        return None
    try:
        return _effect(before, _result(changed, batch))
    except KeyError:  # a field that another part of the second algorithm writes
        return None


def _effect(before: _Result, after: _Result) -> Effect:
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
