"""What every generator does with a request: refuse it at the door, or keep what was sampled for it so far."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

from attrs import define, field

from purerl.errors import InputError
from purerl.protocols import Completion, Finish, Request

__all__ = ["PendingRequest", "check_requests"]


def check_requests(
    requests: Sequence[Request], in_use: Collection[str], *, vocabulary: int, longest: int | None
) -> None:
    """Refuse requests that can never be served.

    `in_use` are the keys of requests that have not come back; `longest` is how many tokens a sequence may have, prompt
    and completion together, if there is a limit.

    Raises: InputError, which names the request.
    """
    for key, times in Counter(request.key for request in requests).items():
        if times > 1 or key in in_use:
            need = "a key that no request in flight has"
            raise InputError(f"request {key!r}", got="a key in use", need=need, do="collect that one first, or rename")
    for request in requests:
        _check_request(request, vocabulary, longest)


def _check_request(request: Request, vocabulary: int, longest: int | None) -> None:
    sampling, tokens = request.sampling, request.tokens
    total = len(tokens) + sampling.max_tokens
    rules = (
        (len(tokens) > 0, "no tokens", "at least one token to continue"),
        (not request.inputs, f"inputs {sorted(request.inputs)}", "tokens only: this generator reads nothing else"),
        (0 <= sampling.temperature < math.inf, f"temperature {sampling.temperature}", "0 or above, and finite"),
        (sampling.max_tokens >= 1, f"max_tokens {sampling.max_tokens}", "at least 1"),
        (all(sampling.stop_strings), "an empty stop text", "texts of at least one character"),
        (longest is None or total <= longest, f"{total} tokens, new ones included", f"at most {longest}"),
    )
    for right, got, need in rules:
        if not right:
            raise InputError(f"request {request.key!r}", got=got, need=need)
    if min(tokens) < 0 or max(tokens) >= vocabulary:
        got = f"token {min(tokens) if min(tokens) < 0 else max(tokens)}"
        raise InputError(f"request {request.key!r}", got=got, need=f"ids from 0 to {vocabulary - 1}")


@define(eq=False)
class PendingRequest:
    """A request under way, and what was sampled for it so far."""

    request: Request
    tokens: list[int] = field(factory=list)
    logp: list[float] = field(factory=list)
    version: list[int] = field(factory=list)

    def add(self, tokens: Sequence[int], logp: Sequence[float], version: int) -> None:
        """Append tokens that the weights of `version` sampled."""
        self.tokens += tokens
        self.logp += logp
        self.version += [version] * len(tokens)

    @property
    def left(self) -> int:
        """How many more tokens it may have."""
        return self.request.sampling.max_tokens - len(self.tokens)

    def completion(self, finish: Finish) -> Completion:
        """What comes back. Ends before the first log-probability that is not finite, and is an error then."""
        sound = next((k for k, value in enumerate(self.logp) if not math.isfinite(value)), None)
        return Completion(
            key=self.request.key,
            tokens=tuple(self.tokens[:sound]),
            logp=tuple(self.logp[:sound]),
            version=tuple(self.version[:sound]),
            finish=finish if sound is None else "error",
            error=None if sound is None else f"the model's logits are not finite after {sound} new tokens",
        )
