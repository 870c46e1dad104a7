"""The program that `python_tool` runs: it runs the file code.py, and prints the value of its last line.

It is read as text, and imports nothing of purerl, so that it works in any sandbox.
"""

from __future__ import annotations

import ast
import sys
import traceback
from pathlib import Path

__all__ = ["main"]

_FILE = "code.py"


def main() -> None:
    """Run the code. An exception is printed without the frames of this program, and gives the exit code 1."""
    sys.argv = [_FILE]
    names = {"__name__": "__main__"}
    try:
        statements, last = _parse(Path(_FILE).read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        traceback.print_exception(error.with_traceback(None))
        sys.exit(1)
    try:
        exec(compile(statements, _FILE, "exec"), names)  # noqa: S102 -- what this program is for
        value = eval(compile(last, _FILE, "eval"), names) if last else None  # noqa: S307
        if value is not None:
            sys.stdout.write(f"{value!r}\n")
    except Exception as error:  # noqa: BLE001 -- of the code
        traceback.print_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        sys.exit(1)


def _parse(code: str) -> tuple[ast.Module, ast.Expression | None]:
    """The statements of `code`, and its last one separately if that is an expression."""
    tree = ast.parse(code, _FILE)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        return ast.Module(tree.body[:-1], []), ast.Expression(last.value)
    return tree, None


if __name__ == "__main__":
    main()
