"""Requests to a server, with everything that a run needs: attempts, waiting, limits, the cache, and what is counted.

    cache -> its turn (limits, concurrency) -> attempt -> answer -> is it usable? -> cache
                 ^                                                     |
                 +------------- wait, longer each time ----------------+

An attempt is repeated if the server does not answer, closes the connection, is overloaded (429, 503, ...), fails
(5xx), or answers something that cannot be used. A request that the server refuses is not repeated. ``Retry-After`` is
respected, by all requests of the process. `purerl.backends.serving.http` says why it has another HTTP client.
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
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from purerl.rewards.endpoint.cache import AnswerCache, key_of
from purerl.rewards.endpoint.errors import EndpointError, Meter, UnusableAnswerError
from purerl.rewards.endpoint.limits import rate_limit
from purerl.rewards.endpoint.settings import Endpoint
from purerl.system.access_tokens import is_loopback

if TYPE_CHECKING:
    import httpx

__all__ = ["EndpointClient"]

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_REPEATED = (408, 409, 425, 429)  # and everything from 500 on
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0  # seconds
_MAX_BYTES = 2**24  # of an answer
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
        self._client: httpx.AsyncClient | None = None
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
        if self._client is not None:
            await self._client.aclose()

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
        import httpx

        try:
            async with asyncio.timeout(self.endpoint.timeout):
                async with self._open().stream("POST", self._url + path, json=body) as response:
                    text = await self._text(response)
        except TimeoutError as error:
            raise _RetryableError(f"no answer within {self.endpoint.timeout:g} s") from error
        except httpx.HTTPError as error:
            raise _RetryableError(f"{type(error).__name__} {error}".strip()) from error
        if response.status_code in _REPEATED or response.status_code >= 500:
            delay = _retry_after(response.headers)
            self._resume_at = max(self._resume_at, time.monotonic() + delay)
            raise _RetryableError(self._shown(response.status_code, text), delay)
        if not response.is_success:
            raise self._failed(path, "the server refuses the request", [self._shown(response.status_code, text)])
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            kind = response.headers.get("Content-Type", "no type")
            raise _RetryableError(f"an answer that is no JSON ({kind}): {self._excerpt(text)}") from error

    async def _text(self, response: httpx.Response) -> str:
        parts, size = list[bytes](), 0
        async for part in response.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > _MAX_BYTES:
                raise _RetryableError(f"an answer of more than {_MAX_BYTES:,} bytes")
        return b"".join(parts).decode(errors="replace")

    def _open(self) -> httpx.AsyncClient:
        import httpx

        if self._client is None:
            headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
            limits = httpx.Limits(
                max_connections=self.endpoint.max_concurrency, max_keepalive_connections=self.endpoint.max_concurrency
            )
            trust_env = not is_loopback(urlsplit(self._url).hostname)  # whether the key may pass a proxy
            options = {"timeout": None, "trust_env": trust_env, "follow_redirects": False}  # `_attempt` has a timeout
            self._client = httpx.AsyncClient(headers=headers, limits=limits, **options)
        return self._client

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

    def _shown(self, status: int, text: str) -> str:
        return f"status {status}: {self._excerpt(text)}"

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

    >>> _retry_after({"Retry-After": "2.5"}), _retry_after({"Retry-After": "soon"})
    (2.5, 0.0)
    """
    value = headers.get("Retry-After", "")
    with suppress(ValueError):
        return max(0.0, float(value))
    with suppress(ValueError, TypeError):
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    return 0.0
