"""Experts that the generator records while it reads tokens.

They are a plane of its table, with a layer in the place of a head and k experts in the place of its width. So they
follow keys and values wherever these are copied: to the rows of one prompt, when rows move, and to the next turn of an
episode. They stay on the device of the model until a row ends: 2 k bytes for each layer and token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from purerl.backends.hf.decoder.backbone import decoder_of
from purerl.backends.hf.moe.replay import DTYPE, Routing, hook_routers, probe_routes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from purerl.backends.hf.sampling.cache import ContinuedCache, DecodeCache, PrefillCache
    from purerl.backends.hf.sampling.table import Table

__all__ = ["RouteRecorder"]

_PLANE = "routes"
_KEY = "generator.return_routes"


class RouteRecorder:
    """Records the choices of the routers of `model`. Raises ConfigError as `hook_routers`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.routers = model, hook_routers(decoder_of(model), _KEY)
        self.routing = Routing()

    def probe(self) -> None:
        """Test the model on a few tokens. Raises ConfigError as `probe_routes`."""
        probe_routes(self.model, _KEY)

    def argument(self) -> dict[str, Any]:
        """The argument of the model in the next forward pass."""
        self.routing = Routing()
        return {"routing": self.routing}

    def store(self, cache: PrefillCache | ContinuedCache | DecodeCache, *, rows: int) -> None:
        """Store the choices in the last forward pass, over `rows` rows, where `cache` stores keys and values."""
        choices = self.routing.choices.to(DTYPE).unflatten(0, (rows, -1))
        cache.store(_PLANE, choices.transpose(1, 2))

    def read(self, table: Table, row: int, first: int) -> np.ndarray:
        """int16 [tokens, layers, k] the choices for the tokens of `row` that were read, from the column `first` on."""
        if _PLANE not in table.names:  # nothing has been read
            return np.zeros((0, *self.routers.shape), np.int16)
        plane = table.view(_PLANE, slice(row, row + 1), first, table.now)[0]
        return plane.transpose(0, 1).cpu().numpy().copy()
