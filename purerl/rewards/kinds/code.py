"""A reward for programs that pass tests. They run in sandboxes: docs/how-to/code_rewards.md.

    reward = number of tests that pass / number of tests        with partial_credit
             1 if all tests pass, 0 if not                      without

`tests = "function"` calls a Python function, with the columns of HumanEval (2107.03374) and others. `tests = "stdin"`
runs a program in any language that is installed, for each test once, and compares what it writes to stdout.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, Literal, TypeVar

from attrs import evolve, frozen

from purerl.errors import ConfigError, InputError, nearest
from purerl.rewards.code.comparison import Comparison
from purerl.rewards.code.completions import find_program
from purerl.rewards.code.examples import (
    FUNCTION_COLUMNS,
    STDIN_COLUMNS,
    header_of,
    language_of,
    read_function_tests,
    read_stdin_tests,
)
from purerl.rewards.code.functions import GRACE_SECONDS, FunctionGrader, FunctionTests
from purerl.rewards.code.grades import Grade
from purerl.rewards.code.languages import LANGUAGES, find_language
from purerl.rewards.code.stdin import StdinGrader, StdinTests
from purerl.sandbox import Limits, Pool, SandboxSettings, open_sandbox
from purerl.settings import above_zero, at_least, between, boolean, no_effect, one_of, setting

__all__ = ["Code", "Config", "build", "check", "columns", "seconds"]

_Tests = TypeVar("_Tests", FunctionTests, StdinTests)

_TOTAL_TIMEOUT = 8.0
_OVERHEAD = 10.0  # seconds for starting sandboxes, which take long on a computer with too many processes
_NO_PROGRAM = Grade(0.0, "the completion has no program")
_STDIN_ONLY = {"total_timeout": None, "comparison": "tokens", "language": None}
_PRELOAD = (
    "ast", "bisect", "collections", "copy", "decimal", "fractions", "functools", "heapq", "itertools", "json", "math",
    "operator", "random", "re", "shutil", "statistics", "string", "struct", "symtable", "textwrap", "typing",
)  # fmt: skip


@frozen(kw_only=True)
class Config:
    """Settings of the kind `code`."""

    tests: Literal["function", "stdin"] = setting(
        "what is tested. function: a Python function; stdin: a program that reads stdin and writes to stdout",
        default="function",
        **one_of("function", "stdin"),
    )
    timeout: float = setting(
        "duration of a program in one test; of a function, of all tests and calls together",
        unit="s",
        default=4.0,
        **above_zero(),
    )
    total_timeout: float | None = setting(
        f"duration of compiling a program and of all its tests together; if not given, {_TOTAL_TIMEOUT:g} s, or "
        "timeout if that is longer",
        unit="s",
        default=None,
        **above_zero(),
    )
    partial_credit: bool | None = setting(
        "whether the reward is the fraction of the tests that pass; otherwise it is 1 if all pass, and the first one "
        "that fails is the last one that runs. If not given, true for stdin, and false for function. HumanEval has one "
        "test for each problem",
        default=None,
        **boolean(),
    )
    max_tests: int | None = setting(
        "number of tests of an example that run, the first ones; if not given, all", default=None, **at_least(1)
    )
    comparison: Comparison = setting(
        "what must be equal in the output of a program. tokens: the words; lines: also the lines; exact: every "
        "character, except for line breaks at the end",
        default="tokens",
        **one_of("tokens", "lines", "exact"),
    )
    tolerance: float = setting(
        "difference, relative or absolute, by which a number may differ from an expected one that is no integer",
        default=1e-6,
        **between(0, 1),
    )
    language: str | None = setting(
        "language of the programs; if not given, the column language, or else the label of the code fence, or else "
        "python",
        default=None,
    )
    sandbox: SandboxSettings = setting("where and how the programs run", factory=SandboxSettings)

    def __attrs_post_init__(self) -> None:
        for name, default in _STDIN_ONLY.items():
            if self.tests == "function" and getattr(self, name) != default:
                raise no_effect(name, getattr(self, name), 'tests = "stdin"')
        if self.sandbox.limits.timeout != Limits().timeout:
            need, got = "a program that has no timeout of its own", self.sandbox.limits.timeout
            raise no_effect("sandbox.limits.timeout", got, need, "set timeout, beside sandbox")
        if self.sandbox.remote is not None and self.tests == "function":
            need = "a sandbox on this computer: a function is called many times in one process"
            raise ConfigError("sandbox.remote", got=self.sandbox.remote, need=need, do='set tests = "stdin"')
        if self.language is not None and find_language(self.language) is None:
            raise ConfigError("language", got=repr(self.language), do=nearest(self.language, LANGUAGES))

    @property
    def full_total_timeout(self) -> float:
        """`total_timeout`, or its default."""
        return self.total_timeout or max(self.timeout, _TOTAL_TIMEOUT)

    @property
    def all_or_nothing(self) -> bool:
        """Whether there is no partial credit."""
        return self.tests == "function" if self.partial_credit is None else not self.partial_credit


def columns(config: Config) -> list[tuple[str, ...]]:
    """The columns of which one is needed."""
    return [FUNCTION_COLUMNS if config.tests == "function" else STDIN_COLUMNS]


def seconds(config: Config) -> float:
    """The longest time of a call of the reward, longer than that of any program."""
    function = config.timeout + GRACE_SECONDS
    return _OVERHEAD + (function if config.tests == "function" else max(function, config.full_total_timeout))


def check(config: Config) -> None:
    """Build a sandbox, and find the language. Raises: SandboxError if that is impossible here."""
    with closing(build(config)) as reward:
        reward.prepare()


def build(config: Config) -> Code:
    """The reward function with the settings `config`. Raises: SandboxError."""
    return Code(config)


class Code:
    """The reward function of the kind `code`, with sandboxes of its own until it is closed."""

    def __init__(self, config: Config):
        self._config = config
        settings, limits = config.sandbox, evolve(config.sandbox.limits, timeout=config.timeout)
        if settings.remote is None:
            settings = evolve(settings, preload=tuple(dict.fromkeys((*_PRELOAD, *settings.preload))))
        self._sandbox = open_sandbox(settings)
        options: dict[str, Any] = {"all_or_nothing": config.all_or_nothing, "tolerance": config.tolerance}
        self._programs = StdinGrader(
            self._sandbox, limits, total_timeout=config.full_total_timeout, comparison=config.comparison, **options
        )
        self._functions = None
        if isinstance(self._sandbox, Pool):
            is_private = settings.layers != "none"
            self._functions = FunctionGrader(self._sandbox, limits, is_private=is_private, **options)

    def __call__(self, completion: str, example: Mapping[str, Any]) -> float:
        return self.grade(completion, example).score

    def grade(self, completion: str, example: Mapping[str, Any]) -> Grade:
        """The reward, and why it is not 1.

        Raises: InputError if the tests of `example` cannot be used; SandboxError.
        """
        if self._config.tests == "function":
            return self._grade_function(read_function_tests(example), completion, example)
        tests = read_stdin_tests(example)
        if isinstance(tests, FunctionTests):
            return self._grade_function(tests, completion, example)
        given = find_language(self._config.language) if self._config.language else language_of(example)
        if given is not None:
            self._programs.require(given)
        program = find_program(completion, given)
        if program is None:
            return _NO_PROGRAM
        language = given or program.language or "python"
        if not self._programs.is_installed(language):
            return Grade(0.0, f"programs in {language} cannot run here")
        return self._programs.grade(self._shortened(tests), program.text, language)

    def _grade_function(self, tests: FunctionTests, completion: str, example: Mapping[str, Any]) -> Grade:
        if self._functions is None:
            need = "a sandbox on this computer: a function is called many times in one process"
            raise InputError("the tests of an example call a function", got="a remote sandbox", need=need)
        program = find_program(completion, "python", is_open=header_of(example).is_open)
        return self._functions.grade(self._shortened(tests), program.text) if program else _NO_PROGRAM

    def _shortened(self, tests: _Tests) -> _Tests:
        return tests.first(self._config.max_tests) if self._config.max_tests else tests

    def prepare(self) -> None:
        """Run a program, to see that it is possible. Raises: SandboxError."""
        self._sandbox.run_python("")
        if self._config.language is not None:
            self._programs.require(find_language(self._config.language) or "python")

    def close(self) -> None:
        """End the sandboxes."""
        if self._functions is not None:
            self._functions.close()
        self._sandbox.close()
