"""Methods of the workers of vLLM that purerl adds, in a process of the engine, with torch and the standard library.

vLLM 0.32 packs weights for the kernels of a CPU when it starts. It does not pack all of them again when it loads new
ones, so this file does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

if __package__:  # in purerl
    from purerl.backends.transfer.engine.purerl_messages import Address
    from purerl.backends.transfer.engine.purerl_receiver import receive
else:  # in an engine, which finds the files of this directory
    from purerl_messages import Address  # pyright: ignore[reportMissingImports]
    from purerl_receiver import receive  # pyright: ignore[reportMissingImports]

__all__ = ["Worker", "pack_experts_again", "pack_tied_layers"]


class Worker:
    """Methods that are added to vLLM's workers (``--worker-extension-cls``), to be called by ``/collective_rpc``."""

    rank: int
    device: torch.device
    reload_weights: Callable[..., None]
    get_model: Callable[[], torch.nn.Module]

    def purerl_receive(self, **address: Any) -> None:
        """Receive and load the weights of one transfer; the arguments are those of `Address`."""
        receive(Address(**address), 1 + self.rank, self.device, lambda stream: self._load(weights_iterator=stream))

    def purerl_read(self, weights_path: str) -> None:
        """Load the weights in the files in a directory."""
        self._load(weights_path=weights_path)

    def _load(self, **source: Any) -> None:
        pack_experts_again(self.get_model())
        self.reload_weights(**source)
        pack_tied_layers(self.get_model())


def pack_experts_again(model: torch.nn.Module) -> None:
    """Let vLLM pack the experts of `model` for a CPU whenever it loads new ones; otherwise it does so when it starts.

    Its kernel would read new weights as if they were packed.
    """
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        experts = getattr(getattr(method, "moe_kernel", None), "fused_experts", None)
        is_packed = type(experts).__name__.endswith("CPUUnquantizedExperts")
        if is_packed and "process_weights_after_loading" not in vars(method):
            method.process_weights_after_loading = partial(_pack_experts, method.process_weights_after_loading, experts)


def _pack_experts(process: Callable[[Any], None], experts: Any, layer: Any) -> None:
    process(layer)
    experts.process_weights_after_loading(layer)


def pack_tied_layers(model: torch.nn.Module) -> None:
    """Pack the weight of each layer of `model` again that is the weight of another layer too, if a CPU needs it packed.

    vLLM copies new values into a tied weight, and packs them only for the layer whose name they have: an output head
    would keep the old ones.
    """
    seen: set[int] = set()
    layer: Any
    for layer in model.modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.numel():
            if hasattr(layer, "cpu_linear") and weight.data_ptr() in seen:
                layer.quant_method.process_weights_after_loading(layer)
                sys.stderr.write(f"purerl has packed the weight of {type(layer).__name__} again\n")
            seen.add(weight.data_ptr())
