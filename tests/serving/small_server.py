"""``python -m purerl_server tests.serving.small_server PORT WORKERS``: a server in the place of an engine."""

from __future__ import annotations

import sys
from typing import Any


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer every request, whatever its path and method."""
    assert scope["type"] != "websocket"
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"an answer"})


if __name__ == "__main__":
    import uvicorn

    uvicorn.run("tests.serving.small_server:app", port=int(sys.argv[1]), workers=int(sys.argv[2]), log_level="warning")
