"""Function tests: what a solution may do, what the tests may do, and what is no reward at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from purerl.errors import InputError
from purerl.rewards.code.grades import Grade
from purerl.rewards.kinds.code import Code, Config, build
from purerl.sandbox import Limits, SandboxSettings

from .problems import ADD, BODY, problem

PASSED = Grade(1.0)
_SANDBOX = SandboxSettings(limits=Limits(max_memory=256))


@pytest.fixture(scope="module")
def code() -> Iterator[Code]:
    with closing(build(Config(timeout=20, sandbox=_SANDBOX))) as opened:
        yield opened


@pytest.fixture(scope="module")
def partial() -> Iterator[Code]:
    with closing(build(Config(timeout=20, partial_credit=True, sandbox=_SANDBOX))) as opened:
        yield opened


# --- solutions ---------------------------------------------------------------------------------------------------


_SOLUTIONS = {
    "body": BODY,
    "module": ADD["prompt"] + BODY,
    "block of code": f"Here it is:\n```python\n{ADD['prompt']}{BODY}```\nIt adds.",
    "block after thinking": f"<think>```python\ndef add(a, b): return 0\n```</think>```\n{BODY}```",
    "class Solution": "class Solution:\n    def add(self, a, b):\n        return a + b\n",
    "lambda": "add = lambda a, b: a + b\n",
    "object": "class Add:\n    def __call__(self, a, b): return a + b\nadd = Add()\n",
    "recursion": "def add(a, b):\n    return add(a - 1, b + 1) if 0 < a < 100 else a + b\n",
    "decorator": "import functools\n\n@functools.lru_cache\ndef add(a, b):\n    return a + b\n",
    "output": "def add(a, b):\n    print('debugging ' * 10**5)\n    return a + b\n",
    "two megabytes": "# " + "x" * 2_000_000 + "\ndef add(a, b): return a + b\n",
    "script": "if __name__ == '__main__':\n    raise SystemExit('not a script')\ndef add(a, b): return a + b\n",
    "helper": """
def helper(x):
    return x

def add(a, b):
    return helper(a) + b

print(add(1, 2))
""",
    "imports": """
from __future__ import annotations
from typing import List

def add(a: int, b: int) -> List[int]:
    import operator
    return operator.add(a, b)
""",
    "dataclass": """
from dataclasses import dataclass

@dataclass
class Pair:
    a: int
    b: int

def add(a, b):
    pair = Pair(a, b)
    return pair.a + pair.b
""",
    "thread": """
import threading
def add(a, b):
    results = []
    thread = threading.Thread(target=lambda: results.append(a + b))
    thread.start()
    thread.join()
    return results[0]
""",
    "process": """
import subprocess, sys
def add(a, b):
    command = [sys.executable, "-c", f"print({a} + {b})"]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)
