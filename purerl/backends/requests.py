"""Validation of requests, and the state of a request in flight, for all generators."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from attrs import define, field

from purerl.errors import InputError
from purerl.expert_routes import first_records
from purerl.protocols import Capabilities, Completion, FinishReason, Request

__all__ = ["PendingRequest", "check_keys", "check_requests"]


def check_requests(
    requests: Sequence[Request], in_use: Collection[str], capabilities: Capabilities, *, vocab_size: int
) -> None:
    """Refuse requests that are invalid.

    in_use        keys of requests that are in flight
    capabilities  of the generator: the length of a sequence, the temperature, and the sampling parameters

    Raises: InputError that names the request.
    """
    check_keys(requests, in_use)
    for request in requests:
        _check_request(request, vocab_size, capabilities)


def check_keys(requests: Sequence[Request], in_use: Collection[str]) -> None:
    """Refuse requests with a key that another one of them has, or that is `in_use`. Raises: InputError."""
    for key, times in Counter(request.key for request in requests).items():
        if times > 1 or key in in_use:
            need = "a key that no request in flight has"
            do = "collect that request first, or use another key"
            raise InputError(f"request {key!r}", got="a key that is in use", need=need, do=do)


def _check_request(request: Request, vocab_size: int, capabilities: Capabilities) -> None:
    sampling, tokens, max_sequence_length = request.sampling, request.tokens, capabilities.max_sequence_length
    total, missing = request.max_length, sorted(sampling.parameters - capabilities.sampling)
    rules = (
        (len(tokens) > 0, "no tokens", "at least one token to continue"),
        (0 <= sampling.temperature < math.inf, f"temperature {sampling.temperature}", "0 or above, and finite"),
        (
            capabilities.max_temperature is None or sampling.temperature <= capabilities.max_temperature,
            f"temperature {sampling.temperature}",
            f"at most {capabilities.max_temperature}, the limit of the engine",
        ),
        (sampling.max_tokens >= 1, f"max_tokens {sampling.max_tokens}", "at least 1"),
        (
            len(request.image) in (0, len(tokens)),
            f"{len(request.image)} content ids of images",
            f"{len(tokens)}, one for each token",
        ),
        (not any(request.image) or capabilities.images, "images", "an engine that reads images, see its capabilities"),
        (not any(request.image[-1:]), "an image at the end", "text after the last image"),
        (all(sampling.stop_strings), "an empty stop string", "strings of at least one character"),
        (0 < sampling.top_p <= 1, f"top_p {sampling.top_p}", "above 0, at most 1"),
        (sampling.top_k >= 0, f"top_k {sampling.top_k}", "at least 0"),
        (0 <= sampling.min_p <= 1, f"min_p {sampling.min_p}", "from 0 to 1"),
        (
            0 < sampling.repetition_penalty < math.inf,
            f"repetition_penalty {sampling.repetition_penalty}",
            "above 0, and finite",
        ),
        (sampling.min_tokens >= 0, f"min_tokens {sampling.min_tokens}", "at least 0"),
        (
            not sampling.is_structured or sampling.stop_tokens,
            "regex or json_schema without a stop token",
            "one that ends the completion",
        ),
        (not missing, ", ".join(missing), "sampling parameters that the generator has, see its capabilities"),
        (
            max_sequence_length is None or total <= max_sequence_length,
            f"{total} tokens, prompt and completion together",
            f"at most {max_sequence_length}",
        ),
    )
    for is_valid, got, need in rules:
        if not is_valid:
            raise InputError(f"request {request.key!r}", got=got, need=need)
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        got = f"token {min(tokens) if min(tokens) < 0 else max(tokens)}"
        raise InputError(f"request {request.key!r}", got=got, need=f"ids from 0 to {vocab_size - 1}")


@define(eq=False)
class PendingRequest:
    """A request in flight, with the tokens sampled so far, and the experts of the tokens that were read, if known."""

    request: Request
    tokens: list[int] = field(factory=list)
    logp: list[float] = field(factory=list)
    version: list[int] = field(factory=list)
    routes: np.ndarray | None = None

    def add(self, tokens: Sequence[int], logp: Sequence[float], version: int) -> None:
        """Append tokens sampled with the weights of `version`."""
        self.tokens += tokens
        self.logp += logp
        self.version += [version] * len(tokens)

    def add_routes(self, routes: np.ndarray) -> None:
        """Append the experts of tokens without a record, from `routes` [n, layers, k] of the first n tokens."""
        self.routes = first_records([*([] if self.routes is None else [self.routes]), routes])

    def restart(self) -> None:
        """Drop all tokens: they are sampled again."""
        self.tokens, self.logp, self.version, self.routes = [], [], [], None

    @property
    def all_tokens(self) -> list[int]:
        """The tokens of the request, and the sampled tokens."""
        return [*self.request.tokens, *self.tokens]

    @property
    def content(self) -> tuple[int, ...]:
        """The content of the request, and the sampled tokens."""
        return (*self.request.content, *self.tokens)

    @property
    def min_tokens(self) -> int:
        """The number of further tokens before which the completion must not end."""
        return max(0, self.request.sampling.min_tokens - len(self.tokens))

    @property
    def remaining(self) -> int:
        """The maximum number of further tokens."""
        return self.request.sampling.max_tokens - len(self.tokens)

    def completion(self, finish: FinishReason) -> Completion:
        """The completion. If a log-probability is not finite, it ends before that token, with finish "error"."""
        valid = next((k for k, value in enumerate(self.logp) if not math.isfinite(value)), None)
        return Completion(
            key=self.request.key,
            tokens=tuple(self.tokens[:valid]),
            logp=tuple(self.logp[:valid]),
            version=tuple(self.version[:valid]),
            finish=finish if valid is None else "error",
            error=None if valid is None else f"the model's logits are not finite after {valid} new tokens",
            routes=None if self.routes is None else self.routes[: len(self.request.tokens) + len(self.tokens[:valid])],
        )
