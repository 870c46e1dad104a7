"""An MCP server with two tools, for the package mcp, version 2. Copy it, and replace the tools.

    python server.py          communicates through stdin and stdout, as run.toml starts it
    python server.py 8000     serves http://127.0.0.1:8000/mcp

Type hints and docstrings become the schemas that the model sees. An exception is an answer for the model. All episodes
of a worker process share one server, so a tool must not keep a state for one episode. Print only to stderr: stdout
has the messages of the protocol.
"""

import sys

from mcp.server import MCPServer

server = MCPServer("calculator")


@server.tool()
def multiply(first: int, second: int) -> int:
    """Multiply two integers."""
    return first * second


@server.tool()
def divide(first: int, second: int) -> float:
    """Divide the first integer by the second one."""
    return first / second


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