""",
}


@pytest.mark.parametrize("name", _SOLUTIONS)
def test_correct_solution_gets_1(name: str, code: Code) -> None:
    assert code.grade(_SOLUTIONS[name], ADD) == PASSED


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("    return a - b\n", "AssertionError: "),
        ("    return a + b\n    )", "the program raises IndentationError: unexpected indent"),
        ("def sub(a, b): return a + b", "AssertionError: "),
        ("    return c\n", "NameError: name 'c' is not defined"),
        ("    raise ValueError(a)\n", "ValueError: 1"),
        ("    import os\n    os._exit(0)\n", "the program ends its process"),
        ("    import sys\n    sys.exit(0)\n", "the program raises SystemExit: 0"),
        ("def add(a, b):\n", "the program raises IndentationError: expected an indented block"),
        ("def add(a, b): return object()", "the program returns an object of the class object, which is no plain data"),
        (
            "class Solution:\n    def __init__(self): raise OSError\n    def add(self, a, b): pass",
            "the program raises OSError",
        ),
        ("", "the completion has no program"),
        ("def add(a, b): return 'x' * 10**7", "the program gives too large an answer"),
        ("def add(a, b): return bytearray(10**10)", ""),
    ],
)
def test_wrong_solution_gets_0_and_a_reason(completion: str, reason: str, code: Code) -> None:
    grade = code.grade(completion, ADD)
    assert grade.score == 0.0
    assert grade.reason.startswith(reason)


@pytest.mark.slow
def test_a_solution_of_ten_megabytes_is_graded(code: Code) -> None:
    assert code.grade("x = 1\n" * 1_700_000 + "def add(a, b): return a + b\n", ADD).score in (0.0, 1.0)
    assert code.grade("(" * 10_000_000, ADD).score == 0.0
    assert code.grade(BODY, ADD) == PASSED


@pytest.mark.slow
def test_time_is_that_of_all_calls_together() -> None:
    slow = "import time\ndef add(a, b):\n    time.sleep(0.4)\n    return a + b\n"
    example = problem("add(a, b)", "for k in range(10):\n    assert candidate(k, k) == 2 * k")
    with closing(build(Config(timeout=1.0, sandbox=_SANDBOX))) as code:
        for source, tests in ((slow, example), ("    while True: pass\n", ADD), ("while True: pass\n", ADD)):
            assert code.grade(source, tests) == Grade(0.0, "the program takes too long")


# --- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solution", "test"),
    [
        ("def f(x): x.sort()", "x = [3, 1]\nassert candidate(x) is None\nassert x == [1, 3]"),
        ("def f(x): x[0][0] = 9", "row = [1]\nx = [row, row]\ncandidate(x)\nassert row == [9] and x[0] is x[1] is row"),
        ("def f(x): return x", "x = {}\nassert candidate(x) is x\nassert candidate([]) is not candidate([])"),
        ("def f(x): return sorted(x)", "x = [2, 1]\nassert candidate(x) == [1, 2] and x == [2, 1]"),
        ("def f(x, *y, z=0): return x, y, z", "assert candidate(1, 2, 3, z=4) == (1, (2, 3), 4)"),
        ("def f(n):\n    while n: n -= 1; yield n", "assert [*candidate(3)] == [2, 1, 0] and next(candidate(1)) == 0"),
        ("def f(x): return map(str, x)", "assert [*candidate(range(2))] == ['0', '1']"),
        ("def f(x): return {tuple(x): {1, 2}}", "assert candidate([1]) == {(1,): {2, 1}}"),
        ("def f(x): return x.hex() if isinstance(x, bytes) else x", "assert candidate(b'\\xff') == 'ff'"),
        ("def f(x): return x * 10**5000", "assert candidate(3) == 3 * 10**5000"),
        ("from collections import Counter\ndef f(x): return Counter(x)", "assert candidate('aab') == {'a': 2, 'b': 1}"),
        ("from fractions import Fraction\ndef f(x): return Fraction(x, 3)", "assert candidate(2) * 3 == 2"),
        ("def f(x): return float(x)", "import math\nassert math.isnan(candidate('nan'))\nassert candidate('-inf') < 0"),
        ("memory = []\ndef f(x): memory.append(x); return len(memory)", "assert [*map(candidate, 'abc')] == [1, 2, 3]"),
        ("def f(x): return x == x.strip()", "assert candidate('a') is True\nassert candidate(' ') is False"),
    ],
)  # fmt: skip
def test_values_are_as_in_one_process(solution: str, test: str, code: Code) -> None:
    assert code.grade(solution, problem("f(x)", test)) == PASSED


@pytest.mark.parametrize(
    ("solution", "test"),
    [
        ("def f(x): return [*x]", "x = [1]\nassert candidate(x) is x"),
        ("def f(x): return tuple(x)", "assert candidate([1]) == [1]"),
        ("def f(x): pass", "x = [2, 1]\ncandidate(x)\nassert x == [1, 2]"),
        ("def f(x): x.append(0); return x", "x = [2]\nassert candidate(x) == [2, 0] and x == [2]"),
    ],
)
def test_differences_of_values_are_seen(solution: str, test: str, code: Code) -> None:
    assert code.grade(solution, problem("f(x)", test)).score == 0.0


_RAISES = """
try:
    candidate(0)
