"""A server with a small interface, for tests: it answers a request with the numbers 1, 2, 3, ... and takes its time.

python toy_engine.py PORT [--seconds S] [--limit N] [--limited-version V] [--fail TEXT] [--say TEXT] [--never-ready]
                     [--never-sleep] [--open] [--children N] [--fail-at N]
                     [--failure TEXT] [--no-leases] [--lease-seconds S]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

sys.path.append(str(Path(__file__).parents[2] / "purerl/backends/transfer/engine"))  # as in an engine
import purerl_lease  # pyright: ignore[reportMissingImports]
from purerl_lease import HEADER, LOCKED, PATH, Lease, shared_lease  # pyright: ignore[reportMissingImports]

NAME = "toy engine"
"""Of the process, in /proc/PID/comm."""
WORK = "tests.serving.toy_engine:work"
"""The argument `work` of `Worker`: a worker that runs this program, instead of becoming it. It is forked in tests."""

PARTS = {"weights", "kv_cache"}
STATE: dict[str, Any] = {"version": "default", "aborted": set(), "memory": set(PARTS), "sampled": 0}
CHANGED = threading.Condition()
"""Of `STATE`."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seconds = 0.0
    limit = 0  # 0: none
    limited_version = ""  # "": each
    is_ready = True
    may_sleep = True
    token: str | None = None  # None: every client is served
    lease: Lease | None = None
    fail_at, failure = 0, ""  # the number of a token with which the program ends, and what it prints; 0: none

    def _is_known(self) -> bool:
        own, bearer = self.headers["Purerl-Token"], self.headers["Authorization"]
        return self.token is None or (bearer == f"Bearer {self.token}" if own is None else own == self.token)

    def do_GET(self) -> None:
        if self._is_known() and self.path == PATH and self.lease is not None:
            return self._answer_lease(b"")
        status = 200 if self.is_ready else 503
        shown = "sampled" if self.path == "/sampled" else "version"
        return self._answer(status if self._is_known() else 401, STATE[shown])

    def do_DELETE(self) -> None:
        if self._is_known():
            self._answer_lease(b"")

    def _answer_lease(self, data: bytes) -> None:
        assert self.lease is not None
        self._answer(*self.lease.answer(self.command, self.headers[HEADER], data))

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}"
        if self._is_known() and self.path == PATH:
            return self._answer_lease(data) if self.lease is not None else self._answer(404, None)
        if self._is_known() and self.lease is not None and not self.lease.admits(self.headers[HEADER], self.path):
            return self._answer(LOCKED, self.lease.describe(self.lease.holder()))
        return self._do_post(json.loads(data))

    def _do_post(self, body: dict[str, Any]) -> None:
        functions = {
            "/generate": self._generate,
            "/load": self._load,
            "/abort": self._abort,
            "/sleep": self._sleep,
            "/wake": self._wake,
        }
        if self._is_known() and self.path == "/generate" and body["tokens"][0] == 14:
            return self._answer(500, "ZeroDivisionError: division by zero")
        answer = functions[self.path](body) if self._is_known() else None
        refused = 400 if self._is_known() else 401
        return self._answer(200 if answer is not None else refused, answer)

    def _generate(self, body: dict[str, Any]) -> dict[str, Any] | None:
        if body["tokens"][0] == 13 or STATE["memory"] != PARTS:
            return None
        tokens, versions = [], []
        for number in range(body["max_tokens"]):
            time.sleep(self.seconds)
            with CHANGED:
                CHANGED.wait_for(lambda: body["id"] in STATE["aborted"] or self._may_sample(versions))
                if body["id"] in STATE["aborted"]:
                    return {"tokens": tokens, "versions": versions, "finish": "interrupted"}
                tokens.append(len(body["tokens"]) + number)
                versions.append(STATE["version"])
                STATE["sampled"] += 1
                if STATE["sampled"] == self.fail_at:
                    sys.stdout.write(self.failure)
                    sys.stdout.flush()
                    os._exit(1)
        return {"tokens": tokens, "versions": versions, "finish": "length"}

    def _may_sample(self, versions: list[str]) -> bool:
        """Whether a request whose tokens have these `versions` may get another one now."""
        is_limited = self.limit and self.limited_version in ("", STATE["version"])
        return not is_limited or versions.count(STATE["version"]) < self.limit

    def _load(self, body: dict[str, Any]) -> dict[str, Any] | None:
        if "weights" not in STATE["memory"]:
            return None
        with CHANGED:
            STATE["version"] = body["version"]
            CHANGED.notify_all()
        return {}

    def _abort(self, body: dict[str, Any]) -> dict[str, Any]:
        with CHANGED:
            STATE["aborted"].add(body["id"])
            CHANGED.notify_all()
        return {}

    def _sleep(self, body: dict[str, Any]) -> dict[str, Any] | None:
        if not self.may_sleep:
            return None
        STATE["memory"] -= PARTS
        return {}

    def _wake(self, body: dict[str, Any]) -> dict[str, Any]:
        STATE["memory"].add(body["part"])
        return {}

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        """Nothing is logged."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, default=0.0, help="for each token")
    parser.add_argument("--limit", type=int, default=0, help="tokens of a request with the same version of the weights")
    parser.add_argument("--limited-version", default="", help="the version for which there is a limit")
    parser.add_argument("--fail", help="print this and end")
    parser.add_argument("--fail-at", type=int, default=0, help="print --failure and end with this token")
    parser.add_argument("--failure", default="", help="see --fail-at")
    parser.add_argument("--no-leases", action="store_true")
    parser.add_argument("--lease-seconds", type=float, default=60.0)
    parser.add_argument("--say", default="", help="print this")
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--never-sleep", action="store_true")
    parser.add_argument("--open", action="store_true", help="need no token")
    parser.add_argument("--children", type=int, default=0, help="processes that ignore the end of this one")
    options = parser.parse_args()
    if options.fail:
        sys.stdout.write(options.fail)
        sys.stdout.flush()
        sys.exit(3)
    sys.stdout.write(options.say)
    sys.stdout.flush()
    for _ in range(options.children):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Handler.seconds, Handler.limit, Handler.limited_version = options.seconds, options.limit, options.limited_version
    Handler.is_ready, Handler.may_sleep = not options.never_ready, not options.never_sleep
    Handler.fail_at, Handler.failure = options.fail_at, options.failure
    purerl_lease.SECONDS = options.lease_seconds
    tempfile.tempdir = None  # that of the environment, also in a forked process
    Handler.lease = None if options.no_leases else shared_lease()
    Handler.token = None if options.open else os.environ["PURERL_SERVER_TOKEN"]
    ThreadingHTTPServer.request_queue_size = 1024  # with the default of 5, some connections take seconds
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever(0.01)


def work(connection: int, status: int) -> NoReturn:
    """`purerl.system.workers.program.execute`, except that this program runs in the same process."""
    from purerl.system.workers import program

    execvpe = os.execvpe

    def run(file: str, arguments: tuple[str, ...], environment: dict[str, str]) -> NoReturn:
        if arguments[1:2] != (__file__,):
            execvpe(file, arguments, environment)
        os.environ.clear()
        os.environ.update(environment)
        Path("/proc/self/comm").write_text(NAME, encoding="utf-8")
        sys.argv = [*arguments[1:]]
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        try:
            main()
        except SystemExit as end:
            os._exit(int(end.code or 0))
        raise AssertionError("the server has ended")

    os.execvpe = run  # type: ignore[assignment]
    program.execute(connection, status)


if __name__ == "__main__":
    main()
