"""The experts that each token goes through: recorded in one forward pass, and used again in another.

    indices   [n, k] the experts of n tokens, of one router
    scores    [n, experts] what the router ranks experts by, with gradient
    replayed  [n, k] the experts of an earlier pass, or LIVE for those of this pass
    chosen  = replayed, or the k experts with the highest scores where it is LIVE
    weights = what the router makes of scores[chosen]

Only the discrete choice is replayed. The weights of the experts are those of the live router, and gradients reach it.

A router of transformers calls `torch.topk` once, on all experts, and computes weights from the values or the indices
that it gets. So a `TorchFunctionMode` replaces the result of this call, and the normalization is the model's own. A
decoder hands its argument `routing` on to its layers, as it does with `boundaries` of a pack. Recomputation calls a
layer again with the same arguments, so with the same choices.

What others call it: routing replay; R2 if the trainer records, and R3 if the engine does. References: Zheng et al.,
"Stabilizing Reinforcement Learning with LLMs" (2025); Ma et al., "Stabilizing MoE Reinforcement Learning by Aligning
Training and Inference Routers" (2025). The papers are named only: their equations were
not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from attrs import define, field, frozen
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from purerl.backends.hf.decoder.backbone import decoder_of, layers_of
from purerl.backends.hf.decoder.inputs import Inputs, Part
from purerl.errors import ConfigError
from purerl.expert_routes import LIVE
from purerl.types import TokenBool

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "DTYPE",
    "LIVE",
    "ROUTES",
    "RoutedInputs",
    "Routers",
    "Routing",
    "changed_choices",
    "hook_routers",
    "probe_routes",
    "routes_of",
    "top_k",
]

ROUTES = "routes"
"""The name of the output of a model, of the field of a batch, and of what a model reads."""

DTYPE = torch.int16
"""Of recorded choices."""

_TOP_K: tuple[Any, ...] = (torch.topk, Tensor.topk)
_NEED = "a mixture of experts with one router in a layer, which calls topk once on the scores of all experts and hands "
_NEED += "the indices to the experts"


@frozen(eq=False)
class Routing:
    """The choices in one forward pass of n tokens, in the order in which a router reads them.

    replayed  [n, layers, k] the experts to use; None: the live choices
    live      by index of the router: what it would choose itself, [n, k]
    """

    replayed: Tensor | None = None
    live: dict[int, Tensor] = field(factory=dict)

    @property
    def choices(self) -> Tensor:
        """[n, layers, k] the live choices of all routers."""
        return torch.stack([self.live[index] for index in sorted(self.live)], 1)


def top_k(scores: Tensor, live: Tensor, replayed: Tensor) -> tuple[Tensor, Tensor]:
    """The scores and indices [n, k] of the replayed experts, and of the `live` ones for tokens that have a `LIVE`.

    >>> scores, live, replayed = torch.tensor([[0.1, 0.9], [0.2, 0.8]]), torch.tensor([[1], [1]]), [[0], [LIVE]]
    >>> [each.flatten().tolist() for each in top_k(scores.double().round(decimals=1), live, torch.tensor(replayed))]
    [[0.1, 0.8], [0, 1]]
    """
    indices = torch.where((replayed == LIVE).any(-1, keepdim=True), live, replayed.to(live))
    return scores.gather(-1, indices), indices


def changed_choices(live: Tensor, replayed: Tensor, action: TokenBool) -> tuple[Tensor, Tensor]:
    """The number of tokens for which `live` are other experts than `replayed`, in any order, and of all tokens.

    Both are [rows, time, layers, k], and the numbers are means over layers. The tokens are those from which action
    tokens are predicted, if their choices were replayed.
    """
    differs = (live.sort(-1).values != replayed.sort(-1).values).any(-1)
    read = action.roll(-1, -1)[..., None] & (replayed != LIVE).all(-1)
    return (differs & read).sum() / read.shape[-1], read.sum() / read.shape[-1]


# --- routers -------------------------------------------------------------------------------------------------------


@define(eq=False)
class _Slot:
    """One router: its index, and the choices of the forward pass that its layer is in."""

    index: int
    routing: Routing | None = None


class _Choice(TorchFunctionMode):
    """Replaces the choice of `router` by `replayed` [n, k], if that is not None. `live` is what it would have been."""

    def __init__(self, router: Any, replayed: Tensor | None) -> None:
        super().__init__()
        self.experts, self.k, self.replayed = router.num_experts, router.top_k, replayed
        self.live: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in _TOP_K:
            return result
        scores = args[0] if args else kwargs["input"]
        if scores.shape[-1] != self.experts or result.indices.shape[-1] != self.k:
            return result  # of groups of experts
        self.live.append(result.indices)
        if self.replayed is None:
            return result
        return torch.return_types.topk(top_k(scores, result.indices, self.replayed.view_as(result.indices)))


class Routers(NamedTuple):
    """The routers of a model that are in this process.

    layers   indices of their layers, among all layers of the model
    experts  of each router
    k        experts that it chooses
    routed   indices of all layers of the model that have a router
    """

    layers: tuple[int, ...]
    experts: int
    k: int
    routed: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Of the choices for a token: (routers, k)."""
        return len(self.layers), self.k

    def columns(self, count: int) -> list[int]:
        """The indices of their choices among those of `count` layers: all that have a router, or all of the model.

        >>> routers = Routers(layers=(2,), experts=8, k=2, routed=(1, 2))
        >>> routers.columns(2), routers.columns(3)
        ([1], [2])
        """
        return [*map(self.routed.index, self.layers)] if count == len(self.routed) else [*self.layers]


