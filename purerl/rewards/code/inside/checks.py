r"""Running the tests of an example, with `Functions` in place of the functions of the completion.

    call NAME\n...    the message of a call; its arguments and keyword arguments as text of `values.encode`
    done ...          the message at the end: a `Report` as JSON

An error of the tests is distinguished from a wrong answer: it makes the example invalid, and gives no reward. Errors of
the tests are those before the first call, and names and modules that do not exist. Any other exception, such as a
TypeError, may come from a value of the wrong type.
"""

from __future__ import annotations

import ast
import builtins
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from threading import Lock
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from purerl.rewards.code.inside.messages import Channel, describe
from purerl.rewards.code.inside.values import NotPlainError, decode, encode

__all__ = ["Functions", "Report", "equal", "run"]


class Report(NamedTuple):
    """The result of the tests: how many have passed of how many, and the first reason why one has not.

    is_valid  false if the tests cannot be used, for this reason
    """

    passed: int
    total: int
    reason: str
    is_valid: bool = True


class _InvalidTests(Exception):  # noqa: N818 -- caught below
    """The tests cannot be used."""


class _Stop(BaseException):
    """Ends a test, also one that catches every exception."""


class Functions:
    """The functions of the completion, as the tests call them.

    num_calls  calls up to now
    failure    why the completion can give no answer; None if it has answered every call
    """

    def __init__(self, channel: Channel):
        self._channel, self._lock, self._raised = channel, Lock(), []
        self.num_calls, self.failure, self.unsent = 0, None, None

    def proxy(self, name: str) -> Callable[..., Any]:
        """A function that stands for the one called `name`, or for an expression such as ``Solution().name``."""

        def function(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, args, kwargs)

        function.__name__ = function.__qualname__ = name.rpartition(".")[2]
        return function

    def has_raised(self, error: BaseException) -> bool:
        """Whether `error` comes from the completion."""
        return any(error is raised for raised in self._raised)

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            text, graph = encode([list(args), kwargs])
        except NotPlainError as error:
            self.unsent = f"an argument is {error}"
            raise _Stop from error
        self.num_calls += 1
        with self._lock:
            self._channel.send(f"call {name}\n{text}".encode())
            kind, _, answer = (self._channel.receive() or b"dead ").partition(b" ")
        try:
            if kind == b"dead":
                raise NotPlainError(answer.decode(errors="replace"))
            roots, _ = decode(answer.decode(), graph)
            if kind == b"value":
                return roots[0]
            error = _exception(*roots)
        except (NotPlainError, UnicodeDecodeError, TypeError) as problem:
            self.failure = str(problem)
            raise _Stop from problem
        self._raised.append(error)
        raise error


_ENDS_OF_LOOPS = (StopIteration, StopAsyncIteration)
_EXCEPTIONS = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception) and not issubclass(value, _ENDS_OF_LOOPS)
}


def _exception(names: list[str], args: tuple[Any, ...] | None, text: str) -> Exception:
    """The exception that the completion has raised; no StopIteration, which would end a loop of the tests."""
    kind = next((_EXCEPTIONS[name] for name in names if name in _EXCEPTIONS), RuntimeError)
    try:
        return kind(*(args if isinstance(args, tuple) else (text,)))
    except Exception:  # noqa: BLE001 -- a class that needs other arguments
        return RuntimeError(text)


def run(spec: Mapping[str, Any], channel: Channel) -> None:
    """Run the tests of `spec`, and send the report.

    kind          "check": the source `test`, which defines `check(candidate)`, or calls the function itself
                  "asserts": the sources `tests`, each of which is a test
                  "calls": for each of `inputs`, which are lists of arguments, one of `outputs`
    entry_point   name of the function; of asserts it may be missing
    header        source of what the tests may use; it need not be valid
    setup         source of what asserts need
    stops         whether the first test that fails is the last one
    tolerance     of floats in `outputs`
    """
    functions = Functions(channel)
    try:
        report = _count(_KINDS[spec["kind"]](spec, functions), functions, stops=spec["stops"])
    except _InvalidTests as error:
        report = Report(0, 1, str(error), is_valid=False)
    channel.send(b"done " + json.dumps(report._asdict()).encode())


Test = Callable[[], bool]


