"""Tokens by which a server knows its clients. They come from environment variables or private files, not from settings.

    NAME        the token itself
    NAME_FILE   a file with the token, which belongs to the user of the process, has mode 0600, and is not a link

A server on a loopback address that has neither makes a random token and writes it into a private file of its user,
which clients of the same user read.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from purerl.errors import ConfigError, RunError
from purerl.system.private_files import open_private, read_private, user_folder

__all__ = ["client_token", "given_token", "is_loopback", "loopback_token", "write_loopback_token"]

_TOKEN = re.compile(r"[!-~]{16,4096}")  # visible ASCII characters, as a header can have them


def given_token(name: str) -> str | None:
    """The token in the environment variable `name`, or in the file that the variable ``NAME_FILE`` names.

    None if neither is set. Raises: ConfigError if both are, if the file is not private, or if it is no token.
    """
    token, path = os.environ.get(name), os.environ.get(f"{name}_FILE")
    if token is not None and path is not None:
        raise ConfigError(f"{name} and {name}_FILE", got="both environment variables", need="one of them")
    if path is not None:
        token, name = _read(f"{name}_FILE", Path(path).expanduser()), f"{name}_FILE"
    if token is not None and not _TOKEN.fullmatch(token):
        got, do = f"{len(token)} characters, which are not shown here", "openssl rand -hex 32 makes one"
        raise ConfigError(name, got=got, need="a token of at least 16 visible ASCII characters", do=do)
    return token


def _read(name: str, path: Path) -> str:
    try:
        return read_private(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(name, got=error, need="a file with a token") from error
    except RunError as error:
        got, need = f"{str(path)!r}, which is not private", f"a file of user {os.getuid()} with mode 0600, and no link"
        raise ConfigError(name, got=got, need=need, do=f"chmod 600 {path}") from error


def is_loopback(host: str | None) -> bool:
    """Whether only processes of this host reach the address `host`. A name is resolved only if it is localhost."""
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def write_loopback_token(port: int) -> tuple[str, Path]:
    """A new random token for a server on the loopback `port`, and the private file that it was written into."""
    token, path = secrets.token_hex(32), _path(port)
    with open_private(path) as file:
        file.truncate()
        file.write(token)
    return token, path


def loopback_token(port: int) -> str | None:
    """The token that a server of this user on the loopback `port` has written; None if there is no private file."""
    with suppress(FileNotFoundError, RunError):
        return read_private(_path(port)).strip() or None
    return None


def _path(port: int) -> Path:
    return user_folder() / "tokens" / f"{socket.gethostname()}-{port}"  # several hosts may share a home directory


def client_token(name: str, url: str) -> str | None:
    """The token for the server at `url`: that of the variable `name`, or of a server on this host; None without one.

    Raises: ConfigError as `given_token`.
    """
    token, parts = given_token(name), urlsplit(url)
    if token is None and is_loopback(parts.hostname):
        return loopback_token(parts.port or {"https": 443}.get(parts.scheme, 80))
    return token
