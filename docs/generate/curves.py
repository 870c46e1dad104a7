"""Curves of the loss of a policy, and of its gradient, as functions of the importance ratio.

The objective of the algorithm computes them. The batch has one row of one token for each ratio, with an advantage of 1
and again with -1. All other fields are random. The objective runs on two such batches: a result that is the same for
both is a function of ratio and advantage only. Other results are not drawn. If the weight of a token is detached, only
the gradient is such a function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm, Objective, prepare_step
from purerl.batch import with_fields
from purerl.testing import example_batch

__all__ = ["Curves", "curves", "figure", "thumbnail"]

# With 301 points, some would be on the bounds of the clip range, where the loss is not differentiable.
_POINTS = 302
_BEHAVIOR = {"old_logp", "rollout_logp"}
_FLAT = 0.02


class Curves(NamedTuple):
    """`ratio` is [points]; `gradient`, with respect to logp, and `loss` are [2, points], for A = 1 and A = -1.

    `loss` is None if it is not a function of ratio and advantage.
    """

    ratio: Tensor
    gradient: Tensor
    loss: Tensor | None


def curves(algorithm: Algorithm, config: Any) -> Curves | None:
    """The curves of the policy of `algorithm`. None if the gradient is not a function of ratio and advantage, or flat.

    The range of ratios is three times as wide as the clip range in `config`, if it has one.
    """
    [policy] = [objective for objective in algorithm.objectives if objective.role == "policy"]
    if not _BEHAVIOR & set(policy.reads) or "advantage" not in policy.reads:
        return None
    reach = min(3 * max(getattr(config, "clip_low", 0.0), getattr(config, "clip_high", 0.0)) or 1.5, 6.0)
    ratio = torch.linspace(max(0.01, 1 - reach), 1 + reach, _POINTS, dtype=torch.float64)
    (loss, gradient), (second_loss, second_gradient) = (_evaluated(policy, ratio, seed) for seed in (0, 1))
    flat = gradient.amax(-1) - gradient.amin(-1) <= _FLAT * gradient.abs().amax()
    if flat.all() or not torch.allclose(gradient, second_gradient):
        return None
    return Curves(ratio, gradient, loss if torch.allclose(loss, second_loss) else None)


def _evaluated(policy: Objective, ratio: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """The loss of each token, summed over all terms, and its gradient with respect to logp: [2, points] each."""
    step, _ = prepare_step(policy, _tokens(policy, ratio, seed))
    logp = step["logp"].requires_grad_()
    losses = [term.weight * term.loss(with_fields(step, logp=logp)) for term in policy.terms if term.where == "mask"]
    loss = torch.stack(losses).sum(0)
    [gradient] = torch.autograd.grad(loss.sum(), logp)
    return loss.detach()[:, 1].reshape(2, -1), gradient[:, 1].reshape(2, -1)


def _tokens(policy: Objective, ratio: Tensor, seed: int) -> TensorDict:
    """Two tokens for each ratio, with weight 1 and equal old and rollout log-probabilities. `seed` sets all else."""
    advantage, ratio = torch.cartesian_prod(torch.tensor([1.0, -1.0], dtype=ratio.dtype), ratio).T.unsqueeze(-1)
    names = dict.fromkeys([*policy.reads, *policy.outputs, *policy.metric_outputs])
    batch = example_batch(names, tuple((row, ".a") for row in range(len(ratio))), seed=seed)
    before = batch["logp"]
    fixed = {"old_logp": before, "rollout_logp": before, "weight": torch.ones_like(before)}
    fields = {name: value for name, value in fixed.items() if name in policy.reads}
    return with_fields(batch, logp=before + ratio.log(), advantage=advantage.expand_as(before), **fields)


# --- drawing -----------------------------------------------------------------------------------------------------

Box = tuple[float, float, float, float]
"""Left, top, width and height."""

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 340, 220, 46, 26, 30


def figure(drawn: Curves) -> str:
    """The curves as SVG, with a panel for the loss, if it is not None, and one for the gradient."""
    lines = {"loss": drawn.loss, "gradient by logp": drawn.gradient}
    present = [(title, values) for title, values in lines.items() if values is not None]
    panels = [_panel(title, drawn.ratio, values, k * _WIDTH) for k, (title, values) in enumerate(present)]
    return _svg("curves", _WIDTH * len(panels), _HEIGHT, "".join(panels))


def thumbnail(drawn: Curves) -> str:
    """A small SVG of the gradient, for a table."""
    box = (2.0, 2.0, 86.0, 32.0)
    return _svg("thumbnail", 90, 36, "".join(_lines(drawn.ratio[::3], drawn.gradient[:, ::3], box)))


def _svg(kind: str, width: int, height: int, inner: str) -> str:
    return f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" role="img">{inner}</svg>'


def _panel(title: str, ratio: Tensor, lines: Tensor, shift: int) -> str:
    left, top, width, height = box = (_LEFT, _TOP, _WIDTH - _LEFT - 14, _HEIGHT - _TOP - _BOTTOM)
    right, bottom, below = left + width, top + height, top + height + 16
    labels = [
        _text(left, 14, title, "start"),
        _text(right - 58, 14, "A = 1", "end", "good"),
        _text(right, 14, "A = -1", "end", "bad"),
        _text(left, below, _number(ratio[0])),
        _text(_unit_x(ratio, box), below, "1"),
        _text(right, below, _number(ratio[-1])),
        _text((_unit_x(ratio, box) + right) / 2, below, "ratio"),
        _text(left - 6, top + 4, _number(lines.max()), "end"),
        _text(left - 6, bottom + 4, _number(lines.min()), "end"),
    ]
    return f'<g transform="translate({shift},0)">{"".join([*_lines(ratio, lines, box), *labels])}</g>'


def _unit_x(ratio: Tensor, box: Box) -> float:
    """The x coordinate of a ratio of 1."""
    return box[0] + box[2] * float((1 - ratio[0]) / (ratio[-1] - ratio[0]))


def _lines(ratio: Tensor, lines: Tensor, box: Box) -> Iterator[str]:
    """The axes at a ratio of 1 and at a value of 0, and a line for each advantage."""
    left, top, width, height = box
    low, high = float(lines.min()), float(lines.max())
    x = left + width * (ratio - ratio[0]) / (ratio[-1] - ratio[0])
    y = top + height * (high - lines) / (high - low)
    yield _polyline("axis", [_unit_x(ratio, box)] * 2, [top, top + height])
    if low < 0 < high:
        yield _polyline("axis", [left, left + width], [top + height * high / (high - low)] * 2)
    for kind, line in zip(("good", "bad"), y, strict=True):
        yield _polyline(kind, x.tolist(), line.tolist())


def _polyline(kind: str, x: Sequence[float], y: Sequence[float]) -> str:
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return f'<polyline class="{kind}" points="{points}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "axis") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{text}</text>'


def _number(value: Tensor) -> str:
    return f"{float(value):.5g}"
