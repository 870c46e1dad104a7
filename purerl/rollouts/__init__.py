"""Sampling completions and episodes for training and evaluation.

`purerl.rollouts.play` plays one episode in the main thread, for a debugger. It is loaded when first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purerl.rollouts.debug import play

__all__ = ["play"]


def __getattr__(name: str) -> Any:
    if name != "play":
        raise AttributeError(f"module 'purerl.rollouts' has no attribute {name!r}")
    from purerl.rollouts.debug import play

    return play
