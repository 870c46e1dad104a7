"""Optimizers for tests, as a user would write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

__all__ = ["Growing", "Listing", "NotAnOptimizer", "WithClosure"]


class Growing(Optimizer):
    """SGD whose step size grows. It counts steps in its groups, and keeps numbers of Python and None in its state."""

    def __init__(self, params: Any, lr: float = 1e-3, growth: float = 1.5) -> None:
        super().__init__(params, {"lr": lr, "growth": growth, "scale": 1.0, "count": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["own"] = state.get("own", 0) + parameter.numel()
                state["unused"] = None
                parameter.sub_(parameter.grad, alpha=group["lr"] * group["scale"] * (1 + 1e-3 * state["own"]))
            group["scale"] *= group["growth"]
            group["count"] += 1


class Listing(Optimizer):
    """An optimizer whose state is a list."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["history"] = [1.0]


class WithClosure(Listing):
    """An optimizer that evaluates the loss."""

    def step(self, closure: Callable[[], Any]) -> None:
        closure()


class NotAnOptimizer:
    """A class of another kind."""
