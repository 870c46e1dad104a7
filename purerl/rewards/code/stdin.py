"""Tests by stdin and stdout: each test runs the program in a sandbox of its own, and this process compares its output.

A program that has to be compiled is compiled once. What the compiler writes is an archive in the output of its sandbox,
which is unpacked in the sandboxes of the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Self

from attrs import evolve, frozen

from purerl.errors import SandboxError
from purerl.rewards.code.comparison import Comparison, same_output
from purerl.rewards.code.grades import Grade
from purerl.rewards.code.languages import LANGUAGES
from purerl.sandbox import Limits, Result, Sandbox

__all__ = ["StdinGrader", "StdinTests"]

_BUILT = "built.tar.base64"  # text, because a remote sandbox returns text
_MIN_OUTPUT, _MAX_BUILT = 2**16, 2**26

Run = Callable[[str, Limits], Result]


@frozen(kw_only=True)
class StdinTests:
    """The tests of an example: for each of `inputs` the expected one of `outputs`."""

    inputs: Sequence[str]
    outputs: Sequence[str]

    def first(self, number: int) -> Self:
        """The first `number` of the tests."""
        return evolve(self, inputs=self.inputs[:number], outputs=self.outputs[:number])


class StdinGrader:
    """Grades completions in runs of `sandbox`. Its methods can be called from several threads.

    limits          of each run; `timeout` is that of one test
    total_timeout   duration of all tests and of compiling, together
    all_or_nothing  whether one test that fails makes the score 0, and ends the tests; otherwise the score is the
                    fraction of tests that pass
    """

    def __init__(
        self,
        sandbox: Sandbox,
        limits: Limits,
        *,
        total_timeout: float,
        all_or_nothing: bool,
        comparison: Comparison,
        tolerance: float,
    ):
        self._sandbox, self._limits, self._total_timeout = sandbox, limits, total_timeout
        self._all_or_nothing, self._comparison, self._tolerance = all_or_nothing, comparison, tolerance
        self._lock, self._is_installed = Lock(), dict[str, bool]()

    def grade(self, tests: StdinTests, program: str, language: str) -> Grade:
        """Grade a program in one of `LANGUAGES`.

        Raises: SandboxError.
        """
        built = self._build(program, language)
        if isinstance(built, str):
            return Grade(0.0, built)
        run, seconds = built
        passed, reason = 0, ""
        for number, (stdin, expected) in enumerate(zip(tests.inputs, tests.outputs, strict=True)):
            remaining = self._total_timeout - seconds
            if remaining <= 0:
                reason = reason or f"test {number}: no time is left"
                break
            max_output = max(self._limits.max_output, 2 * len(expected.encode()) + _MIN_OUTPUT)
            limits = evolve(self._limits, timeout=min(self._limits.timeout, remaining), max_output=max_output)
            result = run(stdin, limits)
            seconds += result.seconds
            problem = self._problem(result, expected)
            passed += problem is None
            reason = reason or ("" if problem is None else f"test {number}: {problem}")
            if problem is not None and self._all_or_nothing:
                break
        fraction = passed / len(tests.inputs)
        return Grade(float(fraction == 1) if self._all_or_nothing else fraction, reason)

    def _problem(self, result: Result, expected: str) -> str | None:
        if result.status != "ok":
            last = result.stderr_text.strip().splitlines()[-1:]
            return ", ".join([f"the program ends with the status {result.status}", *last])[:300]
        is_same = same_output(result.stdout_text, expected, self._comparison, self._tolerance)
        return None if is_same else "another output than expected"

    def _build(self, program: str, language: str) -> tuple[Run, float] | str:
        """The `Run` of the program, and the seconds of its compilation; or the reason why it cannot be compiled."""
        if language == "python":
            return lambda stdin, limits: self._sandbox.run_python(program, stdin=stdin, limits=limits), 0.0
        file, _, command, build, _ = LANGUAGES[language]
        files: dict[str, str | bytes] = {file: program}
        if not build:
            return self._runner(command, files), 0.0
        limits = evolve(self._limits, timeout=self._total_timeout, max_output=_MAX_BUILT)
        script = f"mkdir build && ({build}) >&2 && tar -cf - build | base64"
        result = self._sandbox.run(["sh", "-c", script], files=files, limits=limits)
        if result.status != "ok":
            return f"the program cannot be compiled: {result.status}, {result.stderr_text.strip()}"[:300]
        unpack = f"base64 -d {_BUILT} | tar -xf - && rm {_BUILT} && {command}"
        return self._runner(unpack, {_BUILT: result.stdout}), result.seconds

    def _runner(self, command: str, files: dict[str, str | bytes]) -> Run:
        return lambda stdin, limits: self._sandbox.run(["sh", "-c", command], files=files, stdin=stdin, limits=limits)

    def is_installed(self, language: str) -> bool:
        """Whether programs in `language` can run in the sandbox. Raises: SandboxError."""
        if language == "python":
            return True
        with self._lock:
            if language not in self._is_installed:
                result = self._sandbox.run(["sh", "-c", f"command -v {LANGUAGES[language].tool}"])
                if result.status not in ("ok", "error"):
                    got = f"looking for {LANGUAGES[language].tool} ended with the status {result.status}"
                    raise SandboxError("the sandbox does not work", got=got, do="run the program again")
                self._is_installed[language] = result.status == "ok"
            return self._is_installed[language]

    def require(self, language: str) -> None:
        """Raises: SandboxError if programs in `language` cannot run in the sandbox."""
        if not self.is_installed(language):
            need = f"{LANGUAGES[language].tool}, in a directory that sandboxes can read"
            do = "install it in /usr, or add its directory to read_only of the sandbox"
            raise SandboxError(f"programs in {language} cannot run", need=need, do=do)
