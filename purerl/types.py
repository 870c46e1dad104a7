"""Type aliases for the shapes of tensors.

    rows     sequences: prompt, completion and tool output of a row are one sequence
    time     positions of a row, right-padded to the maximum length in the batch
    k        the k most likely tokens at a position, in descending order of probability
    *batch   any leading axes, so that every function runs under ``torch.func.vmap``; over rows too, because a tensor
             without the axis `rows` is read as one row

Signatures in `purerl.algos` use these aliases. For type checkers they are plain ``Tensor``. When a program runs they
are ``Any``, which costs nothing, works with ``torch.compile``, and needs no torch. If the environment variable
``PURERL_CHECK_SHAPES`` is 1, as in the tests, they are jaxtyping annotations, and an import hook checks every call.

`TensorDict` is for annotations too: importing tensordict takes longer than importing torch, and a configuration can be
read and checked without both. Code that creates one imports it from tensordict, in a function.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

__all__ = [
    "Count",
    "RowBool",
    "RowFloat",
    "RowInt",
    "Scalar",
    "TensorDict",
    "TokenBool",
    "TokenFloat",
    "TokenInt",
    "TopKFloat",
]

_CHECKS_SHAPES = os.environ.get("PURERL_CHECK_SHAPES") == "1"

if TYPE_CHECKING or _CHECKS_SHAPES:
    from tensordict import TensorDict
    from torch import Tensor
else:
    TensorDict = Tensor = Any

if TYPE_CHECKING or not _CHECKS_SHAPES:
    Scalar = Count = Tensor
    RowFloat = RowBool = RowInt = Tensor
    TokenFloat = TokenBool = TokenInt = Tensor
    TopKFloat = Tensor
else:
    from jaxtyping import Bool, Float, Int

    Scalar = Float[Tensor, "*batch"]
    Count = Int[Tensor, "*batch"]
    RowFloat = Float[Tensor, "*batch rows"]
    RowBool = Bool[Tensor, "*batch rows"]
    RowInt = Int[Tensor, "*batch rows"]
    TokenFloat = Float[Tensor, "*batch rows time"]
    TokenBool = Bool[Tensor, "*batch rows time"]
    TokenInt = Int[Tensor, "*batch rows time"]
    TopKFloat = Float[Tensor, "*batch rows time k"]
