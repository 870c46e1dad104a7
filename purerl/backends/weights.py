"""Taking over weights by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from purerl.errors import EngineError, nearest

__all__ = ["copy_weights"]


def copy_weights(weights: Iterable[tuple[str, Tensor]], own: Mapping[str, Tensor]) -> None:
    """Copy `weights`, one after the other, into those of `own` that bear their names.

    Names that do not come stay as they are. Tied weights may come under each of their names.

    Raises: EngineError for a name or a shape that `own` does not have; the weights before it have been copied then.
    """
    for name, value in weights:
        if name not in own:
            need = "a name that the engine's model has"
            raise EngineError(f"unknown weight {name!r}", need=need, do=nearest(name, own))
        if own[name].shape != value.shape:
            need = f"{list(own[name].shape)}, as the engine's model has it"
            raise EngineError(f"weight {name!r}", got=f"shape {list(value.shape)}", need=need)
        own[name].detach().copy_(value.detach())
