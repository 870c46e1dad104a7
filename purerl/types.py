"""Names for axes and shapes.

    rows    one sequence each: prompt, completion, tool output, all in one line
    time    positions of a row, right-padded to the longest row of the batch
    vocab   entries of the tokenizer
    k       some tokens that might stand at a position, the likeliest first
    *batch  any leading axes, so that every primitive runs under ``torch.func.vmap``

Signatures in `purerl.algos` use these aliases. In production they are plain ``Tensor``: reading them costs nothing and
``torch.compile`` sees through them. With ``PURERL_CHECK_SHAPES=1`` (our tests set it) they are jaxtyping annotations,
and an import hook checks every call against them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torch import Tensor

__all__ = ["ChoiceFloat", "Count", "RowBool", "RowFloat", "RowInt", "Scalar", "TokenBool", "TokenFloat", "TokenInt"]

if TYPE_CHECKING or os.environ.get("PURERL_CHECK_SHAPES") != "1":
    Scalar = Count = Tensor
    RowFloat = RowBool = RowInt = Tensor
    TokenFloat = TokenBool = TokenInt = Tensor
    ChoiceFloat = Tensor
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
    ChoiceFloat = Float[Tensor, "*batch rows time k"]
