"""The parts of torch.cuda that megatron-core 0.16 calls, on the CPU, so that its layers run without a GPU.

`install` changes torch in the whole process, so only processes that tests start call it, before they import megatron.
Everything is computed on the CPU, in the order of the calls: streams and events do nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._device import _device_constructors

__all__ = ["install"]

_CPU = torch.device("cpu")
_FACTORIES = ("arange", "empty", "empty_like", "full", "ones", "rand", "randn", "tensor", "zeros", "zeros_like")


class _Nothing:
    """A stream, an event or a device context: all of its methods do nothing, and return another one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return _Nothing


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with the device "cpu" in place of "cuda"."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        return function(*(_CPU if _is_cuda(value) else value for value in args), **kwargs)

    return call


def _is_cuda(value: Any) -> bool:
    return (isinstance(value, str) and value.startswith("cuda")) or (
        isinstance(value, torch.device) and value.type == "cuda"
    )


def install() -> None:
    """Replace the parts of torch.cuda and of megatron-core that are named here, until the process ends."""
    cuda: Any = torch.cuda
    if cuda.Stream is _Nothing:
        return
    torch.compile = lambda function=None, **options: function or (lambda inner: inner)
    cuda.current_device = lambda: _CPU
    for name in ("set_device", "synchronize", "empty_cache", "_lazy_init"):
        setattr(cuda, name, lambda *args, **kwargs: None)
    cuda._lazy_call = lambda call: call()
    cuda.Stream = cuda.Event = cuda.device = _Nothing
    cuda.current_stream = cuda.default_stream = _Nothing
    cuda.stream = lambda stream: contextlib.nullcontext()
    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state = cuda.random.get_rng_state = lambda device=None: torch.get_rng_state()
    cuda.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    cuda.default_generators = {_CPU: torch.default_generator}
    tensor: Any = Tensor
    tensor.cuda = lambda self, *args, **kwargs: self
    true_type = tensor.type

    def type_of(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        """``torch.cuda.FloatTensor``, as of a tensor on a GPU."""
        result = true_type(self, *args, **kwargs)
        return result.replace("torch.", "torch.cuda.") if isinstance(result, str) else result

    tensor.type = type_of
    torch.nn.Module.cuda = lambda self, *args: self  # pyright: ignore[reportAttributeAccessIssue]
    tensor.to = _on_cpu(tensor.to)
    _device_constructors()  # remembers the functions that `with torch.device(...)` changes, before they are replaced
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    _patch_megatron()


def _patch_megatron() -> None:
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    def as_on_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        """The tensor; on a GPU megatron-core moves it to the CPU, as an array if `as_numpy`."""
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    parallel_state.create_group = _one_for_equal_ranks(parallel_state.create_group)
    token_dispatcher.maybe_move_tensor_to_cpu = as_on_cpu
    for name in ("fused_moe_aux_loss", "te_general_gemm"):  # used, but not defined without TransformerEngine
        if not hasattr(moe_utils, name):
            setattr(moe_utils, name, None)


def _one_for_equal_ranks(create_group: Callable[..., Any]) -> Callable[..., Any]:
    """`create_group` that returns the same group for the same ranks.

    Megatron-core opens about 26 groups for a mesh, most of them of the same ranks. With gloo each has threads, and
    hundreds of threads make every collective call slower.
    """
    groups: dict[tuple[int, ...] | None, Any] = {}

    def call(ranks: list[int] | None = None, **options: Any) -> Any:
        key = None if ranks is None else tuple(ranks)
        if key not in groups:
            groups[key] = create_group(ranks, **options)
        return groups[key]

    return call