def _count(tests: list[Test], functions: Functions, *, stops: bool) -> Report:
    passed, reason = 0, ""
    for test in tests:
        functions.failure = None
        problem = _run_test(test, functions)
        passed += problem is None
        reason = reason or problem or ""
        if problem is not None and stops:
            break
    if functions.num_calls == 0:
        raise _InvalidTests("they never call the function")
    return Report(passed, len(tests), reason)


def _run_test(test: Test, functions: Functions) -> str | None:
    """The failure of a test; None if it passes."""
    try:
        problem = None if test() else "another value than expected"
    except (Exception, _Stop, SystemExit, KeyboardInterrupt) as error:  # of the tests
        problem = describe(error)
        if functions.failure is None and _is_error_of_tests(error, functions):
            raise _InvalidTests(problem) from error
    if functions.unsent is not None:
        raise _InvalidTests(functions.unsent)
    return problem if functions.failure is None else functions.failure


def _is_error_of_tests(error: BaseException, functions: Functions) -> bool:
    if functions.has_raised(error) or isinstance(error, _Stop):
        return False
    is_missing_name = isinstance(error, NameError | ImportError | SyntaxError) and type(error) is not UnboundLocalError
    return functions.num_calls == 0 or is_missing_name


def _check(spec: Mapping[str, Any], functions: Functions) -> list[Test]:
    names, code = _namespace(spec, functions), _compile(spec["test"])
    candidate = functions.proxy(spec["entry_point"])

    def test() -> bool:
        exec(code, names)  # noqa: S102 -- what this process is for
        if "check" in names:
            names["check"](candidate)
        return True

    return [test]


def _asserts(spec: Mapping[str, Any], functions: Functions) -> list[Test]:
    names, setup = _namespace(spec, functions), _compile(spec["setup"])
    codes = [_compile(source) for source in spec["tests"]]
    try:
        exec(setup, names)  # noqa: S102 -- likewise
    except Exception as error:
        raise _InvalidTests(describe(error)) from error
    unknown = {name for source in spec["tests"] for name in _called(source)} - {*names, *vars(builtins)}
    names |= {name: functions.proxy(name) for name in unknown}
    return [lambda code=code: exec(code, names) is None for code in codes]  # noqa: S102 -- likewise


def _calls(spec: Mapping[str, Any], functions: Functions) -> list[Test]:
    function, tolerance = functions.proxy(spec["entry_point"]), spec["tolerance"]
    pairs = zip(spec["inputs"], spec["outputs"], strict=True)
    return [lambda pair=pair: equal(function(*pair[0]), pair[1], tolerance) for pair in pairs]


_KINDS = {"check": _check, "asserts": _asserts, "calls": _calls}


def _compile(source: str) -> CodeType:
    try:
        return compile(source, "<tests>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _InvalidTests(describe(error)) from error


def _namespace(spec: Mapping[str, Any], functions: Functions) -> dict[str, Any]:
    """The namespace of the tests: functions and imports of the header, and the function that is tested."""
    module = sys.modules["tests"] = ModuleType("tests")
    names = module.__dict__
    with suppress(Exception):  # a header may be a text, and tests may need none
        exec(compile(spec["header"], "<header>", "exec", dont_inherit=True), names)  # noqa: S102 -- likewise
    if spec["entry_point"].isidentifier():
        names[spec["entry_point"]] = functions.proxy(spec["entry_point"])
    return names


def _called(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def equal(value: Any, expected: Any, tolerance: float) -> bool:
    """Whether `value` is what JSON has in `expected`: tuples are lists, keys are strings, floats are approximate.

    >>> equal({1: (0.1 + 0.2, [])}, {"1": [0.3, []]}, 1e-9), equal(3, 3.5, 1e-9), equal("1", 1, 1e-9)
    (True, False, False)
    """
    if isinstance(expected, float) and isinstance(value, int | float):
        return math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(expected, list) and isinstance(value, list | tuple):
        return len(value) == len(expected) and all(map(equal, value, expected, [tolerance] * len(value)))
    if isinstance(expected, dict) and isinstance(value, dict):
        items = {key if isinstance(key, str) else json.dumps(key): item for key, item in value.items()}
        return items.keys() == expected.keys() and all(equal(items[key], expected[key], tolerance) for key in items)
    return value == expected
