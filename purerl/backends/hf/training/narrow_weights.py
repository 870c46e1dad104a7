"""Optimizers of bfloat16 weights: updates are computed in float32, and stored by a rule of `rounding.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.optim.adamw import adamw

from purerl.backends.hf.training.rounding import REMAINDER, Rounding, is_narrow, round_stochastically
from purerl.backends.hf.weights.chunks import Chunk, chunks_of

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

__all__ = ["NarrowAdamW", "WideSteps", "wide"]

_ELEMENTS = 2**22
"""Elements of a parameter that are computed in float32 at a time."""


class NarrowAdamW(AdamW):
    """AdamW of bfloat16 weights, with moments in bfloat16.

        w, m, v -> float32 -> AdamW -> w by the rule of `rounding`; m and v are rounded stochastically

    Beside the moments the state of a parameter has the remainders of its weights, if the rule is `compensated`.
    Parameters may be sharded. Parts of a parameter are updated one after the other, so that little is in float32.
    """

    def __init__(self, params: ParamsT, *, rounding: Rounding, **settings: Any) -> None:
        super().__init__(params, fused=True, **settings)
        self.rounding = rounding

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for parameter in group["params"]:
                self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            state.update({"step": torch.zeros((), device=parameter.device), **moments})
        if self.rounding.keeps and REMAINDER not in state:
            state[REMAINDER] = torch.zeros_like(parameter, dtype=torch.int16)
        tensors = [parameter.detach(), parameter.grad, state["exp_avg"], state["exp_avg_sq"]]
        tensors += [state[REMAINDER]] if self.rounding.keeps else []
        settings = {name: group[name] for name in ("lr", "weight_decay", "eps", "amsgrad", "maximize")}
        settings |= dict(zip(("beta1", "beta2"), group["betas"], strict=True))
        for chunk, *rest in _pieces(tensors):
            others = [part.values for part in rest]
            gradient, *moments = (value.float() for value in others[:3])
            remainder = others[3] if self.rounding.keeps else None
            new = self.rounding.widened(chunk.values, remainder)
            step = state["step"].clone()
            adamw([new], [gradient], [moments[0]], [moments[1]], [], [step], fused=True, **settings)
            noise = self.rounding.noise(parameter, chunk)
            for number, (target, moment) in enumerate(zip(others[1:3], moments, strict=True)):
                target.copy_(round_stochastically(moment, noise[..., number]))
            self.rounding.store(parameter, new, chunk.values, remainder, noise[..., 2])
        state["step"] += 1


class WideSteps:
    """`optimizer`, whose parameters are in float32 while it takes a step. Its own state is in float32.

    It has been built while they were in float32, in `wide`. A step needs 8 bytes more for each narrow weight.
    """

    def __init__(self, optimizer: Optimizer, rounding: Rounding) -> None:
        self.optimizer, self.rounding = optimizer, rounding
        self.param_groups, self.state, self.defaults = optimizer.param_groups, optimizer.state, optimizer.defaults

    @torch.no_grad()
    def step(self) -> None:
        weights = {p: p.data for group in self.param_groups for p in group["params"] if is_narrow(p)}
        # Without the remainders, which would look like a state that the optimizer has initialized.
        remainders = {p: self.state[p].pop(REMAINDER, None) for p in weights}
        with wide({p: self.rounding.widened(weight, remainders[p]) for p, weight in weights.items()}):
            self.optimizer.step()
            new = {p: p.data for p in weights}
        for p, weight in weights.items():
            if self.rounding.keeps:
                first = remainders[p] is None
                self.state[p][REMAINDER] = torch.zeros_like(weight, dtype=torch.int16) if first else remainders[p]
            (chunk,) = chunks_of(weight)
            self.rounding.store(p, new[p], weight, self.state[p].get(REMAINDER), self.rounding.noise(p, chunk)[..., 0])


@contextmanager
def wide(values: Mapping[Any, Tensor]) -> Iterator[None]:
    """Inside the block, each parameter in `values` has these float32 values, and its gradient in float32."""
    narrow = {parameter: (parameter.data, parameter.grad) for parameter in values}
    for parameter, (_, gradient) in narrow.items():
        _replace(parameter, values[parameter], None if gradient is None else gradient.float())
    try:
        yield
    finally:
        for parameter, (data, gradient) in narrow.items():
            _replace(parameter, data, gradient)


def _replace(parameter: Tensor, data: Tensor, gradient: Tensor | None) -> None:
    parameter.grad = None  # it must have the dtype of the data
    parameter.data = data
    parameter.grad = gradient


def _pieces(tensors: Sequence[Tensor]) -> Iterator[list[Chunk]]:
    """The parts of `tensors` on this rank, which have the same shape and are split alike, in pieces of some rows."""
    for chunks in zip(*(chunks_of(tensor) for tensor in tensors), strict=True):
        offsets, values = chunks[0]
        if not values.ndim:
            yield [*chunks]
            continue
        rows = max(1, _ELEMENTS * len(values) // max(1, values.numel()))
        for start in range(0, len(values), rows):
            first = (offsets[0] + start, *offsets[1:])
            yield [Chunk(first, chunk.values[start : start + rows]) for chunk in chunks]
