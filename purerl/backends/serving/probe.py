"""A request that shows that a server answers with the weights that it should have."""

from __future__ import annotations

from purerl.backends.requests import PendingRequest
from purerl.protocols import Request, Sampling

__all__ = ["probe_request"]

_PROMPT = [1, 0] * 8  # tokens that every model has


def probe_request() -> PendingRequest:
    """A prompt, continued greedily."""
    return PendingRequest(Request("probe", _PROMPT, Sampling(temperature=0.0, max_tokens=8), seed=0))
