"""Random mutants of `purerl/` outside `algos/`, and the tests that detect them.

    python -m benchmarks.mutants cover FOLDER [-- arguments of pytest]
    python -m benchmarks.mutants run FOLDER [--count 200] [--seed 0] [--limit 180]

A mutant is one change of one expression: another comparison or operator, another number, `not` before a condition, or
None instead of what a function returns. Each is written to a copy of this project in FOLDER, and detected if a test
fails, or if the tests take longer than `limit` seconds.

`cover` runs the tests once and stores which of them execute which line, processes that they start included. `run` needs
this: a mutant runs only the tests that execute its line, at first those that execute most of its file. A line that is
executed when its file is imported belongs to no test: then the tests run that execute any other line of the file. A
test that fails also without a mutant detects nothing: each test that has failed is tried once without one.

The same seed gives the same mutants, also in another version of the tests. `run` writes a line for each mutant to
FOLDER/mutants.tsv, and does not repeat those that are there. It needs the package coverage.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
from attrs import frozen

from tests.forks import Forks

ROOT = Path(__file__).parents[1]
MAX_TESTS = 400
"""The largest number of tests that one mutant runs."""

_ARGUMENTS = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "-q", "-m"]
_ARGUMENTS += ["not slow and not training and not soak and not parallel and not families and not real"]

# --- mutants -----------------------------------------------------------------------------------------------------

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip


@frozen
class Mutant:
    """`after` instead of `before`, which begins at `line` and `column` of `path`."""

    path: str
    line: int
    column: int
    before: str
    after: str


def _changed(node: ast.AST) -> ast.AST | None:
    """Another expression instead of `node`, or None if no rule applies."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            new.ops = [_COMPARISONS[type(op)]()]
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            new.op = _OPERATORS[type(op)]()
        case ast.BoolOp(op=op):
            new.op = ast.Or() if isinstance(op, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            new = operand
        case ast.Constant(value=bool() as value):
            new.value = not value
        case ast.Constant(value=(int() | float()) as value):
            new.value = value + 1
        case ast.IfExp(test=test):
            new.test = ast.UnaryOp(ast.Not(), test)
        case _:
            return None
    return new


def _skipped(tree: ast.Module) -> set[int]:
    """Annotations, what follows ``if TYPE_CHECKING``, and expressions in formatted texts, which have no position."""
    nodes: list[ast.AST] = []
    for node in ast.walk(tree):
        nodes += [each for each in (getattr(node, "annotation", None), getattr(node, "returns", None)) if each]
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            nodes.append(node)
    return {id(inner) for node in nodes for inner in ast.walk(node)}


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All mutants of a file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    skipped = _skipped(tree)
    for node in ast.walk(tree):
        pairs = [(node, _changed(node))]
        if isinstance(node, ast.If | ast.While):
            pairs = [(node.test, ast.UnaryOp(ast.Not(), node.test))]
        if isinstance(node, ast.Return) and node.value and not isinstance(node.value, ast.Constant):
            pairs = [(node.value, ast.Constant(None))]
        for before, after in pairs:
            segment = ast.get_source_segment(text, before) if after and id(node) not in skipped else None
            if segment and isinstance(before, ast.expr):
                new = f"({ast.unparse(ast.fix_missing_locations(after))})"
                yield Mutant(str(path.relative_to(ROOT)), before.lineno, before.col_offset, segment, new)


def random_mutants(count: int, seed: int) -> list[Mutant]:
    """`count` different mutants of all files outside algos; every mutant is equally likely."""
    files = sorted(path for path in (ROOT / "purerl").rglob("*.py") if "algos" not in path.parts)
    every = [mutant for path in files for mutant in mutants_of(path)]
    return random.Random(seed).sample(every, count)


def write(mutant: Mutant, root: Path) -> None:
    """Change the copy of the project at `root`."""
    path = root / mutant.path
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    start = len("".join(lines[: mutant.line - 1]).encode()) + mutant.column
    text = "".join(lines).encode()
    if not text[start:].startswith(mutant.before.encode()):
        raise ValueError(f"{mutant.path} is not the file of {mutant}")
    path.write_bytes(text[:start] + mutant.after.encode() + text[start + len(mutant.before.encode()) :])


# --- which test executes which line ------------------------------------------------------------------------------

_SITECUSTOMIZE = "import coverage\ncoverage.process_startup()\n"
_SETTINGS = """[run]
source = {root}/purerl
data_file = {folder}/data/lines
parallel = true
context = ${{PYTEST_CURRENT_TEST-}}
sigterm = true
patch = _exit
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Lines belong to the test that executes them."""
    from coverage import Coverage

    current = Coverage.current()
    if current is not None:
        current.switch_context(item.nodeid)
    result = yield
    if current is not None:
        current.switch_context("")
    return result


def cover(folder: Path, arguments: list[str]) -> None:
    """Run the tests, and store the lines that each executes."""
    shutil.rmtree(folder / "data", ignore_errors=True)
    (folder / "data").mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE, encoding="utf-8")
    settings = folder / "coveragerc"
    settings.write_text(_SETTINGS.format(root=ROOT, folder=folder), encoding="utf-8")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    new = {"COVERAGE_PROCESS_START": str(settings), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "benchmarks.mutants", *(arguments or _ARGUMENTS)]
    subprocess.run(command, env=os.environ | new, check=False)
    combine = [sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={settings}"]
    subprocess.run([*combine, f"--data-file={folder}/data/lines", str(folder / "data")], check=True)


def tests_by_line(database: Path) -> dict[str, dict[int, set[str]]]:
    """The tests that execute each line of each file of purerl/."""
    from coverage.numbits import numbits_to_nums

    found: defaultdict[str, defaultdict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    joined = "line_bits join file on file.id=file_id join context on context.id=context_id"
    query = f"select path, context, numbits from {joined}"  # noqa: S608 -- a constant
    with sqlite3.connect(database) as connection:
        for path, context, bits in connection.execute(query):
            # A server of forks has the test that started it before that of the fork, in PYTEST_CURRENT_TEST.
            test = re.sub(r"^.* \((setup|call|teardown)\)\|(?=.)", "", context.strip("|"), flags=re.DOTALL)
            if test := re.sub(r" \((setup|call|teardown)\)$", "", test):
                for line in numbits_to_nums(bits):
                    found["purerl" + path.rpartition("/purerl")[2]][line].add(test)
    return found


# --- running -----------------------------------------------------------------------------------------------------


def selected(mutant: Mutant, lines: dict[str, dict[int, set[str]]]) -> list[str]:
    """The tests that a mutant runs: at first those that execute most of its file."""
    of_file = lines.get(mutant.path, {})
    chosen = of_file.get(mutant.line) or set().union(*of_file.values())
    shares = Counter(test for tests in of_file.values() for test in tests & chosen)
    return sorted(chosen, key=lambda test: (-shares[test], test))[:MAX_TESTS]


def result_of(mutant: Mutant, tests: list[str], folder: Path, limit: float) -> str:
    """The first test that fails, "too slow", "no test", or "survived"."""
    while tests:
        original = (ROOT / mutant.path).read_bytes()
        write(mutant, ROOT)
        try:
            result = result_of_tests(tests, folder, limit)
        finally:
            (ROOT / mutant.path).write_bytes(original)
        test = name_of(result, tests)
        if test is None or _passes(test, folder, limit):
            return result
        tests = [each for each in tests if each != test]
    return "no test"


def name_of(result: str, tests: list[str]) -> str | None:
    """The test of `tests` that has failed according to a line of pytest; None if there is none."""
    line = result.partition(" ")[2]
    return max((test for test in tests if line.startswith(test)), key=len, default=None)


_PASSING: dict[str, bool] = {}
"""Whether a test passes without a mutant, of those that were tried."""


def _passes(test: str, folder: Path, limit: float) -> bool:
    if test not in _PASSING:
        _PASSING[test] = result_of_tests([test], folder, limit) == "survived"
    return _PASSING[test]


def result_of_tests(tests: list[str], folder: Path, limit: float) -> str:
    """The first of `tests` that fails now, "too slow", "no test", or "survived"."""
    listed = folder / "tests.txt"
    listed.write_text("\n".join(tests), encoding="utf-8")
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-rfE", f"@{listed}"]
    command = [sys.executable, "-m", "pytest", *options]
    with _LIBRARIES.Popen(command, stdout=PIPE, stderr=STDOUT, text=True) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            return "too slow"
    if missing := re.findall(r"^ERROR: not found: (.+)$", output, re.MULTILINE):  # a name with the end of a line
        known = [test for test in tests if not any(name.endswith(test.partition("[")[0]) for name in missing)]
        return result_of_tests(known, folder, limit) if 0 < len(known) < len(tests) else "no test"
    failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return (failed or [f"status {process.returncode}"])[0] if process.returncode else "survived"


_LIBRARIES = Forks("pytest", "torch", "tensordict", "transformers", "hypothesis", "pyarrow")
"""A process that has imported once: libraries that most tests import and no mutant changes."""


def run(folder: Path, chosen: list[Mutant], limit: float) -> None:
    """Run `chosen`, in the copy."""
    results = folder / "mutants.tsv"
    known = {line.split("\t")[0] for line in results.read_text().splitlines()} if results.exists() else set()
    lines = tests_by_line(folder / "data" / "lines")
    for mutant in chosen:
        name = f"{mutant.path}:{mutant.line}:{mutant.column} {mutant.before!r} -> {mutant.after!r}"
        if name not in known:
            tests = selected(mutant, lines)
            with results.open("a") as file:
                file.write(f"{name}\t{len(tests)}\t{result_of(mutant, tests, folder, limit)}\n")


def run_in_copy(folder: Path, arguments: list[str]) -> None:
    """Run this program in a copy of the project, whose files it changes."""
    root = folder / "copy"
    if not root.exists():
        ignored = shutil.ignore_patterns(".git", ".venv*", ".nox", "__pycache__", ".hypothesis")
        shutil.copytree(ROOT, root, ignore=ignored)
    settings = {
        "PYTHONPATH": f"{root}{os.pathsep}{root / 'cli'}",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "benchmarks.mutants", *arguments]
    subprocess.run(command, cwd=root, env=os.environ | settings, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["cover", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for the tests of one mutant")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.action == "cover":
        cover(folder, given.pytest)
    elif folder / "copy" == ROOT:
        run(folder, random_mutants(given.count, given.seed), given.limit)
    else:
        run_in_copy(folder, [*sys.argv[1:2], str(folder), *sys.argv[3:]])


if __name__ == "__main__":
    main()
