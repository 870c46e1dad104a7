"""A server with a small interface, for tests: it answers a request with the numbers 1, 2, 3, ... and takes its time.

python toy_engine.py PORT [--seconds S] [--fail TEXT] [--say TEXT] [--never-ready] [--never-sleep] [--open]
                     [--children N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PARTS = {"weights", "kv_cache"}
STATE: dict[str, Any] = {"version": "default", "aborted": set(), "memory": set(PARTS)}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seconds = 0.0
    is_ready = True
    may_sleep = True
    token: str | None = None  # None: every client is served

    def _is_known(self) -> bool:
        return self.token is None or self.headers["Authorization"] == f"Bearer {self.token}"

    def do_GET(self) -> None:
        status = 200 if self.is_ready else 503
        self._answer(status if self._is_known() else 401, STATE["version"])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        functions = {
            "/generate": self._generate,
            "/load": self._load,
            "/abort": self._abort,
            "/sleep": self._sleep,
            "/wake": self._wake,
        }
        answer = functions[self.path](body) if self._is_known() else None
        refused = 400 if self._is_known() else 401
        self._answer(200 if answer is not None else refused, answer)

    def _generate(self, body: dict[str, Any]) -> dict[str, Any] | None:
        if body["tokens"][0] == 13 or STATE["memory"] != PARTS:
            return None
        tokens, versions = [], []
        for number in range(body["max_tokens"]):
            time.sleep(self.seconds)
            if body["id"] in STATE["aborted"]:
                return {"tokens": tokens, "versions": versions, "finish": "interrupted"}
            tokens.append(len(body["tokens"]) + number)
            versions.append(STATE["version"])
        return {"tokens": tokens, "versions": versions, "finish": "length"}

    def _load(self, body: dict[str, Any]) -> dict[str, Any] | None:
        if "weights" not in STATE["memory"]:
            return None
        STATE["version"] = body["version"]
        return {}

    def _abort(self, body: dict[str, Any]) -> dict[str, Any]:
        STATE["aborted"].add(body["id"])
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
    parser.add_argument("--fail", help="print this and end")
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
    Handler.seconds, Handler.is_ready, Handler.may_sleep = (
        options.seconds,
        not options.never_ready,
        not options.never_sleep,
    )
    Handler.token = None if options.open else os.environ["PURERL_SERVER_TOKEN"]
    ThreadingHTTPServer.request_queue_size = 1024  # with the default of 5, some connections take seconds
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
