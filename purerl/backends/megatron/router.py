"""The auxiliary loss that balances the load of experts, added once to the loss of a step.

The loss is that of `purerl.backends.hf.router`: with f_e counted over the whole step, all layers and ranks,

    loss = coefficient * experts * sum_e f_e P_e

is a sum over layers and tokens. So each layer of each micro-batch adds its own summand, in its stage of the pipeline.
Megatron's auxiliary losses are off: they are means over a layer of one micro-batch, and would depend on how a step is
divided.

`install` replaces the function `routing` of each router in a model, through which the logits go.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from attrs import define, field
from torch import Tensor, nn

# pyright: reportMissingImports=false

__all__ = ["RouterLoad", "install"]


@define(eq=False)
class RouterLoad:
    """What the routers of a model do beside routing, for the tokens from which action tokens are predicted.

    top_k   choices of a token
    counts  choices of each expert so far, if they are counted; None: they are not counted
    share   d loss / d P_e, the derivative by the sum of the probabilities of each expert; None: there is no loss
    loss    the sum of the summands so far
    """

    top_k: int
    counts: Tensor | None = None
    share: Tensor | None = None
    loss: Tensor = field(factory=lambda: torch.zeros(()))

    def count(self, experts: int, device: torch.device) -> None:
        """Count from now on."""
        self.counts, self.share = torch.zeros(experts, device=device), None

    def balance(self, counts: Tensor, coefficient: float) -> None:
        """Add the loss from now on, with the `counts` [experts] of the whole step."""
        reads = (counts.sum() / self.top_k).clamp(min=1)  # tokens * layers
        self.counts, self.share = None, coefficient * len(counts) * counts / reads**2
        self.loss = torch.zeros((), device=counts.device)

    def stop(self) -> None:
        """Neither count nor add a loss."""
        self.counts = self.share = None

    def observe(self, logits: Tensor, routing_map: Tensor, probabilities: Tensor, skip: Tensor) -> Tensor:
        """Count the choices in `routing_map` [n, experts], or add the loss to the gradient of `probabilities`."""
        if self.counts is not None:
            self.counts += routing_map[~skip].sum(0)
        # Recomputed layers run twice, of which only the second run has gradients.
        if self.share is None or not torch.is_grad_enabled():
            return probabilities
        summand = (logits.float().softmax(-1).masked_fill(skip[:, None], 0).sum(0) * self.share).sum()
        self.loss = self.loss + summand.detach()
        return _WithLoss.apply(probabilities, summand)


class _WithLoss(torch.autograd.Function):
    """`value`, with the gradient of `loss` in the backward pass."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, loss: Tensor) -> Tensor:
        ctx.dtype, ctx.device = loss.dtype, loss.device
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.ones((), dtype=ctx.dtype, device=ctx.device)


def install(model: nn.Module, load: RouterLoad) -> None:
    """Let `load` observe every router of `model`."""
    from megatron.core.transformer.moe.router import TopKRouter

    for module in model.modules():
        if isinstance(module, TopKRouter):
            module.routing = partial(_routing, module.routing, load)


def _routing(routing: Any, load: RouterLoad, logits: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
    """`padding_mask` is true for tokens that are not observed; they are routed like the others."""
    probabilities, routing_map = routing(logits)
    flat = logits.view(-1, logits.shape[-1])
    return load.observe(flat, routing_map, probabilities, padding_mask.reshape(-1)), routing_map
