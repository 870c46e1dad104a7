"""The auxiliary loss that balances the load of experts, added once to the loss of a step.

The loss is that of `purerl.backends.hf.moe.router`: with f_e counted over the whole step, all layers and ranks,

    loss = coefficient * experts * sum_e f_e P_e

is a sum over layers and tokens. So each layer of each micro-batch adds its own summand, in its stage of the pipeline.
Megatron's auxiliary losses are off: they are means over a layer of one micro-batch, and would depend on how a step is
divided.

`install` replaces the function `routing` of each router in a model, through which the logits go, and lets `routes.py`
choose the experts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from attrs import define, field
from torch import Tensor, nn

from purerl.backends.megatron.expert_replay import Choices

# pyright: reportMissingImports=false

__all__ = ["RouterLoad", "install", "routed_layers"]


@define(eq=False)
class RouterLoad:
    """The statistics and the loss of a model's routers, for the tokens from which action tokens are predicted.

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

    def observe(self, logits: Tensor, live: Tensor, probabilities: Tensor, skip: Tensor) -> Tensor:
        """Count the `live` choices [n, k], or add the loss to the gradient of `probabilities`."""
        if self.counts is not None:
            self.counts += torch.bincount(live[~skip].flatten(), minlength=len(self.counts))
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


def install(model: nn.Module, load: RouterLoad, *, k: int) -> Choices:
    """Let `load` observe every router of `model`; what they choose, k experts for each token.

    The order of the routers is that of `routed_layers`.

    Layers then take the numbers of tokens (`routes.py`) in place of Megatron's ``padding_mask``.
    """
    layers = _layers_with_routers(model)
    choices = Choices(len(layers), k)
    for index, layer in enumerate(layers):
        slot = _Slot(index, load, choices)
        layer.forward = partial(_forward, layer.forward, slot)
        layer.router.routing = partial(_routing, layer.router.routing, slot)
        layer.router.router_replay = slot
    return choices


def routed_layers(model: nn.Module) -> tuple[int, ...]:
    """The indices of the layers of `model` with a router, among the layers of all stages."""
    return tuple(layer.layer_number - 1 for layer in _layers_with_routers(model))


def _layers_with_routers(model: nn.Module) -> list[Any]:
    from megatron.core.transformer.moe.moe_layer import MoELayer

    return [module for module in model.modules() if isinstance(module, MoELayer)]


@define(eq=False)
class _Slot:
    """The router `index` of a stage, and the tokens that it reads. It takes the place of Megatron's `RouterReplay`.

    number  [n] of each token
    live    [n, k] what the router chooses
    """

    index: int
    load: RouterLoad
    choices: Choices
    number: Any = None
    live: Any = None

    def get_replay_topk(
        self, scores: Tensor, topk: int, num_groups: Any, group_topk: Any, default_compute_topk: Callable[..., Any]
    ) -> tuple[Tensor, Tensor]:
        """The scores and the experts [n, k] that Megatron's router uses."""
        self.live = default_compute_topk(scores, topk, num_groups, group_topk)[1]
        return self.choices.choose(self.index, self.number, scores, self.live)


def _forward(forward: Any, slot: _Slot, hidden: Tensor, *args: Any, padding_mask: Tensor) -> Any:
    """The `forward` of a layer of experts, with the numbers of tokens [rows, time] in `padding_mask`."""
    slot.number = padding_mask.transpose(0, 1).reshape(-1)
    return forward(hidden, *args, padding_mask=padding_mask <= 0)


def _routing(routing: Any, slot: _Slot, logits: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens that are not observed are routed like the others."""
    probabilities, routing_map = routing(logits)
    flat = logits.view(-1, logits.shape[-1])
    return slot.load.observe(flat, slot.live, probabilities, slot.number <= 0), routing_map
