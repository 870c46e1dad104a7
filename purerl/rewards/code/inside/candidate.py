"""The process of a completion: it executes the program, and answers calls of its functions.

Nothing here is protected from the program. It may forge any answer, which is a value like those that it could return.

    value ...       the answer to a call: text of `values.encode` with the result
    raise ...       likewise, with the names of the built-in classes of an exception, its arguments and its text
    failed REASON   there is no answer, and the program must not be called again
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from symtable import symtable
from types import ModuleType
from typing import Any

from purerl.rewards.code.inside.messages import describe, write_all
from purerl.rewards.code.inside.values import Graph, NotPlainError, decode, encode

__all__ = ["Program", "call", "choose_sources", "load"]


def choose_sources(header: str, text: str, name: str) -> list[str]:
    """The sources to execute, one after the other. The choice depends on the syntax only.

    header  the beginning of the program in the prompt, up to the body of the function; or anything else
    text    the completion: a module that defines the function `name`, or a class Solution with it; or the body that
            continues the header, perhaps followed by what does not belong to it
    """
    if _defines(text, name):
        return [header, text]
    for source in _continue(header, text):
        if _compiles(source):
            return [source]
    return [header, text]


def _defines(source: str, name: str) -> bool:
    try:
        table = symtable(source, "program", "exec")
    except Exception:  # noqa: BLE001 -- no module
        return False
    tables = [table, *(child for child in table.get_children() if child.get_name() == "Solution")]
    symbols = [symbol for table in tables for symbol in table.get_symbols() if symbol.get_name() == name]
    return any(symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace() for symbol in symbols)


def _compiles(source: str) -> bool:
    try:
        compile(source, "program", "exec", dont_inherit=True)
    except Exception:  # noqa: BLE001 -- SyntaxError, ValueError, RecursionError, MemoryError
        return False
    return True


def _continue(header: str, text: str) -> Iterator[str]:
    """Ways to continue the function at the end of the header, the most literal one first."""
    if not header.strip():
        return
    indent = _indent(header)
    for body in (text, _first_block(text)):
        if body.strip():
            yield header + body
            yield f"{header}\n{body}"
            yield f"{header}\n{indent}{body.lstrip()}"
            yield f"{header}\n{textwrap.indent(textwrap.dedent(body), indent)}"


def _indent(header: str) -> str:
    """The indentation of the body of the last function in `header`."""
    starts = [line for line in header.splitlines() if line.lstrip().startswith(("def ", "async def "))]
    return (starts[-1][: len(starts[-1]) - len(starts[-1].lstrip())] if starts else "") + "    "


def _first_block(text: str) -> str:
    """The lines before the first one that is not indented, after the first line."""
    lines = text.splitlines(keepends=True)
    first = next((k for k, line in enumerate(lines) if line.strip()), len(lines))
    rest = range(first + 1, len(lines))
    end = next((k for k in rest if lines[k].strip() and not lines[k][0].isspace()), len(lines))
    return "".join(lines[:end])


class Program:
    """The completion as a module. Executing it may raise anything."""

    def __init__(self, header: str, text: str, name: str, prelude: str):
        module = sys.modules["solution"] = ModuleType("solution")
        self._names = module.__dict__
        *headers, source = choose_sources(header, text, name.rpartition(".")[2])
        for optional in (prelude, *headers):
            with suppress(Exception):
                exec(compile(optional, "header", "exec", dont_inherit=True), self._names)  # noqa: S102
        self._before = dict(self._names) if headers else {}
        exec(compile(source, "program", "exec", dont_inherit=True), self._names)  # noqa: S102
        self._solution: Any = None

    def find(self, name: str) -> Any:
        """The function `name`, or the one that an expression gives. Raises: anything, if there is none."""
        if not name.isidentifier():
            return eval(name, self._names)  # noqa: S307
        if name in self._names and self._names[name] is not self._before.get(name):
            return self._names[name]
        if self._solution is None:
            self._solution = self._names["Solution"]()
        return getattr(self._solution, name)


_program: list[Program] = []
_output = [1]


def load(header: str, text: str, name: str, prelude: str) -> None:
    """Execute the program. Its input is empty, and its output is dropped."""
    _output[0] = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    try:
        _program.append(Program(header, text, name, prelude))
    except BaseException as error:  # noqa: BLE001 -- of the program
        _fail(f"the program raises {describe(error)}")
        os._exit(0)


def call(name: str, text: str) -> None:
    """Call a function, and write the answer."""
    try:
        (args, kwargs), graph = decode(text)
        answer = _answer(_program[-1].find(name), args, kwargs, graph)
    except NotPlainError as error:
        _fail(f"the program returns {error}")
    except BaseException as error:  # noqa: BLE001 -- SystemExit is no answer either
        _fail(f"the program raises {describe(error)}")
    else:
        write_all(_output[0], answer)


def _answer(function: Any, args: list[Any], kwargs: dict[str, Any], graph: Graph) -> bytes:
    try:
        return b"value " + encode([function(*args, **kwargs)], graph)[0].encode()
    except NotPlainError:
        raise
    except Exception as error:  # noqa: BLE001 -- the tests may expect it
        names = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
        text = describe(error).partition(": ")[2]
        try:
            return b"raise " + encode([names, error.args, text], graph)[0].encode()
        except NotPlainError:
            return b"raise " + encode([names, None, text], graph)[0].encode()


def _fail(reason: str) -> None:
    write_all(_output[0], b"failed " + reason.encode(errors="replace"))
