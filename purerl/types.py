"""Type aliases for the shapes of tensors.

    rows     sequences: prompt, completion and tool output of a row are one sequence
    time     positions of a row, right-padded to the maximum length in the batch
    k        the k most likely tokens at a position, in descending order of probability
    *batch   any leading axes, so that every function runs under ``torch.func.vmap``

Signatures in `purerl.algos` use these aliases. By default they are plain ``Tensor``, which costs nothing and works with
``torch.compile``. If the environment variable ``PURERL_CHECK_SHAPES`` is 1, as in the tests, they are jaxtyping
annotations, and an import hook checks every call against them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torch import Tensor

__all__ = ["Count", "RowBool", "RowFloat", "RowInt", "Scalar", "TokenBool", "TokenFloat", "TokenInt", "TopKFloat"]

if TYPE_CHECKING or os.environ.get("PURERL_CHECK_SHAPES") != "1":
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
