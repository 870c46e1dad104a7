"""The secret of a run, which its processes share, and what they derive from it: keys and tokens.

A process that is the whole run draws its own. The ranks of a run get that of the first rank, see `purerl.placement`.
It is never written but to a file of mode 0600, and is in no environment variable, command line, log or configuration.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["SIZE", "adopt_secret", "derive_key", "derive_token", "new_secret", "shared_secret"]

SIZE = 32  # bytes

_secrets = [secrets.token_bytes(SIZE)]  # the last one is in use


def new_secret() -> bytes:
    """A new random secret."""
    return secrets.token_bytes(SIZE)


def adopt_secret(secret: bytes) -> None:
    """Let `secret` be that of this process from now on."""
    _secrets[-1] = secret


@contextmanager
def shared_secret(secret: bytes) -> Iterator[None]:
    """Let `secret` be that of this process in the block."""
    _secrets.append(secret)
    try:
        yield
    finally:
        _secrets.pop()


def derive_key(purpose: str) -> bytes:
    """A key of 32 bytes for `purpose`: the same in all processes of the run, and of no use for another purpose."""
    return hmac.digest(_secrets[-1], purpose.encode(), hashlib.sha256)


def derive_token(purpose: str) -> str:
    """`derive_key` in hexadecimal, for HTTP."""
    return derive_key(purpose).hex()
