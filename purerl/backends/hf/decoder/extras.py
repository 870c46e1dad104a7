"""The inputs of a forward pass beside tokens."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from purerl.backends.hf.decoder.images import ImageBatch

__all__ = ["Extras"]


class Extras(NamedTuple):
    """The images of rows, and the experts that their tokens go through.

    images   None: the rows are text
    experts  [rows, time, layers, k], as `moe/replay.py` defines them; with `LIVE` the router chooses. None: it always
             does
    """

    images: ImageBatch | None = None
    experts: Tensor | None = None
