"""Function tests: the tests and the completion run in two sandboxes, and this process passes messages between them.

    tests  <->  this process  <->  completion

The process of the tests never executes the completion. The process of the completion has no connection to the tests
except for the calls: it gets arguments and gives results, as plain data. It decides nothing else. This process reads
only the first words of a message.
"""

from __future__ import annotations

import json
import marshal
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from attrs import asdict, evolve, frozen

from purerl.errors import InputError
from purerl.rewards.code.grades import Grade
from purerl.sandbox import Limits, Pool, Result, Session

__all__ = ["GRACE_SECONDS", "FunctionGrader", "FunctionTests"]

GRACE_SECONDS = 4.0
"""Seconds that tests may take beyond `timeout`: the reserve, and the time until a session is killed."""

_INSIDE = "purerl.rewards.code.inside"
_SHARED = ("values", "messages")
_MAX_CHECKS = 256  # of one session of tests
_UNLIMITED = 2**60  # bytes of all turns of a session; each turn has a limit
_RESERVE_SECONDS = 1.0  # for the tests, to report when the time is over
_MAX_SHOWN = 300
_STATUSES = {
    "ok": "ends its process",
    "error": "gives no answer",
    "killed": "ends its process by a signal",
    "timeout": "takes too long",
    "memory": "uses too much memory",
    "processes": "starts too many processes",
    "output": "gives too large an answer",
}
_PRELUDE = """
import bisect, collections, copy, functools, heapq, itertools, json, math, operator, random, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
"""


@frozen(kw_only=True)
class FunctionTests:
    """The tests of an example.

    kind         "check": `test` is source that defines ``check(candidate)``, or calls the function itself
                 "asserts": each of `tests` is source; `setup` runs before them
                 "calls": for each of `inputs`, which are lists of arguments, one of `outputs`
    entry_point  the name of the function, or an expression such as ``Solution().name``; asserts may have none
    header       the prompt, if it is source: what the tests may use, and what a completion may continue
    """

    kind: Literal["check", "asserts", "calls"]
    entry_point: str = ""
    header: str = ""
    test: str = ""
    tests: Sequence[str] = ()
    setup: str = ""
    inputs: Sequence[Any] = ()
    outputs: Sequence[Any] = ()

    def first(self, number: int) -> Self:
        """The first `number` of the tests, if they are several."""
        return evolve(self, tests=self.tests[:number], inputs=self.inputs[:number], outputs=self.outputs[:number])


class FunctionGrader:
    """Grades completions, in sandboxes of `pool`. Its methods can be called from several threads.

    is_private      whether sandboxes have layers
    limits          of the process of the tests, and of that of a completion; `timeout` is that of both together
    all_or_nothing  whether one test that fails makes the score 0; otherwise it is the fraction of tests that pass
    tolerance       of floats in the expected results of calls, relative and absolute
    """

    def __init__(self, pool: Pool, limits: Limits, *, is_private: bool, all_or_nothing: bool, tolerance: float):
        self._pool, self._limits, self._is_private = pool, limits, is_private
        self._all_or_nothing, self._tolerance = all_or_nothing, tolerance
        self._testers: list[_Tester] = []

    def grade(self, tests: FunctionTests, program: str) -> Grade:
        """Grade the text of a program.

        Raises: InputError if the tests cannot be used; SandboxError.
        """
        try:
            tester = self._testers.pop()
        except IndexError:
            tester = _Tester(self._pool, self._limits, is_private=self._is_private)
        try:
            with _Completion(self._pool, self._limits, tests, program) as completion:
                grade = self._run(tests, tester, completion)
        except BaseException:
            tester.close()
            raise
        if tester.is_reusable:
            self._testers.append(tester)
        else:
            tester.close()
        return grade

    def _run(self, tests: FunctionTests, tester: _Tester, completion: _Completion) -> Grade:
        options = {"stops": self._all_or_nothing, "tolerance": self._tolerance}
        remaining, num_calls = self._limits.timeout, 0
        result = tester.begin(json.dumps({**asdict(tests), **options}), remaining)
        remaining -= result.seconds
        while result.stdout.startswith(b"call "):
            num_calls += 1
            name, _, arguments = result.stdout[len(b"call ") :].partition(b"\n")
            answer, seconds = completion.call(name.decode(), arguments.decode(), remaining)
            if self._all_or_nothing and isinstance(answer, str):
                return Grade(0.0, answer)
            remaining = max(0.0, remaining - seconds)  # a program that ignores an interruption takes longer
            result = tester.resume(f"dead {answer}".encode() if isinstance(answer, str) else answer, remaining)
            remaining -= result.seconds
        if result.stdout.startswith(b"done "):
            report = json.loads(result.stdout[len(b"done ") :])
            if not report["is_valid"]:
                raise _invalid(report["reason"])
            fraction = report["passed"] / report["total"]
            return Grade(float(fraction == 1) if self._all_or_nothing else fraction, report["reason"])
        reason = f"the process of the tests {_STATUSES[result.status]}"
        if num_calls == 0:
            raise _invalid(reason)
        return Grade(0.0, reason)

    def close(self) -> None:
        """End the processes of tests."""
        while self._testers:
            self._testers.pop().close()


