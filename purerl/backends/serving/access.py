"""Access to a server: only for clients with a token. Its ports and files are on loopback or in a private folder.

The token of a server that purerl starts is that of the run. The server gets it in its environment, and other ranks
derive the same one, so no message, file or command line contains it. Its program is
`purerl.backends.transfer.engine.purerl_server`, which checks it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from purerl.backends.transfer.engine.purerl_server import TOKEN
from purerl.errors import ConfigError
from purerl.system.access_tokens import client_token
from purerl.system.loopback import loopback_variables
from purerl.system.private_files import private_folder, user_folder
from purerl.system.run_secret import derive_token

__all__ = ["HOST", "TOKEN", "api_key", "internal_network", "private_environment", "token_of_run", "token_of_url"]

HOST = "127.0.0.1"
"""The address on which servers that purerl starts listen."""

_MAX_PATH = 107 - len("/purerl-server-12345678/" + 36 * "x")  # bytes: a Unix socket in the folder has a UUID as name
_KEY = re.compile("[!-~]+")
_FOLDER, _COMPILED = "TMPDIR", "TORCHINDUCTOR_CACHE_DIR"


def token_of_run() -> str:
    """The token of the servers that this run starts."""
    return derive_token("servers")


def token_of_url(url: str) -> str | None:
    """The token of a server that runs already, see `client_token`."""
    return client_token(TOKEN, url)


def api_key(variable: str | None) -> str | None:
    """The key in the environment `variable`, for what is in front of a server, or for its engine; None without one.

    Raises: ConfigError if there is no such variable, or if it has no key that a header can have. It shows neither.
    """
    if variable is None:
        return None
    key = os.environ.get(variable)
    if key is None:
        got = "a name, which is not shown here, of no environment variable"
        do = "export the key, and set server.api_key_variable to the name of the variable, or leave it out"
        raise ConfigError("server.api_key_variable", got=got, need="the key of the servers in urls", do=do)
    if not _KEY.fullmatch(key):
        got, need = f"{len(key)} characters, which are not shown here", "visible ASCII characters, without spaces"
        raise ConfigError("the key of server.api_key_variable", got=got, need=need)
    return key


def internal_network(*, has_nccl: bool) -> dict[str, str]:
    """Variables that let the processes of a server talk to each other over loopback; `has_nccl`: also with NCCL."""
    gloo = loopback_variables()
    nccl = {name.replace("GLOO", "NCCL"): interface for name, interface in gloo.items()} if has_nccl else {}
    return {**gloo, **nccl, "VLLM_HOST_IP": HOST, "SGLANG_HOST_IP": HOST}


@contextmanager
def private_environment(environment: Mapping[str, str], token: str) -> Iterator[dict[str, str]]:
    """`environment` of a server with its `token`, and with a new folder for temporary files, which is removed after.

    In this folder are the Unix sockets on which its processes get pickles from each other. Compiled code, which is
    used again, is in a folder of the user.
    """
    given = environment.get(_FOLDER)
    parent = None if given is None else Path(given)
    if len(given or tempfile.gettempdir()) > _MAX_PATH:
        parent = Path("/tmp")  # noqa: S108 - a private folder is made in it
    with private_folder("purerl-server-", parent) as folder:
        has_own = _COMPILED in environment or _COMPILED in os.environ
        compiled = {} if has_own else {_COMPILED: str(user_folder() / "inductor")}
        yield {**environment, **compiled, _FOLDER: str(folder), TOKEN: token}