except {name} as error:
    assert str(error) == {text!r}, error
else:
    raise AssertionError
"""


@pytest.mark.parametrize(
    ("solution", "name", "text"),
    [
        ("def f(x): raise ValueError('no')", "ValueError", "no"),
        ("def f(x): return {}[x]", "KeyError", "0"),
        ("def f(x): return [][x]", "LookupError", "list index out of range"),
        ("class Mine(ZeroDivisionError): pass\ndef f(x): raise Mine('a', 1)", "ArithmeticError", "('a', 1)"),
        ("def f(x): raise TypeError", "TypeError", ""),
        ("def f(x): assert x, 'zero'", "AssertionError", "zero"),
        ("def f(x): raise ValueError(object)", "ValueError", "<class 'object'>"),
        ("def f(x): return open('missing')", "FileNotFoundError", "[Errno 2] No such file or directory"),
        ("def f(x): return b'\\xff'.decode()", "UnicodeDecodeError",
         "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        ("def f(x): return f(x)", "RecursionError", "maximum recursion depth exceeded"),
        ("def f(x):\n    yield 1\n    raise ValueError('late')", "ValueError", "late"),
    ],
)  # fmt: skip
def test_exceptions_that_tests_expect_arrive(solution: str, name: str, text: str, code: Code) -> None:
    assert code.grade(solution, problem("f(x)", _RAISES.format(name=name, text=text).strip())) == PASSED


def test_an_exception_of_another_type_fails(code: Code) -> None:
    example = problem("f(x)", _RAISES.format(name="ValueError", text="no").strip())
    for raised in ("TypeError('no')", "ValueError('yes')", "StopIteration('no')"):
        assert code.grade(f"def f(x): raise {raised}", example).score == 0.0


def test_stop_iteration_cannot_end_a_loop_of_the_tests(code: Code) -> None:
    example = problem("f(x)", "assert all(map(lambda x: candidate(x) == 1, range(3)))")
    assert code.grade("def f(x): raise StopIteration", example).score == 0.0


def test_a_test_that_catches_everything_does_not_hide_a_failure(code: Code) -> None:
    example = problem("f(x)", "try:\n    candidate(1)\nexcept:\n    pass")
    assert code.grade("def f(x): raise ValueError", example) == PASSED, "the test allows it"
    for solution in ("import os\ndef f(x): os._exit(0)", "def f(x): return object()", "def f(x): raise SystemExit"):
        assert code.grade(solution, example).score == 0.0


def test_a_test_with_several_threads_gets_the_right_answers(code: Code) -> None:
    test = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as executor:
    assert list(executor.map(candidate, range(40), range(40))) == [2 * k for k in range(40)]
"""
    assert code.grade(BODY, problem("add(a, b)", test.strip())) == PASSED


# --- formats -----------------------------------------------------------------------------------------------------


def test_tests_may_use_functions_of_the_prompt(code: Code) -> None:
    example = problem("root(coefficients)", "x = candidate([-1, 2])\nassert abs(poly([-1, 2], x)) < 1e-6")
    helper = "def poly(c, x):\n    return sum(a * x**k for k, a in enumerate(c))\n\n\n"
    example["prompt"] = helper + example["prompt"]
    assert code.grade("    return -coefficients[0] / coefficients[1]\n", example) == PASSED
    assert code.grade("def root(c):\n    return -c[0] / c[1]\n\ndef poly(c, x):\n    return 0\n", example) == PASSED
    assert code.grade("def root(c):\n    return 7\n\ndef poly(c, x):\n    return 0\n", example).score == 0.0


def test_tests_without_check_call_the_function_by_its_name(code: Code) -> None:
    example = {"prompt": "Write add.", "entry_point": "add", "test": "assert add(1, 2) == 3\nassert add(0, 0) == 0"}
    assert code.grade("def add(a, b): return a + b", example) == PASSED
    assert code.grade("def add(a, b): return 3", example).score == 0.0


