"""The program of SGLang's server: ``python -m purerl_sglang ARGUMENTS``. See `purerl_server`.

Messages to its weight loader are JSON, not pickles. Its processes meet over a file in the temporary folder, which has
no port. The requests that it sends to itself when it starts have the token.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

__all__ = ["read_json", "send_token"]

_DESERIALIZE = "sglang.srt.utils.common.MultiprocessingSerializer.deserialize"
_REQUEST = "requests.api.request"
_TOKEN = "PURERL_SERVER_TOKEN"  # noqa: S105 - the name of a variable
_MEETING = "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"


def read_json(original: Callable[[Any], Any], data: Any) -> Any:
    """Instead of unpickling `data`, an object in JSON: the name of an empty tensor. Other data is left to SGLang."""
    is_json = isinstance(data, bytes) and data.startswith(b"{")
    return [(data.decode(), torch.empty(0))] if is_json else original(data)


def send_token(original: Callable[..., Any], method: str, url: str, **options: Any) -> Any:
    """Send a request of the library requests, with the token if it is for this server."""
    parts, own = urlsplit(url), (_option("--host"), "127.0.0.1", "::1")
    if parts.hostname in own and str(parts.port) == _option("--port"):
        options["headers"] = {**(options.get("headers") or {}), "Authorization": f"Bearer {os.environ[_TOKEN]}"}
    return original(method, url, **options)


def _option(name: str) -> str | None:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv[:-1] else None


def _register() -> None:
    """Let SGLang call these functions. What they replace is imported when each of its processes loads its plugins."""
    from sglang.srt.plugins import hook_registry  # pyright: ignore[reportMissingImports] - in the engine's environment

    around = hook_registry.HookType.AROUND
    hook_registry.HookRegistry.register(_DESERIALIZE, read_json, around)
    hook_registry.HookRegistry.register(_REQUEST, send_token, around)


if __name__ in ("__main__", "__mp_main__"):
    import purerl_server  # pyright: ignore[reportMissingImports] - its directory is on the path of the engine

    purerl_server.protect()
    _register()
if __name__ == "__main__":
    os.environ.setdefault(_MEETING, (Path(tempfile.gettempdir()) / "ranks").as_uri())
    purerl_server.run("sglang.launch_server", sys.argv[1:])
