"""Attention within the rows of a pack.

The attention function of the model reads all rows of equal length as one rectangle, so nothing is computed for padding
or between rows. A pack of n tokens has at most sqrt(2 n) different lengths, each of which is one call. On a GPU, 16-bit
numbers go to torch's flash attention for rows of different lengths, in one call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from purerl.system.devices.cuda import has_varlen_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["SUPPORTED", "Boundaries", "attend_pack", "attention_as", "band", "pack_attention"]

SUPPORTED = ("sdpa", "eager")
"""Attention implementations of transformers that can read packs."""

_FLASH_WIDTHS = range(8, 257, 8)
"""Widths of heads that torch's flash attention supports."""

_HAS_GROUPED_HEADS = torch.__version__ >= "2.13"
"""Whether `varlen_attn` takes fewer heads of keys than of queries. That of torch 2.11 does not; 2.12 was not tried."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@frozen(eq=False)
class Boundaries:
    """The boundaries between the rows of a pack.

    runs     (rows, tokens of each of them), for every length, in the order of the pack
    offsets  int32 [rows + 1] where each row begins, and the end of the pack

    Layers hand it on to attention. It is not a tuple, because torch.compile would compile for the number of runs.
    """

    runs: tuple[tuple[int, int], ...]
    offsets: Tensor


def pack_attention(model: PreTrainedModel) -> None:
    """Have the attention of `model` read each row of a pack on its own."""
    whole = model.config._attn_implementation  # noqa: SLF001 - transformers has no public attribute for it
    name = f"purerl_packed_{whole}"
    AttentionInterface.register(name, partial(_attend, whole=whole))
    AttentionMaskInterface.register(name, _no_mask)
    model.set_attn_implementation(name)


@contextmanager
def attention_as(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Let `model` use transformers' attention implementation `name` inside the block."""
    own = model.config._attn_implementation  # noqa: SLF001 - see above
    model.set_attn_implementation(name)
    yield
    model.set_attn_implementation(own)


def _attend_pack(
    attend: Attend,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    boundaries: Boundaries,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_plain: bool = True,
) -> Tensor:
    """Causal attention within the rows of a pack.

    attend    what it is for rows of equal length: [rows, heads, tokens, width] of query, key and value
              -> [rows, tokens, heads, width]
    query     [1, heads, n, width]; key and value may have fewer heads
    is_plain  whether `attend` is softmax(scaling * q . k) v, without soft caps and biases

    Returns [1, n, heads, width].
    """
    if is_plain and _varlen_fits(query, boundaries, sliding_window):
        return _attend_varlen(query, key, value, boundaries, scaling)
    return _attend_runs(attend, query, key, value, boundaries)


# The number of calls depends on the rows: each pack would be compiled on its own.
attend_pack: Any = torch.compiler.disable(_attend_pack)


def band(tokens: int, sliding_window: int | None, device: torch.device) -> Tensor:
    """[tokens, tokens] whether a token attends to another: it is not later, and closer than `sliding_window`."""
    time = torch.arange(tokens, device=device)
    distance = time[:, None] - time
    return (distance >= 0) & (distance < (tokens if sliding_window is None else sliding_window))


def _attend_runs(attend: Attend, query: Tensor, key: Tensor, value: Tensor, boundaries: Boundaries) -> Tensor:
    """`attend` of the rows of each length."""
    runs = boundaries.runs
    sizes = [rows * tokens for rows, tokens in runs]
    outputs = []
    # The gradient of a split is one concatenation; that of each slice would have the size of the whole pack.
    for run, *parts in zip(runs, *(x[0].split(sizes, 1) for x in (query, key, value)), strict=True):
        rectangles = (part.unflatten(1, run).transpose(0, 1) for part in parts)
        outputs.append(attend(*rectangles).flatten(0, 1))
    return torch.cat(outputs)[None]


def _varlen_fits(query: Tensor, boundaries: Boundaries, sliding_window: int | None) -> bool:
    """Whether torch's flash attention for rows of different lengths computes causal attention of these rows."""
    longest = max(tokens for _, tokens in boundaries.runs)
    return (
        _dtype_of(query).itemsize < 4
        and query.shape[-1] in _FLASH_WIDTHS
        and has_varlen_attention(query)
        and (sliding_window is None or longest <= sliding_window)
    )


def _attend_varlen(query: Tensor, key: Tensor, value: Tensor, boundaries: Boundaries, scale: float | None) -> Tensor:
    """Causal attention by torch's flash attention for rows of different lengths, in one call."""
    from torch.nn.attention.varlen import varlen_attn

    dtype = _dtype_of(query)
    longest, offsets = max(tokens for _, tokens in boundaries.runs), boundaries.offsets
    query, key, value = (x[0].transpose(0, 1).to(dtype) for x in (query, key, value))
    options: dict[str, Any] = {"window_size": (-1, 0), "scale": scale}
    if _HAS_GROUPED_HEADS:
        options["enable_gqa"] = query.shape[1] != key.shape[1]
    else:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    output: Any = varlen_attn(query, key, value, offsets, offsets, longest, longest, **options)
    return output[None]


def _dtype_of(query: Tensor) -> torch.dtype:
    """The dtype in which attention is computed: autocast does not know `varlen_attn`."""
    kind = query.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """No mask: `_attend` has one for each length."""


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    whole: str,
    boundaries: Boundaries | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers, which calls that of the implementation `whole`."""
    if boundaries is None:
        raise TypeError("its layers do not hand on to attention where rows begin")

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = _mask(query, sliding_window, is_eager=whole == "eager")
        function = _eager_of(module) if whole == "eager" else AttentionInterface()[whole]
        return function(module, query, key, value, mask, sliding_window=sliding_window, **kwargs)[0]

    is_plain = whole == "sdpa" and kwargs.get("position_bias") is None
    options = {"scaling": kwargs.get("scaling"), "sliding_window": sliding_window, "is_plain": is_plain}
    return attend_pack(attend, query, key, value, boundaries, **options), None


def _mask(query: Tensor, sliding_window: int | None, *, is_eager: bool) -> Tensor | None:
    """The mask of rows of one length, as transformers would make it."""
    tokens = query.shape[2]
    if not is_eager and (sliding_window is None or tokens <= sliding_window):
        return None
    allowed = band(tokens, sliding_window, query.device)[None, None]
    if not is_eager:
        return allowed
    return torch.zeros_like(allowed, dtype=query.dtype).masked_fill_(~allowed, torch.finfo(query.dtype).min)


def _eager_of(module: nn.Module) -> Callable[..., Any]:
    """The function that a model calls if its attention implementation is `eager`: it is in the model's own file."""
    return sys.modules[type(module).__module__].eager_attention_forward
