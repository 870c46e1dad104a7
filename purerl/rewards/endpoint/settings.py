"""The settings of an endpoint: where it is, how long it may take, how much may be asked, what it costs."""

from __future__ import annotations

import math
import os
import re
import socket
import tempfile
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from attrs import frozen

from purerl.errors import ConfigError
from purerl.rewards.endpoint.limits import rate_limit
from purerl.settings import above_zero, at_least, server_address, setting
from purerl.system.access_tokens import is_loopback

__all__ = ["OF_ENDPOINT", "Endpoint", "check_endpoint", "check_served"]


OF_ENDPOINT = "export the key as an environment variable, and set endpoint.api_key_variable to its name"
"""The remedy for a key in a setting of an endpoint."""

_FIT = "set timeout as well, or a longer deadline"
_CONNECT_SECONDS = 10.0
_MARGIN = 10.0  # seconds that a busy process may take to end a request at its deadline
_PRICE = {"need": "a finite number, at least 0", "valid": lambda value: 0 <= value < math.inf}


@frozen(kw_only=True)
class Endpoint:
    """A model behind an OpenAI-compatible server."""

    url: str = setting(
        "address of the server up to the version of its interface, such as http://localhost:8000/v1",
        credential=OF_ENDPOINT,
        **server_address(),
    )
    model: str = setting("name of the model at the server", need="a name", valid=bool)
    api_key_variable: str | None = setting(
        "name of the environment variable that contains the key of the server; if not given, no key is sent",
        default=None,
        need="the name of an environment variable, not the key itself",
        valid=lambda name: re.fullmatch(r"[A-Za-z_]\w*", name) is not None,
        hidden=True,
    )
    timeout: float = setting(
        "maximum duration of one attempt, until the whole answer is there", unit="s", default=60.0, **above_zero()
    )
    deadline: float = setting(
        "maximum duration of a request with everything: waiting for its turn, all attempts, and the time between them",
        unit="s",
        default=300.0,
        **above_zero(),
    )
    max_retries: int = setting(
        "further attempts if the server does not answer, is overloaded or fails, or if its answer cannot be used",
        default=5,
        **at_least(0),
    )
    max_concurrency: int = setting(
        "requests that each worker process has in flight at the same time", default=32, **at_least(1)
    )
    requests_per_minute: int | None = setting(
        "maximum number of requests per minute, of all processes of a host", default=None, **at_least(1)
    )
    tokens_per_minute: int | None = setting(
        "maximum number of tokens per minute, of prompts and answers, of all processes of a host",
        default=None,
        **at_least(1),
    )
    cache: str | None = setting(
        "directory in which answers are kept, by the content of their requests; processes and runs may share it. If "
        "not given, every request is sent",
        default=None,
    )
    input_price: float = setting("price of a million tokens of prompts, for the metric cost", default=0.0, **_PRICE)
    output_price: float = setting("price of a million tokens of answers, for the metric cost", default=0.0, **_PRICE)

    @property
    def longest(self) -> float:
        """Seconds after which a call has certainly ended by itself."""
        return self.deadline + _MARGIN

    def __attrs_post_init__(self) -> None:
        if self.timeout > self.deadline:
            raise ConfigError("timeout", got=self.timeout, need=f"at most deadline, {self.deadline:g}", do=_FIT)


def check_endpoint(endpoint: Endpoint) -> None:
    """Refuse an endpoint whose key is not in the environment, or whose cache cannot be written.

    Raises: ConfigError; RunError if the folder of its limits is not private.
    """
    name = endpoint.api_key_variable
    if name is not None and not os.environ.get(name):
        need, do = f"the key of {endpoint.url}", f"export {name}=..., or leave api_key_variable out"
        raise ConfigError(f"endpoint.api_key_variable {name}", got="no such environment variable", need=need, do=do)
    if endpoint.requests_per_minute is not None or endpoint.tokens_per_minute is not None:
        rate_limit("check", 1)
    if endpoint.cache is not None:
        directory = Path(endpoint.cache).expanduser()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=directory).close()
        except OSError as error:
            raise ConfigError("endpoint.cache", got=error, need="a directory that can be written") from error


def check_served(endpoint: Endpoint) -> None:
    """Refuse an endpoint whose server accepts no connection. No request is sent.

    An endpoint with answers in its cache is accepted, because it may need no server, and so is one that is reached by a
    proxy.

    Raises: ConfigError.
    """
    parts = urlsplit(endpoint.url)
    host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]
    if (getproxies() and not is_loopback(host)) or _has_answers(endpoint.cache):
        return
    try:
        socket.create_connection((host, port), min(_CONNECT_SECONDS, endpoint.timeout)).close()
    except OSError as error:
        got = f"{endpoint.url}, where nobody answers: {error}"
        do = f"start the server of {endpoint.model!r}, or correct the address"
        raise ConfigError("endpoint.url", got=got, need="a server that accepts connections", do=do) from error


def _has_answers(cache: str | None) -> bool:
    folder = Path(cache or "").expanduser()
    return cache is not None and folder.is_dir() and any(folder.iterdir())