def hook_routers(decoder: PreTrainedModel, key: str = "trainer.replay_routes") -> Routers:
    """Let the layers of `decoder` take an argument `routing`; its routers.

    It comes before recomputation. Raises: ConfigError, at the setting `key`, for a model without routers that have this
    interface.
    """
    found = list(_routers(decoder))
    if not found or len({(router.top_k, router.num_experts) for _, _, router in found}) > 1:
        has_experts = any(hasattr(module, "experts") for module in decoder.modules())
        raise _refused(decoder, "routers with another interface" if has_experts else "no experts", key)
    for index, (_, layer, router) in enumerate(found):
        slot = _Slot(index)
        # The mode is not compiled.
        router.forward = torch.compiler.disable(partial(_route, router.forward, router, slot))
        layer.forward = partial(_with_routing, layer.forward, slot)
    layers = tuple(number for number, _, _ in found)
    return Routers(layers, found[0][2].num_experts, found[0][2].top_k, routed=layers)


def _routers(decoder: nn.Module) -> Iterator[tuple[int, Any, Any]]:
    """Each layer that has one router, with its number and the router: a neighbor of `experts` with `top_k`."""
    for number, layer in enumerate(layers_of(decoder)):
        blocks = [module for module in layer.modules() if isinstance(getattr(module, "experts", None), nn.Module)]
        children = [child for block in blocks for child in block.children() if child is not block.experts]
        routers = [child for child in children if _is_int(child, "top_k") and _is_int(child, "num_experts")]
        if len(routers) == 1:
            yield number, layer, routers[0]


def _is_int(module: nn.Module, name: str) -> bool:
    return isinstance(getattr(module, name, None), int)


def _route(forward: Callable[..., Any], router: nn.Module, slot: _Slot, *args: Any, **kwargs: Any) -> Any:
    """The `forward` of `router`, with the choices in `slot`."""
    routing = slot.routing
    if routing is None:
        return forward(*args, **kwargs)
    replayed = None if routing.replayed is None else routing.replayed[:, slot.index]
    with _Choice(router, replayed) as choice:
        result = forward(*args, **kwargs)
    if len(choice.live) == 1:  # the probe has refused others
        routing.live[slot.index] = choice.live[0].detach()
    return result


