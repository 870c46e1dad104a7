"""Runs on a server with the HTTP interface of SandboxFusion: POST /run_code, with JSON both ways.

The fields are those of ByteDance's documentation (bytedance.github.io/SandboxFusion). `memory_limit_MB` is not in that
documentation, but in later versions of the server; an earlier one ignores it.

The server itself asks for no token. A proxy in front of it may: it gets the token of the environment variable
PURERL_SANDBOX_TOKEN, or of the private file that PURERL_SANDBOX_TOKEN_FILE names, as ``Authorization: Bearer TOKEN``.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from attrs import evolve

from purerl.errors import ConfigError, InputError, SandboxError
from purerl.sandbox.program_results import Result, Status
from purerl.sandbox.settings import Limits, SandboxSettings
from purerl.sandbox.tasks import Files, Text, check_files, to_bytes
from purerl.system.access_tokens import given_token, is_loopback

__all__ = ["Remote"]

_MAX_CONCURRENT_RUNS = 64
_ANSWER_SECONDS = 60.0  # how much longer than a program the server may take
_ATTEMPTS, _WAIT_SECONDS = 3, 1.0
_VARIABLE = "PURERL_SANDBOX_TOKEN"
_BUSY = (429, 502, 503, 504)  # statuses after which another attempt may succeed


class Remote:
    """Runs programs on the server `settings.remote`. It has the interface of `Pool`.

    Raises: ConfigError if `settings` name no server, or if the token is not private.
    """

    def __init__(self, settings: SandboxSettings):
        if settings.remote is None:
            raise ConfigError("remote", got="nothing", need="the URL of a server", do="use open_sandbox")
        self._url, self._settings = f"{settings.remote.rstrip('/')}/run_code", settings
        number = settings.max_concurrent_runs or _MAX_CONCURRENT_RUNS
        self._token, is_local = given_token(_VARIABLE), is_loopback(urlsplit(settings.remote).hostname)
        self._client = httpx.Client(
            headers={} if self._token is None else {"Authorization": f"Bearer {self._token}"},
            limits=httpx.Limits(max_connections=number),
            trust_env=not is_local,  # whether proxies are used
            follow_redirects=False,
        )
        self._runs = ThreadPoolExecutor(number, "purerl remote sandbox")

    def run(
        self, command: Sequence[str], *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result:
        """Run a program, by a shell on the server. See `purerl.sandbox.run`."""
        return self._run("bash", shlex.join(command), files or {}, stdin, limits)

    def run_python(
        self, source: Text, *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result:
        """Run a Python program. See `purerl.sandbox.run_python`."""
        return self._run("python", source, files or {}, stdin, limits)

    async def run_async(
        self, command: Sequence[str], *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result:
        """`run`, for an event loop."""
        future = self._runs.submit(self.run, command, files=files, stdin=stdin, limits=limits)
        return await asyncio.wrap_future(future)

    async def run_python_async(
        self, source: Text, *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result:
        """`run_python`, for an event loop."""
        future = self._runs.submit(self.run_python, source, files=files, stdin=stdin, limits=limits)
        return await asyncio.wrap_future(future)

    def _run(self, language: str, code: Text, files: Files, stdin: Text, limits: Limits | None) -> Result:
        limits = evolve(self._settings, limits=limits or self._settings.limits).limits  # refuses those without effect
        check_files(files)
        request = {
            "language": language,
            "code": _to_text("code", code),
            "stdin": _to_text("stdin", stdin),
            "files": {path: base64.b64encode(to_bytes(content)).decode() for path, content in files.items()},
            "compile_timeout": limits.timeout,
            "run_timeout": limits.timeout,
            "memory_limit_MB": limits.max_memory,
        }
        return _to_result(self._post(request, limits.timeout + _ANSWER_SECONDS), limits)

    def _post(self, request: Mapping[str, Any], seconds: float) -> Any:
        """The answer of the server. It is asked again if it could not be reached or is busy."""
        problem: object = None
        for attempt in range(_ATTEMPTS):
            time.sleep(attempt * _WAIT_SECONDS)
            try:
                response = self._client.post(self._url, json=request, timeout=seconds)
                if response.status_code not in _BUSY:
                    response.raise_for_status()
                    return json.loads(response.text.replace(self._token or "\0", "[token]"))  # errors quote answers
                problem = f"status {response.status_code}"
            except (httpx.HTTPStatusError, ValueError) as error:
                raise SandboxError(
                    "the remote sandbox refuses a run", got=error, do=f"check the setting remote, and {_VARIABLE}"
                ) from error
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
        do = "start the server, or check the setting remote"
        raise SandboxError(f"the remote sandbox {self._url} does not answer", got=problem, do=do)

    def close(self) -> None:
        """Close the connections."""
        self._runs.shutdown(cancel_futures=True)
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _to_text(name: str, text: Text) -> str:
    try:
        return to_bytes(text).decode()
    except UnicodeDecodeError as error:
        raise InputError(name, got=error, need="UTF-8: a remote sandbox takes text") from error


def _to_result(answer: Any, limits: Limits) -> Result:
    """A result as that of a local sandbox, without the memory. Raises: SandboxError if the server could not run it."""
    try:
        part = answer.get("run_result") or answer.get("compile_result")
        is_result = answer["status"] in ("Success", "Failed") and part["status"] in ("Finished", "TimeLimitExceeded")
        stdout, stderr = (to_bytes(part.get(name) or "") for name in ("stdout", "stderr"))
        seconds, code = float(part.get("execution_time") or 0.0), part.get("return_code")
    except (AttributeError, KeyError, TypeError, ValueError):
        is_result = False
    if not is_result:
        raise SandboxError("the remote sandbox could not run a program", got=str(answer)[:1000])
    if len(stdout) + len(stderr) > limits.max_output:
        room = max(0, limits.max_output - len(stdout))
        return Result("output", None, stdout[: limits.max_output], stderr[:room], seconds, 0)
    if part["status"] == "TimeLimitExceeded":
        return Result("timeout", None, stdout, stderr, seconds, 0)
    status: Status = "ok" if code == 0 else "killed" if code is not None and code < 0 else "error"
    return Result(status, code, stdout, stderr, seconds, 0)
