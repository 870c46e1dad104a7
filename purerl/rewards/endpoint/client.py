"""Requests to a server, with everything that a run needs: attempts, waiting, limits, the cache, and what is counted.

    cache -> its turn (limits, concurrency) -> attempt -> answer -> is it usable? -> cache
                 ^                                                     |
                 +------------- wait, longer each time ----------------+

An attempt is repeated if the server does not answer, closes the connection, is overloaded (429, 503, ...), fails
(5xx), or answers something that cannot be used. A request that the server refuses is not repeated. ``Retry-After`` is
respected, by all requests of the process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from purerl.rewards.endpoint.cache import AnswerCache, key_of
from purerl.rewards.endpoint.errors import EndpointError, Meter, UnusableAnswerError
from purerl.rewards.endpoint.limits import rate_limit
from purerl.rewards.endpoint.settings import Endpoint
from purerl.system.bounded_http import Answer, AnswerError, BoundedClient, UnreachableError

__all__ = ["EndpointClient"]

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_REPEATED = (408, 409, 425, 429)  # and everything from 500 on
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0  # seconds
_MAX_SHOWN = 300  # characters of an answer in messages
_CHARACTERS_PER_TOKEN = 4


class _RetryableError(Exception):
    """An attempt that is repeated, at the earliest after `delay` seconds."""

    def __init__(self, message: str, delay: float = 0.0):
        super().__init__(message)
        self.delay = delay


class EndpointClient:
    """Sends requests to `endpoint`; `api_key` is its key. It is used in one event loop."""

    def __init__(self, endpoint: Endpoint, api_key: str | None = None) -> None:
        self.endpoint, self._key = endpoint, api_key
        self._url = endpoint.url.rstrip("/")
        self._cache = AnswerCache(endpoint.cache)
        name = f"{self._url} {endpoint.model} {endpoint.api_key_variable}"
        self._requests = rate_limit(f"{name} requests", endpoint.requests_per_minute)
        self._tokens = rate_limit(f"{name} tokens", endpoint.tokens_per_minute)
        self._turns = asyncio.Semaphore(endpoint.max_concurrency)
        self._resume_at = 0.0  # as time.monotonic(): the server wants no request before
        self._random = random.Random()  # not the global generator, which is seeded for each completion
        self._client = BoundedClient(self._url, connections=endpoint.max_concurrency)
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._has_warned = False

    async def ask(
        self, path: str, body: Mapping[str, Any], accept: Callable[[Any], T], *, meter: Meter, variant: int = 0
    ) -> T:
        """Send a POST request and return `accept(answer)`; `accept` raises UnusableAnswerError for one without use.

        meter    counts
        variant  distinguishes requests that are otherwise equal, such as several samples

        Raises: EndpointError if there is no usable answer within the deadline and the number of attempts.
        """
        key = key_of(self._url, path, body, variant)
        with suppress(UnusableAnswerError):
            if (cached := self._cache.get(key)) is not None:
                value = accept(cached)
                meter.cached += 1
                return value
        until, errors = time.monotonic() + self.endpoint.deadline, list[str]()
        try:
            async with asyncio.timeout_at(until):
                answer, value = await self._attempts(path, body, accept, meter, until, errors)
        except TimeoutError as error:
            what = f"no answer within the deadline of {self.endpoint.deadline:g} s"
            raise self._failed(path, what, errors) from error
        self._keep(key, answer)
        return value

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def _attempts(
        self,
        path: str,
        body: Mapping[str, Any],
        accept: Callable[[Any], T],
        meter: Meter,
        until: float,
        errors: list[str],
    ) -> tuple[Any, T]:
        for attempt in range(1 + self.endpoint.max_retries):
            try:
                answer = await self._in_turn(path, body, meter, until, is_retry=attempt > 0)
                return answer, accept(answer)
            except UnusableAnswerError as error:
                errors.append(str(error))
            except _RetryableError as error:
                errors.append(str(error))
                delay = max(error.delay, self._delay(attempt))
                if attempt == self.endpoint.max_retries:
                    break
                if time.monotonic() + delay > until:
                    what = f"the next attempt would be in {delay:.0f} s, after the deadline"
                    raise self._failed(path, what, errors) from error
                await asyncio.sleep(delay)
        count = "the attempt" if len(errors) == 1 else f"{len(errors)} attempts"
        raise self._failed(path, f"{count} failed", errors)

    def _delay(self, attempt: int) -> float:
        """Seconds before the next attempt: twice as long each time, and random, so that requests spread out."""
        return self._random.uniform(0.5, 1.0) * min(_LONGEST_DELAY, _FIRST_DELAY * 2.0**attempt)

    async def _in_turn(self, path: str, body: Mapping[str, Any], meter: Meter, until: float, *, is_retry: bool) -> Any:
        """The answer to one attempt, when the limits allow it."""
        # About how many tokens it needs: its own, and the longest answer that it allows.
        expected = len(json.dumps(body)) // _CHARACTERS_PER_TOKEN + int(body.get("max_tokens") or 0)
        async with self._turns:
            await self._wait_for_limits(path, expected, until)
            while (pause := self._resume_at - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            meter.requests += 1
            meter.retries += is_retry
            used = 0
            try:
                answer = await self._attempt(path, body)
                used = _count_tokens(answer, meter)
            finally:
                if self._tokens is not None:
                    self._tokens.give_back(expected - used)
            return answer

    async def _wait_for_limits(self, path: str, tokens: int, until: float) -> None:
        for name, limit, amount in (("requests", self._requests, 1), ("tokens", self._tokens, tokens)):
            if limit is None:
                continue
            wait = limit.reserve(amount, within=max(0.0, until - time.monotonic()))
            if wait is None:
                what = f"the limit of {name} per minute allows no request within the deadline"
                raise self._failed(path, f"{what} of {self.endpoint.deadline:g} s", [])
            await asyncio.sleep(wait)

    async def _attempt(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer as JSON. Raises _RetryableError if the request may be repeated, EndpointError if it is refused."""
        try:
            answer = await self._client.send("POST", path, body, headers=self._headers, timeout=self.endpoint.timeout)
        except (UnreachableError, AnswerError) as error:
            raise _RetryableError(str(error)) from error
        if answer.status in _REPEATED or answer.status >= 500:
            delay = _retry_after(answer.headers)
            self._resume_at = max(self._resume_at, time.monotonic() + delay)
            raise _RetryableError(self._shown(answer), delay)
        if not 200 <= answer.status < 300:
            raise self._failed(path, "the server refuses the request", [self._shown(answer)])
        try:
            return answer.json()
        except AnswerError as error:
            raise _RetryableError(f"{error}: {self._excerpt(answer.text)}") from error

    def _keep(self, key: str, answer: Any) -> None:
        """Put `answer` into the cache. If that fails, the run continues without it."""
        try:
            self._cache.put(key, answer)
        except OSError as error:
            if not self._has_warned:
                _LOG.warning("the cache %s cannot be written: %s", self.endpoint.cache, error)
            self._has_warned = True

    def _failed(self, path: str, what: str, errors: list[str]) -> EndpointError:
        shown = errors if len(errors) < 3 else [errors[0], f"... ({len(errors) - 2} more)", errors[-1]]
        return EndpointError("\n  ".join([f"POST {self._url}{path}: {what}", *shown]))

    def _shown(self, answer: Answer) -> str:
        return f"status {answer.status}: {self._excerpt(answer.text)}"

    def _excerpt(self, text: str) -> str:
        """The beginning of what the server says, without the key, which some servers repeat."""
        text = text if self._key is None else text.replace(self._key, "[key]")
        return text[:_MAX_SHOWN].strip() or "(nothing)"


def _count_tokens(answer: Any, meter: Meter) -> int:
    """Add the tokens that `answer` says it needed to `meter`; return their number."""
    usage = answer.get("usage") if isinstance(answer, Mapping) else None
    usage = usage if isinstance(usage, Mapping) else {}
    prompt, completion = (_integer(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    meter.prompt_tokens += prompt
    meter.completion_tokens += completion
    return prompt + completion


def _integer(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds until the server wants the next request, from the header Retry-After: a number, or a date; 0 without.

    >>> _retry_after({"retry-after": "2.5"}), _retry_after({"retry-after": "soon"})
    (2.5, 0.0)
    """
    value = headers.get("retry-after", "")
    with suppress(ValueError):
        return max(0.0, float(value))
    with suppress(ValueError, TypeError):
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    return 0.0
