"""The loss of a policy against the ratio, and its gradient: worked out by the algorithm's own objective, and drawn.

One row of one token stands for each ratio, once with an advantage of 1 and once of -1. All else that the objective
reads is drawn at random, twice: what comes out the same both times is a function of ratio and advantage alone, and only
that is drawn. Where a weight is detached, the gradient is such a function and the value is not.
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

# One less, and points would lie on the bounds of clips, where there is no gradient to speak of.
_POINTS = 302
_BEHAVIOR = {"old_logp", "rollout_logp"}
_FLAT = 0.02


class Curves(NamedTuple):
    """`ratio`, [points]; `gradient` by logp and `loss`, [2, points], for A = 1 and A = -1; no loss if it is none."""

    ratio: Tensor
    gradient: Tensor
    loss: Tensor | None


def curves(algorithm: Algorithm, config: Any) -> Curves | None:
    """Those of its policy; None where the gradient is no function of the two, or hardly changes with the ratio.

    They reach three times as far from 1 as the bounds of the clip in `config`, where it has them.
    """
    [policy] = [one for one in algorithm.objectives if one.role == "policy"]
    if not _BEHAVIOR & set(policy.reads) or "advantage" not in policy.reads:
        return None
    reach = min(3 * max(getattr(config, "clip_low", 0.0), getattr(config, "clip_high", 0.0)) or 1.5, 6.0)
    ratio = torch.linspace(max(0.01, 1 - reach), 1 + reach, _POINTS, dtype=torch.float64)
    (loss, gradient), (other_loss, other_gradient) = (_evaluated(policy, ratio, seed) for seed in (0, 1))
    flat = gradient.amax(-1) - gradient.amin(-1) <= _FLAT * gradient.abs().amax()
    if flat.all() or not torch.allclose(gradient, other_gradient):
        return None
    return Curves(ratio, gradient, loss if torch.allclose(loss, other_loss) else None)


def _evaluated(policy: Objective, ratio: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Loss of each token, all terms added up, and its gradient by logp: [2, points] each."""
    step, _ = prepare_step(policy, _tokens(policy, ratio, seed))
    logp = step["logp"].requires_grad_()
    losses = [term.weight * term.loss(with_fields(step, logp=logp)) for term in policy.terms if term.where == "mask"]
    loss = torch.stack(losses).sum(0)
    [gradient] = torch.autograd.grad(loss.sum(), logp)
    return loss.detach()[:, 1].reshape(2, -1), gradient[:, 1].reshape(2, -1)


def _tokens(policy: Objective, ratio: Tensor, seed: int) -> TensorDict:
    """Two tokens for each ratio, which weigh 1 and had one probability before; all else is drawn from `seed`."""
    advantage, ratio = torch.cartesian_prod(torch.tensor([1.0, -1.0], dtype=ratio.dtype), ratio).T.unsqueeze(-1)
    fields = dict.fromkeys([*policy.reads, *policy.outputs, *policy.metric_outputs])
    batch = example_batch(fields, tuple((row, ".a") for row in range(len(ratio))), seed=seed)
    before = batch["logp"]
    agreed = {"old_logp": before, "rollout_logp": before, "weight": torch.ones_like(before)}
    given = {name: value for name, value in agreed.items() if name in policy.reads}
    return with_fields(batch, logp=before + ratio.log(), advantage=advantage.expand_as(before), **given)


# --- drawing -----------------------------------------------------------------------------------------------------

Box = tuple[float, float, float, float]
"""Left, top, width and height."""

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 340, 220, 46, 26, 30


def figure(found: Curves) -> str:
    """The curves as SVG: the loss, where there is one, and the gradient."""
    panels = {"loss": found.loss, "gradient by logp": found.gradient}
    there = {title: lines for title, lines in panels.items() if lines is not None}
    drawn = [_panel(title, found.ratio, lines, k * _WIDTH) for k, (title, lines) in enumerate(there.items())]
    return _svg("curves", _WIDTH * len(there), _HEIGHT, "".join(drawn))


def thumbnail(found: Curves) -> str:
    """The gradient alone, as small as a word."""
    box = (2.0, 2.0, 86.0, 32.0)
    return _svg("thumbnail", 90, 36, "".join(_lines(found.ratio[::3], found.gradient[:, ::3], box)))


def _svg(kind: str, width: int, height: int, inner: str) -> str:
    return f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" role="img">{inner}</svg>'


def _panel(title: str, ratio: Tensor, lines: Tensor, shift: int) -> str:
    left, top, width, height = box = (_LEFT, _TOP, _WIDTH - _LEFT - 14, _HEIGHT - _TOP - _BOTTOM)
    right, bottom, below = left + width, top + height, top + height + 16
    texts = [
        _text(left, 14, title, "start"),
        _text(right - 58, 14, "A = 1", "end", "good"),
        _text(right, 14, "A = -1", "end", "bad"),
        _text(left, below, _number(ratio[0])),
        _text(_along(ratio, box), below, "1"),
        _text(right, below, _number(ratio[-1])),
        _text((_along(ratio, box) + right) / 2, below, "ratio"),
        _text(left - 6, top + 4, _number(lines.max()), "end"),
        _text(left - 6, bottom + 4, _number(lines.min()), "end"),
    ]
    return f'<g transform="translate({shift},0)">{"".join([*_lines(ratio, lines, box), *texts])}</g>'


def _along(ratio: Tensor, box: Box) -> float:
    """Where a ratio of 1 is."""
    return box[0] + box[2] * float((1 - ratio[0]) / (ratio[-1] - ratio[0]))


def _lines(ratio: Tensor, lines: Tensor, box: Box) -> Iterator[str]:
    """The axes through a ratio of 1 and a value of 0, and a line for each advantage."""
    left, top, width, height = box
    low, high = float(lines.min()), float(lines.max())
    x = left + width * (ratio - ratio[0]) / (ratio[-1] - ratio[0])
    y = top + height * (high - lines) / (high - low)
    yield _polyline("axis", [_along(ratio, box)] * 2, [top, top + height])
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