def _with_routing(
    forward: Callable[..., Any], slot: _Slot, *args: Any, routing: Routing | None = None, **kwargs: Any
) -> Any:
    """The `forward` of a layer whose router is in `slot`."""
    slot.routing = routing
    try:
        return forward(*args, **kwargs)
    finally:
        slot.routing = None


# --- what a decoder reads ------------------------------------------------------------------------------------------


class RoutedInputs:
    """`Inputs` with the choices of routers among them.

    inputs  of rows of this `shape`, [rows, time]
    routes  [rows, time, layers, k] the experts to use; None: the live choices
    """

    def __init__(self, inputs: Inputs, shape: torch.Size, routes: Tensor | None = None) -> None:
        self.inputs, self.shape, self.routes = inputs, shape, routes
        self.routing = Routing()
        self.position = torch.zeros(0)

    def __call__(self, part: Part) -> dict[str, Any]:
        inputs = self.inputs(part)
        device = next(value.device for value in inputs.values() if isinstance(value, Tensor))
        # Padding is 0 in each part, so everything counts from 1.
        self.position = part(torch.arange(1, self.shape.numel() + 1, device=device).view(self.shape)).flatten()
        replayed = None
        if self.routes is not None:
            replayed = (part((self.routes - LIVE).movedim((0, 1), (-2, -1))) + LIVE).flatten(-2).movedim(-1, 0)
        self.routing = Routing(replayed)
        return {**inputs, "routing": self.routing}

    def recorded(self) -> Tensor:
        """int32 [rows, time, layers, k] the live choices, counted from 1; 0 where nothing was read.

        Of tokens that were read several times (padding of a pack repeats one) the first counts.
        """
        live = self.routing.choices.int() - LIVE
        n = len(self.position)
        first = self.position.new_full((self.shape.numel() + 1,), n)
        first = first.scatter_reduce(0, self.position, torch.arange(n, device=first.device), "amin")
        none = live.new_zeros(1, *live.shape[1:])
        return torch.cat((live, none))[first[1:]].view(*self.shape, *live.shape[1:])


def routes_of(counted: Tensor) -> Tensor:
    """The choices in `counted`, which counts from 1 as `RoutedInputs.recorded` does: int16, and `LIVE` for 0."""
    return (counted + LIVE).to(DTYPE)


# --- the probe -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def probe_routes(causal: PreTrainedModel, key: str = "trainer.replay_routes") -> None:
    """Test on a few tokens that each router makes one choice, and that its experts get a choice that is replayed.

    Raises: ConfigError, at the setting `key`, that says what is different.
    """
    decoder: Any = decoder_of(causal)
    weight: Any = causal.get_input_embeddings().weight
    tokens, routers = torch.arange(4, device=weight.device)[None] % len(weight), [r for _, _, r in _routers(decoder)]
    recorded, blocks = Routing(), [m for m in decoder.modules() if isinstance(getattr(m, "experts", None), nn.Module)]
    decoder(input_ids=tokens, use_cache=False, routing=recorded)
    if recorded.live.keys() != set(range(len(routers))):
        raise _refused(causal, "a router that calls topk never or several times", key)
    replayed, received = (recorded.choices + 1) % routers[0].num_experts, list[Any]()
    handles = [b.experts.register_forward_pre_hook(lambda _, args: received.append(args)) for b in blocks]
    try:
        decoder(input_ids=tokens, use_cache=False, routing=Routing(replayed))
    finally:
        for handle in handles:
            handle.remove()
    for index in range(len(routers)):
        expected = replayed[:, index]
        if not any(isinstance(x, Tensor) and torch.equal(x.to(expected), expected) for x in received[index]):
            raise _refused(causal, "experts that do not get the indices of topk", key)


def _refused(model: nn.Module, got: str, key: str) -> ConfigError:
    return ConfigError(key, got=f"{type(model).__name__}: {got}", need=_NEED, do="leave it out")
