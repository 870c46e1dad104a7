"""Sampling completions and episodes for training and evaluation.

    purerl.rollouts.play(workflow, example, ...)  one episode in the main thread, for a debugger
    purerl.rollouts.format_episode(trajectory)    an episode as text, turn by turn

They are loaded when first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purerl.rollouts.debug import format_episode, play

__all__ = ["format_episode", "play"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'purerl.rollouts' has no attribute {name!r}")
    from purerl.rollouts import debug

    return getattr(debug, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
