"""The growth of the difference between the log-probabilities of generator and trainer that a run may have.

    limit = max(growth * level, smallest)        nats

with the level before the first step. By default the growth is 10, and 3 if one of them computes in 16 bits. The
smallest limit is 1e-3, and 1e-4 for an engine in the process of the trainer in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from purerl.settings import above_zero, setting

if TYPE_CHECKING:
    from purerl.protocols import Capabilities

__all__ = ["growth_setting", "mismatch_limit"]

_GROWTH, _GROWTH_IN_16_BITS = 10.0, 3.0
_SMALLEST, _SMALLEST_IN_PROCESS = 1e-3, 1e-4  # nats


def growth_setting() -> Any:
    """The setting `max_mismatch_growth` of a generator."""
    return setting(
        "the run ends if, for three steps, the mean difference of log-probabilities of generator and trainer is above "
        "this multiple of the one before the first step, and above 0.001 nats; by default that is a warning, at 10 "
        "times, or 3 times in 16 bits",
        default=None,
        may_change=True,
        **above_zero(),
    )


def mismatch_limit(level: float, growth: float | None, capabilities: Capabilities, *, is_narrow: bool) -> float:
    """The difference above which the mismatch has grown, in nats. `is_narrow`: one of both computes in 16 bits.

    >>> from purerl.protocols import Capabilities
    >>> engine = Capabilities()
    >>> mismatch_limit(1e-6, None, engine, is_narrow=False), mismatch_limit(0.02, None, engine, is_narrow=True)
    (0.001, 0.06)
    """
    if is_narrow:
        return max((growth or _GROWTH_IN_16_BITS) * level, _SMALLEST)
    is_exact = growth is None and capabilities.in_process and capabilities.batch_invariant
    return max((growth or _GROWTH) * level, _SMALLEST_IN_PROCESS if is_exact else _SMALLEST)
