"""Models whose weights have shapes and no values, on which the engines of this package run without computing.

Weights are fake tensors of torch. Tokens, masks and positions are ordinary tensors, so everything that depends on them
takes the path that it takes in a run. A number that is computed from weights is 1. A tracker counts the bytes of fake
tensors as those of ordinary ones, so a simulated step has the peak memory of a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from purerl.backends.hf.decoder.architecture import CAUSAL, Architecture
from purerl.backends.hf.decoder.loading import no_progress_bars
from purerl.models.pretrained import loading
from purerl.settings import Model

__all__ = ["Simulation", "fake_model", "over_layers", "with_fake_weights"]

Bytes = Mapping[str, Mapping[str, int]]

_FEWER, _MORE, _ALL = 4, 6, 8
"""Layers of two smaller models, from which those with more than `_ALL` layers are extrapolated.

With fewer layers, the peak may be at another moment of a step than that of a deep model.
"""

_SIMULATED = ("eager", "sdpa")
"""Attention that runs without values. Others need about as much memory, and may not be installed."""

_INDEXED = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_unsafe_index_put"})


def fake_model(model: Model, *, num_layers: int | None = None, architecture: Architecture = CAUSAL) -> Any:
    """`model` as transformers' class, with fake weights in `model.dtype`; only its config.json is read.

    num_layers  how many of its layers it has, from the first on; None: all

    Raises: ConfigError if there is no configuration of a model of this `architecture`.
    """
    from transformers import AutoConfig

    kwargs = {"trust_remote_code": model.trust_remote_code}
    attention = model.attention if model.attention in _SIMULATED else None  # None: what transformers chooses
    with loading("config.json", model):
        config = AutoConfig.from_pretrained(model.path, revision=model.revision, **kwargs, **architecture.options)
        _shorten(config.get_text_config(decoder=True), num_layers)
        with torch.device("meta"), no_progress_bars(), torch.random.fork_rng(devices=[]):
            causal = architecture.auto(config).from_config(config, attn_implementation=attention, **kwargs)
    dtype = config.dtype or torch.float32 if model.dtype == "auto" else getattr(torch, model.dtype)
    return with_fake_weights(causal.eval(), dtype=dtype)


def _shorten(config: Any, num_layers: int | None) -> None:
    if num_layers is None:
        return
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]
    config.num_hidden_layers = num_layers


def with_fake_weights(module: Any, *, dtype: torch.dtype | None = None) -> Any:
    """`module` with fake parameters and buffers on the CPU; parameters in `dtype`, or in their own.

    What is fake already stays as it is, and tied parameters stay tied.
    """
    modes = (tensor.fake_mode for tensor in module.parameters() if isinstance(tensor, FakeTensor))
    mode, replaced = next(modes, None) or FakeTensorMode(allow_non_fake_inputs=True), dict[int, Any]()
    for part in module.modules():
        for name, tensor in _not_fake(part._parameters):  # noqa: SLF001 - setting an attribute would check the device
            if id(tensor) not in replaced:
                value = _empty(mode, tensor, dtype or tensor.dtype)
                replaced[id(tensor)] = tensor, nn.Parameter(value, requires_grad=tensor.requires_grad)
            part._parameters[name] = replaced[id(tensor)][1]  # noqa: SLF001
        for name, tensor in _not_fake(part._buffers):  # noqa: SLF001
            part._buffers[name] = _empty(mode, tensor, tensor.dtype)  # noqa: SLF001
    return module


def over_layers(number: int, measure: Callable[[int], Bytes]) -> dict[str, dict[str, int]]:
    """The bytes of a model with `number` layers, by phase and component.

    `measure` computes those of a model with the first layers only. Each further layer adds as much as the one before,
    so a deep model is extrapolated from two short ones, which takes seconds instead of minutes.
    """
    if number <= _ALL:
        return {phase: dict(sizes) for phase, sizes in measure(number).items()}
    fewer, more = measure(_FEWER), measure(_MORE)
    per_layer = (number - _FEWER) / (_MORE - _FEWER)
    return {
        phase: {
            name: round(size + (more[phase].get(name, 0) - size) * per_layer)
            for name, size in {**dict.fromkeys(more[phase], 0), **fewer[phase]}.items()
        }
        for phase in fewer
    }


class Simulation(TorchDispatchMode):
    """In this block, operations on fake tensors return numbers where a program needs them.

    Every number that is read from a fake tensor is 1, and ordinary masks that select from one are evaluated.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func._schema.name  # noqa: SLF001 - torch has no public name of an operation
        if name == "aten::_local_scalar_dense" and isinstance(args[0], FakeTensor):
            return 1
        if name == "aten::_grouped_mm" and isinstance(args[0], FakeTensor):
            return _grouped_product(*args[:3], **(kwargs or {}))
        if name in _INDEXED:
            args = (args[0], [index for part in args[1] for index in _positions(part)], *args[2:])
        return func(*args, **(kwargs or {}))


def _grouped_product(a: Tensor, b: Tensor, offs: Tensor | None = None, **kwargs: Any) -> Tensor:
    """The result of a product of groups of rows with their experts, which torch defines for fake bfloat16 only."""
    if a.ndim == b.ndim == 2:
        return a.new_empty(len(offs) if offs is not None else 1, a.shape[0], b.shape[1])
    return a.new_empty(*a.shape[:-1], b.shape[-1])


def _positions(index: Tensor | None) -> tuple[Tensor | None, ...]:
    """The positions that an ordinary mask selects; anything else as it is."""
    is_mask = index is not None and index.dtype == torch.bool and not isinstance(index, FakeTensor)
    return index.nonzero(as_tuple=True) if is_mask else (index,)


def _not_fake(tensors: Mapping[str, Tensor | None]) -> list[tuple[str, Tensor]]:
    return [
        (name, tensor) for name, tensor in tensors.items() if tensor is not None and not isinstance(tensor, FakeTensor)
    ]


def _empty(mode: FakeTensorMode, like: Tensor, dtype: torch.dtype) -> Tensor:
    with mode:
        return torch.empty(like.shape, dtype=dtype if like.is_floating_point() else like.dtype, device="cpu")
