"""Runs on a server with the HTTP interface of SandboxFusion: POST /run_code, with JSON both ways.

The fields are those of ByteDance's documentation (bytedance.github.io/SandboxFusion). `memory_limit_MB` is not in that
documentation, but in later versions of the server; an earlier one ignores it.

The server itself asks for no token. A proxy in front of it may: it gets the token of the environment variable
PURERL_SANDBOX_TOKEN, or of the private file that PURERL_SANDBOX_TOKEN_FILE names, as ``Authorization: Bearer TOKEN``.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Any, Self

from attrs import evolve

from purerl.errors import ConfigError, InputError, SandboxError
from purerl.sandbox.program_results import Result, Status
from purerl.sandbox.settings import Limits, SandboxSettings
from purerl.sandbox.tasks import Files, Text, check_files, to_bytes
from purerl.system.access_tokens import given_token
from purerl.system.bounded_http import AnswerError, BoundedClient, TooLargeError, UnreachableError
from purerl.system.event_loop import EventLoop

__all__ = ["Remote"]

_MAX_CONCURRENT_RUNS = 64
_ANSWER_SECONDS = 30.0  # how much longer than a program all attempts may take together
_ATTEMPTS, _WAIT_SECONDS = 3, 1.0
_VARIABLE = "PURERL_SANDBOX_TOKEN"
_BUSY = (429, 502, 503, 504)  # statuses after which another attempt may succeed
_RESULT = re.compile(rb'\s*\{\s*"status"\s*:\s*"(?:Success|Failed)"')  # the start of an answer that has a result


class Remote:
    """Runs programs on the server `settings.remote`. It has the interface of `Pool`.

    Raises: ConfigError if `settings` name no server, or if the token is not private.
    """

    def __init__(self, settings: SandboxSettings):
        if settings.remote is None:
            raise ConfigError("remote", got="nothing", need="the URL of a server", do="use open_sandbox")
        self._settings, self._token = settings, given_token(_VARIABLE)
        number = settings.max_concurrent_runs or _MAX_CONCURRENT_RUNS
        self._client = BoundedClient(f"{settings.remote.rstrip('/')}/run_code", connections=number)
        self._runs, self._lock = asyncio.Semaphore(number), Lock()
        self._loop: EventLoop | None = None

    def run(
        self, command: Sequence[str], *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result:
        """Run a program, by a shell on the server. See `purerl.sandbox.run`."""
        return self._run("bash", shlex.join(command), files or {}, stdin, limits).result()

    def run_python(
        self, source: Text, *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result:
        """Run a Python program. See `purerl.sandbox.run_python`."""
        return self._run("python", source, files or {}, stdin, limits).result()

    async def run_async(
        self, command: Sequence[str], *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result:
        """`run`, for an event loop."""
        return await asyncio.wrap_future(self._run("bash", shlex.join(command), files or {}, stdin, limits))

    async def run_python_async(
        self, source: Text, *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result:
        """`run_python`, for an event loop."""
        return await asyncio.wrap_future(self._run("python", source, files or {}, stdin, limits))

    def _run(self, language: str, code: Text, files: Files, stdin: Text, limits: Limits | None) -> Future[Result]:
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
        with self._lock:
            self._loop = self._loop or EventLoop()  # not earlier: a process that forks may have opened this sandbox
        return asyncio.run_coroutine_threadsafe(self._result(request, limits), self._loop.asyncio)

    async def _result(self, request: Mapping[str, Any], limits: Limits) -> Result:
        async with self._runs:
            try:
                return _to_result(await self._post(request, limits.timeout + _ANSWER_SECONDS), limits)
            except TooLargeError as error:
                if _RESULT.match(error.start):
                    return Result("output", None, b"", b"", 0.0, 0)
                raise _refusal(error) from error

    async def _post(self, request: Mapping[str, Any], seconds: float) -> Any:
        """The answer of the server. It is asked again if it could not be reached or is busy, within `seconds`."""
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        options = {"attempts": _ATTEMPTS, "pause": _WAIT_SECONDS, "busy": _BUSY}
        try:
            answer = await self._client.repeat("POST", "", request, headers=headers, deadline=seconds, **options)
            answer = evolve(answer, body=answer.body.replace((self._token or "\0").encode(), b"[token]"))
            if 200 <= answer.status < 300:
                return answer.json()  # without the token, because errors quote answers
        except UnreachableError as error:
            do = "start the server, or check the setting remote"
            raise SandboxError(f"the remote sandbox {self._client.url} does not answer", got=error, do=do) from error
        except TooLargeError:
            raise
        except AnswerError as error:
            raise _refusal(error) from error
        raise _refusal(f"status {answer.status}: {answer.text[:500]}")

    def close(self) -> None:
        """Close the connections."""
        if self._loop is not None:
            self._loop.close([self._client.close])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refusal(got: object) -> SandboxError:
    return SandboxError("the remote sandbox refuses a run", got=got, do=f"check the setting remote, and {_VARIABLE}")


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
        is_result = is_result and 0 <= seconds < math.inf and (code is None or type(code) is int)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
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
