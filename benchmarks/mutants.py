"""Random mutants of `purerl/` outside `algos/`, and the tests that detect them.

    python -m benchmarks.mutants cover FOLDER [-- arguments of pytest]
    python -m benchmarks.mutants run FOLDER [--count 200] [--seed 0] [--first 0] [--limit 180]

A mutant is one change of one expression: another comparison or operator, another number, `not` before a condition, or
None instead of what a function returns. Each is written to a copy of this project in FOLDER, and detected if a test
fails, or if the tests take longer than `limit` seconds.

`cover` runs the tests once and stores which of them execute which line, processes that they start included. `run` needs
this: a mutant runs only the tests that execute its line, quick ones first. A line that is executed when its file is
imported belongs to no test: then the tests run that execute any other line of the file.

The same seed gives the same mutants, also in another version of the tests. `run` writes a line for each mutant to
FOLDER/mutants.jsonl, and does not repeat those that are there. It needs the package coverage.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

ROOT = Path(__file__).parents[1]
MAX_TESTS = 400
"""Tests that one mutant runs: the quickest."""

_ARGUMENTS = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "-q", "-m"]
_ARGUMENTS += ["not slow and not training and not soak and not parallel"]

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
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "benchmarks.mutants", *(arguments or _ARGUMENTS), "--durations=0"],
        env=os.environ | new, check=False,
    )  # fmt: skip
    combine = [sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={settings}"]
    subprocess.run([*combine, f"--data-file={folder}/lines.sqlite", str(folder / "data")], check=True)


def tests_by_line(database: Path) -> dict[str, dict[int, set[str]]]:
    """The tests that execute each line of each file."""
    from coverage.numbits import numbits_to_nums

    found: defaultdict[str, defaultdict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    joined = "line_bits join file on file.id=file_id join context on context.id=context_id"
    query = f"select path, context, numbits from {joined}"  # noqa: S608 -- a constant
    with sqlite3.connect(database) as connection:
        for path, context, bits in connection.execute(query):
            test = context.removeprefix("|").partition("|")[0].partition(" (")[0]
            if test:
                for line in numbits_to_nums(bits):
                    found[str(Path(path).relative_to(ROOT))][line].add(test)
    return found


# --- running -----------------------------------------------------------------------------------------------------


def selected(mutant: Mutant, lines: dict[str, dict[int, set[str]]]) -> list[str]:
    """The tests that a mutant runs."""
    of_file = lines.get(mutant.path, {})
    chosen = of_file.get(mutant.line) or set().union(*of_file.values())
    popular = {test: sum(test in tests for tests in of_file.values()) for test in chosen}
    return sorted(chosen, key=lambda test: (-popular[test], test))[:MAX_TESTS]


def run(mutant: Mutant, tests: list[str], root: Path, limit: float) -> str:
    """The result of a mutant: the first test that fails, "too slow", "no test", or "" if every test passes."""
    if not tests:
        return "no test"
    original = (root / mutant.path).read_bytes()
    write(mutant, root)
    listed = root.parent / "tests.txt"
    listed.write_text("\n".join(tests), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "-rfE",
        f"@{listed}",
    ]
    environment = os.environ | {"PYTHONPATH": f"{root}:{root}/cli", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return "too slow"
    finally:
        (root / mutant.path).write_bytes(original)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return (failed or [f"status {done.returncode}"])[0] if done.returncode else ""


def main(folder: Path, chosen: list[Mutant], limit: float) -> None:
    root = folder / "copy"
    if not root.exists():
        shutil.copytree(
            ROOT, root, ignore=shutil.ignore_patterns(".git", ".venv*", ".nox", "__pycache__", ".hypothesis")
        )
    results = folder / "mutants.jsonl"
    known = {line.split("\t")[0] for line in results.read_text().splitlines()} if results.exists() else set()
    lines = tests_by_line(folder / "lines.sqlite")
    for mutant in chosen:
        name = f"{mutant.path}:{mutant.line}:{mutant.column} {mutant.before!r} -> {mutant.after!r}"
        if name in known:
            continue
        tests = selected(mutant, lines)
        result = run(mutant, tests, root, limit)
        with results.open("a") as file:
            file.write(f"{name}\t{len(tests)}\t{result or 'survived'}\n")
        print(f"{name}  {len(tests)} tests  {result or 'SURVIVED'}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["cover", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=180.0)
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    given = parser.parse_args()
    if given.action == "cover":
        cover(given.folder.resolve(), given.pytest)
    else:
        main(given.folder.resolve(), random_mutants(given.count, given.seed), given.limit)
