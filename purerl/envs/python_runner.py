"""Runs ``program.py`` of the current directory in this process, with limits: the script that `python_tool` starts.

    python -I python_runner.py MAX_MEMORY MAX_SECONDS

It imports nothing of purerl, so that it starts quickly.
"""

from __future__ import annotations

import ast
import resource
import sys
import traceback
from pathlib import Path

__all__ = ["main"]

_MAX_FILE = 2**24  # bytes of a file that the program writes, and of its output


def main(max_memory: int, max_seconds: int) -> None:
    """Run the program. Each process gets `max_memory` MiB of address space and `max_seconds` of CPU time."""
    _limit(max_memory, max_seconds)
    sys.argv = ["program.py"]
    try:
        statements, last = _parse(Path("program.py").read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        traceback.print_exception(error.with_traceback(None))
        sys.exit(1)
    names = {"__name__": "__main__"}
    try:
        exec(compile(statements, "program.py", "exec"), names)  # noqa: S102 -- what this script is for
        value = eval(compile(last, "program.py", "eval"), names) if last else None  # noqa: S307
        if value is not None:
            sys.stdout.write(f"{value!r}\n")
    except Exception as error:  # noqa: BLE001 -- of the program
        traceback.print_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        sys.exit(1)


def _parse(program: str) -> tuple[ast.Module, ast.Expression | None]:
    """The statements of `program`, and its last one separately if that is an expression."""
    tree = ast.parse(program, "program.py")
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        return ast.Module(tree.body[:-1], []), ast.Expression(last.value)
    return tree, None


def _limit(max_memory: int, max_seconds: int) -> None:
    limits = {resource.RLIMIT_CPU: max_seconds, resource.RLIMIT_FSIZE: _MAX_FILE, resource.RLIMIT_CORE: 0}
    if sys.platform == "linux":
        limits[resource.RLIMIT_AS] = max_memory * 2**20
    for limit, value in limits.items():
        _, hard = resource.getrlimit(limit)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