def _invalid(reason: str) -> InputError:
    need = "tests that call the function, and raise an exception only if it is wrong"
    return InputError("the tests of an example cannot be used", got=reason, need=need, do="fix or remove the example")


class _Tester:
    def __init__(self, pool: Pool, limits: Limits, *, is_private: bool):
        self._session = pool.session(limits=limits, total_output=_UNLIMITED)
        self._num_checks, self._is_private = 0, is_private

    @property
    def is_reusable(self) -> bool:
        return self._session.is_alive and self._num_checks < _MAX_CHECKS

    def begin(self, spec: str, seconds: float) -> Result:
        """Start a check, and run it until its first message, for at most `seconds` and a reserve."""
        setup = "" if self._num_checks else f"{_setup('checks', 'tester')}from {_INSIDE}.tester import begin, resume\n"
        self._num_checks += 1
        return self._run(f"{setup}begin({spec!r}, is_alone={self._is_private})", seconds)

    def resume(self, answer: bytes, seconds: float) -> Result:
        """Run the check until its next message."""
        return self._run(f"resume({answer!r})", seconds)

    def _run(self, code: str, seconds: float) -> Result:
        self._session.remaining_seconds = seconds + _RESERVE_SECONDS
        return self._session.run(code)

    def close(self) -> None:
        self._session.close()


class _Completion:
    """The session of a completion, which starts with the first call, and after a failure with the next one."""

    def __init__(self, pool: Pool, limits: Limits, tests: FunctionTests, program: str):
        self._pool, self._limits, self._tests, self._program = pool, limits, tests, program
        self._session: Session | None = None

    def call(self, name: str, arguments: str, remaining: float) -> tuple[bytes | str, float]:
        """The answer to a call; or in words, why there is none. And its duration, of at most `remaining` seconds."""
        code = f"call({name!r}, {arguments!r})"
        if self._session is None:
            self._session = self._pool.session(limits=self._limits, total_output=_UNLIMITED)
            prelude = _PRELUDE if self._tests.kind == "calls" else ""
            load = f"load{(self._tests.header, self._program, name, prelude)!r}"
            code = f"{_setup('candidate')}from {_INSIDE}.candidate import call, load\n{load}\n{code}"
        self._session.remaining_seconds = remaining
        result = self._session.run(code)
        if self._session.is_alive and result.status == "ok" and result.stdout.startswith((b"value ", b"raise ")):
            return result.stdout, result.seconds
        self.close()
        kind, _, reason = result.stdout.partition(b" ")
        is_known = kind == b"failed" and result.status == "ok"
        text = reason[:_MAX_SHOWN].decode(errors="replace") if is_known else f"the program {_STATUSES[result.status]}"
        return text, result.seconds

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@cache
def _setup(*names: str) -> str:
    """Code that makes `purerl.rewards.code.inside` importable in a sandbox, compiled here if versions are equal."""
    modules = []
    for name in (f"{_INSIDE}.{name}" for name in (*_SHARED, *names)):
        source = (Path(__file__).parent / "inside" / f"{name.rpartition('.')[2]}.py").read_text(encoding="utf-8")
        modules.append((name, source, marshal.dumps(compile(source, name, "exec", dont_inherit=True))))
    return f"""
import marshal, sys
from types import ModuleType
is_same = sys.version_info == {tuple(sys.version_info)!r}
for name, source, compiled in {modules!r}:
    sys.modules[name] = ModuleType(name)
    code = marshal.loads(compiled) if is_same else compile(source, name, "exec", dont_inherit=True)
    exec(code, sys.modules[name].__dict__)
"""
