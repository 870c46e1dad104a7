"""Programs that read stdin and write to stdout, in several languages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing

import pytest

from purerl.errors import InputError, SandboxError
from purerl.rewards.code.grades import Grade
from purerl.rewards.code.languages import LANGUAGES
from purerl.rewards.kinds.code import Code, Config, build
from purerl.sandbox import Limits, Result, SandboxSettings

from .problems import PROGRAM, SUM

PASSED = Grade(1.0)
_SANDBOX = SandboxSettings(limits=Limits(max_memory=1024))

_ERROR = "test 0: the program ends with the status error"

PROGRAMS = {
    "python": PROGRAM,
    "bash": "read a b; echo $((a + b))\n",
    "javascript": "const [a, b] = require('fs').readFileSync(0, 'utf8').split(' ').map(Number); console.log(a + b);\n",
    "perl": "my ($a, $b) = split ' ', <STDIN>; print $a + $b, \"\\n\";\n",
    "ruby": "puts gets.split.map(&:to_i).sum\n",
    "php": "<?php [$a, $b] = explode(' ', fgets(STDIN)); echo intval($a) + intval($b);\n",
    "lua": "local a, b = io.read('n', 'n'); print(a + b)\n",
    "r": "x <- scan(file('stdin'), quiet = TRUE); cat(format(sum(x), scientific = FALSE))\n",
    "c": '#include <stdio.h>\nint main(void) { int a, b; scanf("%d %d", &a, &b); printf("%d\\n", a + b); return 0; }\n',
    "c++": "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b << std::endl; }\n",
    "java": "import java.util.Scanner;\npublic class Main {\n  public static void main(String[] args) {\n"
    "    Scanner in = new Scanner(System.in);\n    System.out.println(in.nextInt() + in.nextInt());\n  }\n}\n",
    "go": 'package main\nimport "fmt"\nfunc main() { var a, b int; fmt.Scan(&a, &b); fmt.Println(a + b) }\n',
    "rust": "use std::io::*;\nfn main() { let mut s = String::new(); stdin().read_to_string(&mut s).unwrap();\n"
    'println!("{}", s.split_whitespace().map(|x| x.parse::<i64>().unwrap()).sum::<i64>()); }\n',
}


@pytest.fixture(scope="module")
def code() -> Iterator[Code]:
    with closing(build(Config(tests="stdin", timeout=20, total_timeout=60, sandbox=_SANDBOX))) as opened:
        yield opened


def _is_here(language: str) -> bool:
    """Whether the interpreter or compiler is where sandboxes find it."""
    path = shutil.which(LANGUAGES[language].tool, path="/usr/local/bin:/usr/bin:/bin")
    return language == "python" or path is not None


@pytest.mark.parametrize("language", LANGUAGES)
def test_programs_in_a_language(language: str, code: Code) -> None:
    if not _is_here(language):
        pytest.skip(f"{LANGUAGES[language].tool} is not installed")
    tests = {"inputs": SUM["inputs"], "outputs": [*SUM["outputs"][:2], "7\n"]}
    assert code.grade(f"```{language}\n{PROGRAMS[language]}```", tests) == Grade(
        2 / 3, "test 2: another output than expected"
    )


def test_the_language_is_a_column(code: Code) -> None:
    assert code.grade(PROGRAMS["bash"], {**SUM, "language": "sh"}) == PASSED
    assert code.grade(f"```\n{PROGRAMS['bash']}```\n```python\n1\n```", {**SUM, "language": "bash"}) == PASSED


def test_every_language_has_a_program_here() -> None:
    assert set(PROGRAMS) == set(LANGUAGES)


@pytest.mark.skipif(not _is_here("c"), reason="there is no C compiler")
def test_a_program_that_cannot_be_compiled_gets_0(code: Code) -> None:
    grade = code.grade("```c\nint main(void) { return x; }\n```", SUM)
    assert grade.score == 0.0
    assert grade.reason.startswith("the program cannot be compiled: error, ")
    assert "undeclared" in grade.reason


@pytest.mark.skipif(not _is_here("c"), reason="there is no C compiler")
def test_a_program_is_compiled_once(code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []
    run = code._sandbox.run
    monkeypatch.setattr(
        code._sandbox, "run", lambda command, **rest: (commands.append(command[-1]), run(command, **rest))[1]
    )
    assert code.grade(PROGRAMS["c"], {**SUM, "language": "c"}) == PASSED
    assert ["cc " in command for command in commands if "command -v" not in command] == [True, False, False, False]


@pytest.mark.parametrize(
    ("program", "score", "reason"),
    [
        ("print(3)\n", 1 / 3, "test 1: another output than expected"),
        ("a, b = map(int, input().split())\nprint(max(a + b, 1))\n", 2 / 3, "test 1: another output than expected"),
        ("x = 1 / 0\n", 0.0, f"{_ERROR}, ZeroDivisionError: division by zero"),
        (f"{PROGRAM}raise SystemExit(3)\n", 0.0, _ERROR),
        ("import os\nos.kill(os.getpid(), 11)\n", 0.0, "test 0: the program ends with the status killed"),
        ("print('x' * 10**7)\n", 0.0, "test 0: the program ends with the status output"),
        ("import sys\nsys.stdout.buffer.write(bytes(range(256)))\n", 0.0, "test 0: another output than expected"),
        ("print(3", 0.0, f"{_ERROR}, SyntaxError: '(' was never closed"),
        ("pass\n", 0.0, "test 0: another output than expected"),
        ("x = 1\0", 0.0, f"{_ERROR}, SyntaxError: source code string cannot contain null bytes"),
        ("print('\udcff')", 0.0, "test 0: another output than expected"),
    ],
)  # fmt: skip
def test_partial_credit_is_the_fraction_of_tests(program: str, score: float, reason: str, code: Code) -> None:
    assert code.grade(program, SUM) == Grade(score, reason)


def test_programs_end_as_they_like(code: Code) -> None:
    for end in (
        "raise SystemExit",
        "import os, sys; sys.stdout.flush(); os._exit(0)",
        "if __name__ != '__main__': print()",
    ):
        assert code.grade(f"{PROGRAM}{end}\n", SUM) == PASSED
    assert code.grade(f"import sys\nprint('debugging', file=sys.stderr)\n{PROGRAM}", SUM) == PASSED


def test_each_test_starts_anew(code: Code) -> None:
    source = "import os\nprint(os.path.exists('left'))\nopen('left', 'w').close()\n"
    assert code.grade(source, {"inputs": [""] * 3, "outputs": ["False"] * 3}) == PASSED


def test_all_or_nothing_ends_with_the_first_failure() -> None:
    source = "import time\nprint(1)\ntime.sleep(0.3)\n"
    tests = {"inputs": [""] * 50, "outputs": ["1", "2", *["1"] * 48]}
    settings = Config(tests="stdin", partial_credit=False, timeout=20, total_timeout=20, sandbox=_SANDBOX)
    with closing(build(settings)) as code:
        assert code.grade(source, tests) == Grade(0.0, "test 1: another output than expected")
        assert code.grade(source, {"inputs": [""], "outputs": ["1"]}) == PASSED


@pytest.mark.slow
def test_every_test_has_a_time_and_all_together_have_one() -> None:
    source = "import time\ntime.sleep(float(input()))\nprint(1)\n"
    with closing(build(Config(tests="stdin", timeout=3.0, total_timeout=60.0, sandbox=_SANDBOX))) as code:
        grade = code.grade(source, {"inputs": ["0", "60", "0"], "outputs": ["1"] * 3})
        assert grade == Grade(2 / 3, "test 1: the program ends with the status timeout")
    with closing(build(Config(tests="stdin", timeout=1.0, total_timeout=1.5, sandbox=_SANDBOX))) as code:
        grade = code.grade(source, {"inputs": ["60", "60", "0", "0"], "outputs": ["1"] * 4})
        assert grade.score == 0.0


def test_an_expected_output_may_be_larger_than_the_limit_of_other_output(code: Code) -> None:
    assert code.grade("print('x' * 2_000_000)\n", {"inputs": [""], "outputs": ["x" * 2_000_000]}) == PASSED


def test_comparison_and_tolerance_are_settings() -> None:
    tests = {"inputs": ["", ""], "outputs": ["1 2\n", "0.333333\n"]}
    program = "print('1\\n2' if __import__('os').getpid() < 0 else '1  2')\n"
    for settings, score in (({}, 0.5), ({"comparison": "lines"}, 0.0), ({"comparison": "exact"}, 0.0)):
        with closing(build(Config(tests="stdin", sandbox=_SANDBOX, **settings))) as code:
            assert code.grade(program, tests).score == score
    for tolerance, score in ((1e-3, 0.5), (0.0, 0.0)):
        with closing(build(Config(tests="stdin", sandbox=_SANDBOX, tolerance=tolerance))) as code:
            assert code.grade("print(0.3333)\n", tests).score == score


# --- languages ---------------------------------------------------------------------------------------------------


_MISSING = next((name for name in LANGUAGES if not _is_here(name)), None)


@pytest.mark.skipif(_MISSING is None, reason="every language is installed")
def test_a_missing_language_is_an_error_if_the_example_names_it_and_0_if_the_completion_does(code: Code) -> None:
    assert code.grade(f"```{_MISSING}\nx\n```", SUM) == Grade(0.0, f"programs in {_MISSING} cannot run here")
    with pytest.raises(SandboxError, match=f"programs in {_MISSING.replace('+', '.')} cannot run"):
        code.grade("x", {**SUM, "language": _MISSING})


def test_a_sandbox_that_fails_to_look_for_a_language_is_a_failure(code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Result("timeout", None, b"", b"", 1.0, 0)
    with closing(build(Config(tests="stdin"))) as busy:
        with monkeypatch.context() as patch:
            patch.setattr(busy._sandbox, "run", lambda *_, **__: slow)
            with pytest.raises(SandboxError, match="looking for perl ended with the status timeout"):
                busy.grade("```perl\nprint 1\n```", SUM)
        assert busy.grade("```perl\nprint 1\n```", SUM).reason.startswith("test 0: another output")


def test_an_unknown_language_is_an_error(code: Code) -> None:
    with pytest.raises(InputError, match="language of an example"):
        code.grade("x", {**SUM, "language": "cobol"})


def test_the_language_of_the_settings_counts() -> None:
    with closing(build(Config(tests="stdin", language="sh", sandbox=_SANDBOX))) as code:
        assert code.grade(f"```python\n1\n```\n```bash\n{PROGRAMS['bash']}```", SUM) == PASSED
        assert code.grade(f"```python\n{PROGRAM}```", SUM) == Grade(0.0, "the completion has no program")


def test_examples_with_a_function_are_calls(code: Code) -> None:
    calls = {"inputs": ["1\n2", "3\n4"], "outputs": ["3", "0"], "fn_name": "add"}
    assert code.grade("def add(a, b): return a + b", calls) == Grade(0.5, "another value than expected")
