"""A check at the start of servers: their model's own weights, sent to them again, must not change what they compute.

It finds mistakes in how an engine loads weights while it runs, such as names that it skips or layers that it does not
rebuild. Nothing else would show them but a mismatch in training.
"""

from __future__ import annotations

from purerl.backends.requests import PendingRequest
from purerl.errors import EngineError
from purerl.protocols import Completion, Request, Sampling

__all__ = ["compare", "probe_request"]

_PROMPT, _NEW = 16, 8  # tokens
_TOLERANCE = 1e-3  # nats; a prompt that runs alone has the same log-probabilities each time, in any dtype


def probe_request(vocab_size: int, max_sequence_length: int | None) -> PendingRequest:
    """A prompt with different tokens, continued greedily."""
    length = min(_PROMPT, (max_sequence_length or 2 * _PROMPT) // 2)
    sampling = Sampling(temperature=0.0, max_tokens=min(_NEW, length))
    return PendingRequest(Request("probe", [token % vocab_size for token in range(1, 1 + length)], sampling, seed=0))


def compare(server: str, before: Completion, after: Completion) -> None:
    """Raise EngineError if a prompt has other tokens or log-probabilities after weights were loaded again."""
    pairs = zip(before.logp, after.logp, strict=False)
    difference = max((abs(a - b) for a, b in pairs), default=0.0)
    if before.finish == after.finish == "length" and before.tokens == after.tokens and difference <= _TOLERANCE:
        return
    got = f"tokens {list(before.tokens)}, then {list(after.tokens)}; log-probabilities differ by {difference:.2g}"
    problem = f"{server} computes something else after loading the weights of its own model again"
    error = before.error or after.error
    do = "use the version of the engine that the documentation names, or leave out the arguments that you have added"
    raise EngineError(problem, got=error or got, need="the same tokens and log-probabilities", do=do)
