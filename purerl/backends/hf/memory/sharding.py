"""The tensors that FSDP2 gathers and reduces, for a plan: on a whole model, with hooks that stand for FSDP2's.

    forward   the rest of the model (embeddings, head, norms) stays gathered. A layer is gathered into one buffer, and
              copied into its parameters; the buffer stays until the next layer is gathered
    backward  a layer is gathered, and the buffer of the layer before it. Its gradients are whole until all of them
              exist. Then they are copied into one buffer, which stays until the next layer has its own

Sizes are those of one rank of tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field
from torch import Tensor, nn

from purerl.backends.hf.decoder.backbone import layers_of
from purerl.system.tensor_tracker import MemoryTracker

if TYPE_CHECKING:
    from purerl.backends.hf.settings import TrainerConfig

__all__ = ["GATHERED", "count_gathered"]

GATHERED = "gathered parameters and gradients"


@define(eq=False)
class _Part:
    """A part of the model that is gathered at once: a layer, or the rest.

    size       bytes of its parameters
    gradients  bytes of those that are trained, as they are summed
    held       bytes by what they are for
    """

    tracker: MemoryTracker
    size: int
    gradients: int
    num_trained: int
    held: dict[str, int] = field(factory=dict)
    accumulated: int = 0

    def hold(self, what: str, size: int) -> None:
        self.held[what] = self.held.get(what, 0) + size
        self.tracker.hold(GATHERED, size)

    def release(self, *names: str) -> None:
        for name in names or tuple(self.held):
            self.tracker.hold(GATHERED, -self.held.pop(name, 0))

    def gather(self) -> None:
        """Into one buffer, unless it is there already, and then into the parameters, unless they are there already."""
        if "parameters" not in self.held:
            if "buffer" not in self.held:
                self.hold("buffer", self.size)
            self.hold("parameters", self.size)

    def reduce(self) -> None:
        """Sum the gradients over ranks: they are copied into one buffer."""
        self.release("parameters", "buffer")
        self.hold("reduced", self.gradients)
        self.release("gradients")


@contextmanager
def count_gathered(module: nn.Module, config: TrainerConfig, tracker: MemoryTracker) -> Iterator[None]:
    """Inside the block, count what FSDP2 would hold while `module` computes; nothing if parameters are not divided."""
    if not config.mesh.is_divided:
        yield
        return
    layers, tensor = list(layers_of(module)), config.mesh.tensor
    own = {id(p) for layer in layers for p in layer.parameters()}
    groups = [[p for p in module.parameters() if id(p) not in own], *(list(layer.parameters()) for layer in layers)]
    parts = [_part(tracker, each, tensor=tensor, trains_adapter=config.lora is not None) for each in groups]
    gathered = _Gathered(parts[0], parts[1:], keeps=not config.reshard_after_forward)
    with ExitStack() as hooks:
        hooks.callback(gathered.start)
        _add(hooks, module.register_forward_pre_hook(lambda *_: gathered.start_forward()))
        for k, layer in enumerate(layers):
            _add(hooks, layer.register_forward_pre_hook(lambda *_, k=k: gathered.before_layer(k)))
            _add(hooks, layer.register_forward_hook(lambda _, __, output, k=k: gathered.after_layer(k, output)))
        for part, parameters in zip(parts, groups, strict=True):
            for parameter in (p for p in parameters if p.requires_grad):
                _add(hooks, parameter.register_post_accumulate_grad_hook(partial(gathered.accumulate, part)))
        yield


def _add(hooks: ExitStack, handle: Any) -> None:
    hooks.callback(handle.remove)


def _part(tracker: MemoryTracker, parameters: Sequence[Tensor], *, tensor: int, trains_adapter: bool) -> _Part:
    """A part with these parameters. An adapter is not divided."""
    trained = [] if trains_adapter else [p for p in parameters if p.requires_grad]
    wide = [p.numel() * max(4, p.element_size()) for p in trained]  # 16-bit gradients are summed in float32
    size = sum(p.numel() * p.element_size() for p in parameters)
    return _Part(tracker, size // tensor, sum(wide) // tensor, len(trained))


@define(eq=False)
class _Gathered:
    """The order in which the parts of a model are gathered and freed. `keeps`: layers stay gathered until backward."""

    rest: _Part
    layers: Sequence[_Part]
    keeps: bool

    def start(self) -> None:
        """Nothing is gathered."""
        for part in (self.rest, *self.layers):
            part.release()
            part.accumulated = 0

    def start_forward(self) -> None:
        self.start()
        self.rest.gather()

    def before_layer(self, k: int) -> None:
        self.layers[k].gather()
        before = self.layers[k - 1] if k else self.rest
        before.release("buffer")

    def after_layer(self, k: int, output: Any) -> None:
        if not self.keeps:
            self.layers[k].release("parameters")
        hidden = output if isinstance(output, Tensor) else output[0]
        if torch.is_grad_enabled() and hidden.requires_grad:
            hidden.register_hook(partial(self.before_backward, k))

    def before_backward(self, k: int, gradient: Tensor) -> None:
        if k + 1 < len(self.layers) and self.layers[k + 1].num_trained == 0:
            self.layers[k + 1].release()
        self.layers[k].gather()
        self.layers[k].release("buffer")
        if k and "parameters" not in self.layers[k - 1].held:
            self.layers[k - 1].hold("buffer", self.layers[k - 1].size)

    def accumulate(self, part: _Part, parameter: Tensor) -> None:
        """The gradient of `parameter` exists, in full."""
        if not part.num_trained:
            return
        part.hold("gradients", parameter.numel() * parameter.element_size())
        part.accumulated += 1
        if part.accumulated == part.num_trained:
            for other in (self.rest, *self.layers):
                other.release("reduced")
            part.reduce()
