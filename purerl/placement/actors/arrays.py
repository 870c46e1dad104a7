"""Tensors as numpy arrays: processes of one host read those in Ray's object store where they are, without a copy.

What is read from the store is read-only. A trainer does not write into its batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from purerl.types import TensorDict

__all__ = ["Packed", "pack", "pack_tensors", "unpack", "unpack_tensors"]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Array(NamedTuple):
    """A tensor; numpy does not have some dtypes, whose bits are then those of `values`."""

    values: np.ndarray
    dtype: torch.dtype


class Packed(NamedTuple):
    """A batch: its fields, and its number of rows."""

    fields: Mapping[str, _Array]
    size: tuple[int, ...]


def _to_array(tensor: Tensor) -> _Array:
    tensor = tensor.detach().cpu().contiguous()
    try:
        return _Array(tensor.numpy(), tensor.dtype)
    except TypeError:
        return _Array(tensor.view(_BITS[tensor.itemsize]).numpy(), tensor.dtype)


def _to_tensor(array: _Array) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        tensor = torch.from_numpy(array.values)
    return tensor if tensor.dtype == array.dtype else tensor.view(array.dtype)


def pack_tensors(tensors: Mapping[str, Tensor]) -> dict[str, _Array]:
    """`tensors` of any dtype and device, as arrays.

    >>> weights = {"scale": torch.ones(2, dtype=torch.bfloat16)}
    >>> unpack_tensors(pack_tensors(weights))["scale"].dtype
    torch.bfloat16
    """
    return {name: _to_array(tensor) for name, tensor in tensors.items()}


def unpack_tensors(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    """The inverse of `pack_tensors`. The tensors share memory with the arrays, and must not be written to."""
    return {name: _to_tensor(array) for name, array in arrays.items()}


def pack(value: Any) -> Any:
    """A batch as a `Packed`; any other value as it is.

    >>> from tensordict import TensorDict
    >>> batch = unpack(pack(TensorDict({"mask": torch.tensor([[True], [False]])}, [2])))
    >>> batch.batch_size, batch["mask"].tolist()
    (torch.Size([2]), [[True], [False]])
    """
    from tensordict import TensorDict

    if not isinstance(value, TensorDict):
        return value
    return Packed(pack_tensors(dict(value.items())), tuple(value.batch_size))


def unpack(value: Any) -> TensorDict | Any:
    """The inverse of `pack`. The fields of a batch must not be written to."""
    from tensordict import TensorDict

    return TensorDict(unpack_tensors(value.fields), value.size) if isinstance(value, Packed) else value
