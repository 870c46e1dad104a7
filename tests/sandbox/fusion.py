"""A server with the interface of SandboxFusion, as ByteDance documents it. It runs programs for real."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ["FusionServer", "serve"]

_LANGUAGES = {"python": [sys.executable, "-I"], "bash": ["/bin/bash"]}
_FIELDS = {
    "code": str, "language": str, "stdin": str, "files": dict, "compile_timeout": (int, float),
    "run_timeout": (int, float), "fetch_files": list, "memory_limit_MB": int,
}  # fmt: skip


class FusionServer(ThreadingHTTPServer):
    """requests  what clients have sent; tokens  their headers Authorization
    replies   (status, body) that are sent in place of results, in this order
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.replies: list[tuple[int, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serve() -> Iterator[FusionServer]:
    server = FusionServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FusionServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        self.server.tokens.append(self.headers["Authorization"])
        if self.server.replies:
            self._reply(*self.server.replies.pop(0))
        elif self.path != "/run_code":
            self._reply(404, '{"detail": "Not Found"}')
        elif problem := _problem(request):
            self._reply(422, json.dumps({"detail": problem}))
        else:
            self._reply(200, json.dumps(_run(request)))

    def _reply(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Be quiet."""


def _problem(request: dict[str, Any]) -> str | None:
    """The problem of a request, as the server's data model has it."""
    for name in ("code", "language"):
        if name not in request:
            return f"{name}: field required"
    wrong = [name for name, value in request.items() if name in _FIELDS and not isinstance(value, _FIELDS[name])]
    return f"{wrong}: wrong type" if wrong else None if request["language"] in _LANGUAGES else "language: unknown"


def _run(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        for path, content in request.get("files", {}).items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(base64.b64decode(content))
        Path(folder, "main").write_text(request["code"])
        start = time.monotonic()
        command = [*_LANGUAGES[request["language"]], "main"]
        options: Any = {"cwd": folder, "capture_output": True, "text": True, "timeout": request.get("run_timeout", 10)}
        try:
            process = subprocess.run(command, input=request.get("stdin") or "", check=False, **options)
        except subprocess.TimeoutExpired as error:
            result = {"status": "TimeLimitExceeded", "execution_time": None, "return_code": None,
                      "stdout": (error.stdout or b"").decode(), "stderr": (error.stderr or b"").decode()}  # fmt: skip
            return _response("Failed", result)
    result = {"status": "Finished", "execution_time": time.monotonic() - start, "return_code": process.returncode,
              "stdout": process.stdout, "stderr": process.stderr}  # fmt: skip
    return _response("Success" if process.returncode == 0 else "Failed", result)


def _response(status: str, result: dict[str, Any]) -> dict[str, Any]:
    return {
        "status": status,
        "message": "",
        "compile_result": None,
        "run_result": result,
        "executor_pod_name": None,
        "files": {},
    }
