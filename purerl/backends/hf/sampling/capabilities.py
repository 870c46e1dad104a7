"""The capabilities of the generator, which need no torch."""

from __future__ import annotations

from purerl.backends.logits import FILTERS
from purerl.protocols import Capabilities

__all__ = ["CAPABILITIES"]

CAPABILITIES = Capabilities(batch_invariant=True, seeded=True, in_process=True, adapters=True, sampling=FILTERS)
"""Of a generator with any model. The model limits the length of sequences."""