def test_the_entry_point_may_be_an_expression(code: Code) -> None:
    example = {**ADD, "prompt": "class Solution:\n    def add(self, a, b):\n", "entry_point": "Solution().add"}
    assert code.grade("        return a + b\n", example) == PASSED
    assert code.grade("class Solution:\n    def add(self, a, b): return a + b\n", example) == PASSED


def test_prompts_may_be_conversations(code: Code) -> None:
    prompt = [{"role": "user", "content": f"Complete this:\n```python\n{ADD['prompt']}```"}]
    assert code.grade(f"```python\n{BODY}```", {**ADD, "prompt": prompt}) == PASSED
    prompt.append({"role": "assistant", "content": f"```python\n{ADD['prompt']}"})
    assert code.grade(f"{BODY}```\nThat is all.", {**ADD, "prompt": prompt}) == PASSED


ASSERTS = {
    "text": "Write a function to add.",
    "test_list": ["assert add(1, 2) == 3", "assert add(a=ONE, b=1) == 2", "assert abs(add(0, -1)) == 1"],
    "test_setup_code": "ONE = 1",
}


def test_a_list_of_asserts_names_the_function_itself(code: Code, partial: Code) -> None:
    assert code.grade("def add(a, b): return a + b", ASSERTS) == PASSED
    assert code.grade("def add(a, b): return max(a + b, 0)", ASSERTS).score == 0.0
    assert partial.grade("def add(a, b): return max(a + b, 0)", ASSERTS) == Grade(2 / 3, "AssertionError: ")
    assert partial.grade("def add(a, b): return 1 // (a - 1) + a + b", ASSERTS).score == 0.0


CALLS = {"inputs": ["[1, 2]", "[0.1, 0.2]", "[]"], "outputs": ["3", "0.3", "0"], "fn_name": "total"}


def test_calls_compare_results_as_json(code: Code, partial: Code) -> None:
    method = "class Solution:\n    def total(self, x: List[float]) -> float:\n        return {}\n"
    assert code.grade(method.format("sum(x)"), CALLS) == PASSED, "common imports are there"
    assert code.grade(method.format("sum(x) + 1e-5"), CALLS).score == 0.0
    assert partial.grade(method.format("x[0] + x[1]"), CALLS).score == 2 / 3
    pairs = {"inputs": ["3"], "outputs": ['[[1, 2], {"4": null}]'], "fn_name": "f"}
    assert code.grade("def f(x): return ((1, 2), {4: None})", pairs) == PASSED
    assert code.grade("def f(x): return [[1, 2], {'4': 0}]", pairs).score == 0.0


def test_after_the_end_of_its_process_a_program_starts_again_for_the_other_tests(partial: Code) -> None:
    source = "import os\ndef total(x):\n    if not x: os._exit(0)\n    return sum(x)\n"
    calls = {"inputs": ["[]", "[1]", "[]", "[2]"], "outputs": ["0", "1", "0", "2"], "fn_name": "total"}
    assert partial.grade(source, calls) == Grade(0.5, "the program ends its process")


@pytest.mark.slow
def test_partial_credit_is_given_for_tests_before_the_time_is_over() -> None:
    source = "def total(x):\n    while not x: pass\n    return sum(x)\n"
    calls = {"inputs": ["[1]", "[]", "[2]"], "outputs": ["1", "0", "2"], "fn_name": "total"}
    with closing(build(Config(timeout=3.0, partial_credit=True, sandbox=_SANDBOX))) as code:
        assert code.grade(source, calls) == Grade(1 / 3, "the program takes too long")


def test_only_the_first_tests_run() -> None:
    with closing(build(Config(max_tests=2, sandbox=_SANDBOX))) as code:
        assert code.grade("def add(a, b): return max(a + b, 0)", ASSERTS) == PASSED


