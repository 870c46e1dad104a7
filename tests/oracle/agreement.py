"""Comparison of results with those of another library."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from purerl.config.presets import presets

from .compositions import Result

__all__ = ["AGREED", "COMPARED", "EXPLAINED", "assert_agree", "stated"]

_ROUNDING = {"rtol": 1e-9, "atol": 1e-12}

COMPARED: Counter[tuple[str, str]] = Counter()
"""The number of compared numbers, by library and kind (values or gradients)."""

AGREED: Counter[tuple[str, str]] = Counter()
"""The number of numbers that are equal up to rounding, by library and kind."""

EXPLAINED: Counter[tuple[str, str]] = Counter()
"""The number of numbers that differ by more than rounding, by library and cause."""


def assert_agree(library: str, ours: Result, theirs: Result, *, rtol: float = 0.0, cause: str = "") -> None:
    """Raise AssertionError if a value or a gradient differs by more than rounding in float64.

    A larger relative difference, up to `rtol`, needs a `cause`.
    """
    assert bool(rtol) == bool(cause)
    tolerance = {"rtol": rtol, "atol": rtol / 100} if cause else _ROUNDING
    for kind, mine, other in zip(("values", "values", "gradients"), ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, **tolerance)
        equal = int(_is_equal(mine, other).sum())
        COMPARED[library, kind] += mine.numel()
        AGREED[library, kind] += equal
        EXPLAINED[library, cause] += mine.numel() - equal


def stated(library: str, text: str) -> str:
    """The difference in the tables of the presets of `library` that contains `text`: a cause for `assert_agree`."""
    own = [preset for preset in presets().values() if preset.library == library]
    sentences = {text for preset in own for texts in (preset.differences, *preset.modifiers.values()) for text in texts}
    [sentence] = (sentence for sentence in sentences if text in sentence)
    return sentence


def _is_equal(mine: Tensor, other: Tensor) -> Tensor:
    return torch.isclose(mine, other, **_ROUNDING)
