"""AdamW whose state is in main memory, for weights and gradients on a GPU.

Megatron-core's own `HybridDeviceOptimizer` is not used. In version 0.16 it refuses float32 weights with a distributed
optimizer, and its first step fails for bfloat16 weights without one. It computes in float32 only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

__all__ = ["HostAdamW"]

_CPU = torch.device("cpu")


class HostAdamW:
    """torch's AdamW, computed on the CPU, in place of the optimizer inside one of Megatron's.

    param_groups  as in torch, of weights on any device, whose gradients are their `decoupled_grad`
    state         by weight: `step`, `exp_avg`, `exp_avg_sq` and, for 16-bit weights, `weight` in float32

    The state is in main memory. A step copies one gradient at a time there, with its weight in float32 or float64, and
    the new weight back.
    """

    def __init__(self, param_groups: Sequence[dict[str, Any]]) -> None:
        self.param_groups = param_groups
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        for _, weight in self._weights():
            dtype = torch.promote_types(weight.dtype, torch.float32)
            moments = {key: torch.zeros(weight.shape, dtype=dtype, device=_CPU) for key in ("exp_avg", "exp_avg_sq")}
            copy = {"weight": weight.detach().to(_CPU, dtype)} if dtype != weight.dtype else {}
            self.state[weight] = {"step": torch.zeros((), device=_CPU), **moments, **copy}

    def _weights(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        return ((group, weight) for group in self.param_groups for weight in group["params"])

    @torch.no_grad()
    def step(self) -> None:
        """One step of all weights."""
        for group, weight in self._weights():
            state = self.state[weight]
            new = state.get("weight", weight).detach().to(_CPU)
            gradient: Tensor = weight.decoupled_grad  # pyright: ignore[reportAttributeAccessIssue]
            adamw(
                [new],
                [gradient.to(_CPU)],
                [state["exp_avg"]],
                [state["exp_avg_sq"]],
                [],
                [state["step"]],
                fused=True,
                amsgrad=False,
                maximize=False,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                eps=group["eps"],
                weight_decay=group["weight_decay"],
            )
            weight.copy_(new)

    @torch.no_grad()
    def reload(self) -> None:
        """Copy weights that were replaced into main memory, where it has copies."""
        for weight, state in self.state.items():
            if "weight" in state:
                state["weight"].copy_(weight)