# --- tests that cannot be used -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("def check(candidate: assert", "SyntaxError: "),
        ("x = 1\0", "SyntaxError: source code string cannot contain null bytes"),
        ("def check(candidate): pass", "they never call the function"),
        ("x = 1", "they never call the function"),
        ("import missing_module\ndef check(candidate): assert candidate(1, 2) == 3", "ModuleNotFoundError: "),
        ("def check(candidate): missing(candidate)", "NameError: name 'missing' is not defined"),
        ("def check(candidate):\n    assert candidate(1, 2) == missing", "NameError: name 'missing' is not defined"),
        ("def check(candidate):\n    candidate(lambda: 1, 2)", "an argument is an object of the class function"),
        ("def check(candidate):\n    1 / 0", "ZeroDivisionError: division by zero"),
        ("def check(): candidate(1, 2)", "TypeError: check() takes 0 positional arguments but 1 was given"),
        ("import os\nos._exit(0)", "the process of the tests ends its process"),
        ("import os\nos.kill(os.getpid(), 9)", "the process of the tests ends its process"),
        ("raise SystemExit", "SystemExit: "),
    ],
)
def test_tests_that_cannot_be_used_are_an_error_and_no_reward(test: str, reason: str, code: Code) -> None:
    with pytest.raises(InputError, match="the tests of an example cannot be used") as caught:
        code.grade(BODY, {**ADD, "test": test})
    assert f"got:  {reason}" in str(caught.value)
    assert code.grade(BODY, ADD) == PASSED, "the next example"


@pytest.mark.slow
def test_tests_that_do_not_end_are_an_error_before_the_first_call_and_0_after_it() -> None:
    with closing(build(Config(timeout=3.0, sandbox=_SANDBOX))) as code:
        with pytest.raises(InputError, match="the process of the tests takes too long"):
            code.grade(BODY, {**ADD, "test": "while True: pass"})
        endless = problem("add(a, b)", "while candidate(1, 2) != 3: pass\nwhile True: pass")
        assert code.grade(BODY, endless) == Grade(0.0, "the process of the tests takes too long")
        assert code.grade(BODY, ADD) == PASSED


@pytest.mark.parametrize("test", ["assert len(candidate(1, 2)) == 3", "assert candidate(1, 2)['a'] == 3"])
def test_a_result_of_the_wrong_type_is_a_wrong_result(test: str, code: Code) -> None:
    assert code.grade(BODY, problem("add(a, b)", test)).score == 0.0


@pytest.mark.parametrize(
    "test",
    [
        "[0] * candidate(10**12, 10**12)",
        "import os\nassert candidate(1, 2)\nos._exit(0)",
        "import os\nassert candidate(1, 2)\nos.kill(os.getpid(), 11)",
    ],
)
def test_a_process_of_tests_that_ends_after_a_value_gives_0(test: str, code: Code) -> None:
    assert code.grade(BODY, problem("add(a, b)", test)).score == 0.0
    assert code.grade(BODY, ADD) == PASSED


def test_without_layers_only_processes_of_the_check_are_ended() -> None:
    """A sandbox without layers sees all processes of this user, such as this one."""
    with closing(build(Config(sandbox=SandboxSettings(layers="none")))) as code:
        for _ in range(3):
            assert code.grade(BODY, ADD) == PASSED
            assert code.grade("    return a\n", ADD).score == 0.0


def test_a_check_leaves_nothing_to_the_next_one(code: Code) -> None:
    test = """
import builtins, os, random, time
assert not os.path.exists('left') and not os.path.exists('folder')
assert not hasattr(builtins, 'left')
builtins.left = 1
open('left', 'w').close()
os.makedirs('folder/inner')
if os.fork() == 0:
    os.setsid() if os.fork() == 0 else None
    time.sleep(100)
while len([name for name in os.listdir('/proc') if name.isdigit()]) > 5:
    time.sleep(0.01)  # process 1 has not collected those of the check before
assert candidate(1, 2) == 3
"""
    example = problem("add(a, b)", test.strip())
    for _ in range(4):
        assert code.grade(BODY, example) == PASSED
