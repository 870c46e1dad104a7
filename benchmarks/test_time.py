"""CPU seconds of the tests, by file and by cause, written as a table.

    python -m benchmarks.test_time [--output FILE.md] [--rows 60] -- [arguments of pytest]

Without arguments, pytest gets those of ``nox -s tests``. The causes are

- tests: the processes of pytest while a test and its fixtures run;
- collection: the same processes otherwise, mainly imports and the collection of tests;
- imports: the outermost `import` statements of all processes that tests start. Such a process writes its file after
  each import that takes more than 20 milliseconds, so one that is killed counts too. A process with ``python -I`` or
  with an environment of its own does not count here, and a forked one imports little;
- other: all other seconds of these processes.

A process that a test starts belongs to the test that runs at this moment, also if a fixture of a session starts it. The
column "waits" is the wall time of the tests of a file in which neither pytest nor a process that it has waited for used
a core. It is a lower bound, because several processes can run at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from attrs import define, field

FOLDER = "PURERL_TEST_TIME"
"""Environment variable: the folder in which every process writes what it has measured."""

# Imported by each process of Python before anything else. Threads import too: each has its own clock.
_SITECUSTOMIZE = f"""
import json, os, sys, threading, time
from importlib import _bootstrap

folder, test = os.environ.get("{FOLDER}"), os.environ.get("PYTEST_CURRENT_TEST")
if folder and test:
    local, find_and_load, seconds = threading.local(), _bootstrap._find_and_load, [0.0, os.getpid()]

    def timed(name, import_):
        if getattr(local, "inside", False):
            return find_and_load(name, import_)
        local.inside, start = True, time.thread_time()
        try:
            return find_and_load(name, import_)
        finally:
            local.inside, used = False, time.thread_time() - start
            if seconds[1] != os.getpid():
                seconds[:] = 0.0, os.getpid()
            seconds[0] += used
            if used > 0.02:
                with open(f"{{folder}}/import-{{os.getpid()}}.json", "w") as file:
                    json.dump([test, seconds[0]], file)

    _bootstrap._find_and_load = timed
"""


@define
class Cost:
    """Seconds of one test, or of several."""

    tests: int = 0
    wall: float = 0.0
    own: float = 0.0
    children: float = 0.0
    imports: float = 0.0
    processes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, name) + getattr(other, name) for name in Cost.__annotations__))

    @property
    def cpu(self) -> float:
        return self.own + self.children

    @property
    def waits(self) -> float:
        return max(0.0, self.wall - self.cpu)


@define
class Recorder:
    """Writes the seconds of each test of one process to a file, as a plugin of pytest."""

    path: Path
    start: os.times_result = field(factory=os.times)
    lines: list[str] = field(factory=list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = os.times()
        result = yield
        self.lines.append(json.dumps([item.nodeid, *_difference(before, os.times())]))
        return result

    def pytest_unconfigure(self) -> None:
        whole = ["", *_difference(self.start, os.times())]
        self.path.write_text("\n".join([*self.lines, json.dumps(whole)]), encoding="utf-8")


def _difference(before: os.times_result, after: os.times_result) -> tuple[float, float, float]:
    """Seconds of wall time, of this process, and of processes that it has waited for."""
    own = after.user + after.system - before.user - before.system
    children = after.children_user + after.children_system - before.children_user - before.children_system
    return after.elapsed - before.elapsed, own, children


def pytest_configure(config: pytest.Config) -> None:
    """Register a `Recorder`; the process that only hands out tests has none."""
    if folder := os.environ.get(FOLDER):
        distributes = getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput")
        if not distributes:
            config.pluginmanager.register(Recorder(Path(folder, f"tests-{os.getpid()}.jsonl")))


def run_tests(arguments: list[str], folder: Path) -> int:
    """Run pytest with `arguments`; all its processes write to `folder`. Return the exit status."""
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE, encoding="utf-8")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    settings = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", FOLDER: str(folder), "PYTHONPATH": path}
    command = [sys.executable, "-m", "pytest", "-p", "benchmarks.test_time", *arguments]
    return subprocess.run(command, env=os.environ | settings, check=False).returncode


def read_costs(folder: Path) -> tuple[dict[str, Cost], float]:
    """The cost of each test that has run, and the CPU seconds of the processes of pytest outside of tests."""
    costs: defaultdict[str, Cost] = defaultdict(Cost)
    outside = 0.0
    for path in folder.glob("tests-*.jsonl"):
        *tests, (_, _, whole, _) = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        for name, wall, own, children in tests:
            costs[name] += Cost(1, wall, own, children)
        outside += whole - sum(own for _, _, own, _ in tests)
    for path in folder.glob("import-*.json"):
        text = path.read_text(encoding="utf-8")
        if text:  # a process that is killed while it writes leaves an empty file
            name, seconds = json.loads(text)
            costs[name.rpartition(" ")[0]] += Cost(imports=seconds, processes=1)
    return dict(costs), outside


def by_file(costs: dict[str, Cost]) -> dict[str, Cost]:
    """The sum of `costs` for each file."""
    files: defaultdict[str, Cost] = defaultdict(Cost)
    for name, cost in costs.items():
        files[name.partition("::")[0]] += cost
    return dict(files)


def table(costs: dict[str, Cost], rows: int) -> Iterator[str]:
    """The `rows` largest `costs` as lines of a Markdown table."""
    yield "| | tests | CPU s | in pytest | in children | imports of children | children | wall s | waits |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, cost in sorted(costs.items(), key=lambda pair: -pair[1].cpu)[:rows]:
        seconds = (cost.cpu, cost.own, cost.children, cost.imports)
        columns = (name, cost.tests, *(f"{each:.1f}" for each in seconds), cost.processes)
        yield "| " + " | ".join(map(str, (*columns, f"{cost.wall:.1f}", f"{cost.waits:.1f}"))) + " |"


def report(costs: dict[str, Cost], outside: float, wall: float, rows: int) -> Iterator[str]:
    """The tables: by cause, by folder, by file, and the tests that cost most."""
    whole = sum(costs.values(), Cost())
    causes = Counter(
        tests=whole.own, collection=outside, imports=whole.imports, other=max(0.0, whole.children - whole.imports)
    )
    yield f"{whole.tests} tests, {sum(causes.values()):.0f} CPU seconds, {wall:.0f} seconds of wall time.\n"
    yield "| cause | CPU s |\n|---|---|"
    yield from (f"| {name} | {seconds:.0f} |" for name, seconds in causes.most_common())
    folders = {name: "/".join(name.split("/")[:2]) for name in by_file(costs)}
    totals: defaultdict[str, Cost] = defaultdict(Cost)
    for name, cost in by_file(costs).items():
        totals[folders[name] if "/" in folders[name] else name] += cost
    for title, part in (("folder", dict(totals)), ("file", by_file(costs)), ("test", costs)):
        yield f"\n## By {title}\n"
        yield from table(part, rows)


def main(arguments: Iterable[str], output: Path | None, rows: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        start = time.monotonic()
        status = run_tests(list(arguments), Path(name))
        text = "\n".join(report(*read_costs(Path(name)), time.monotonic() - start, rows)) + "\n"
    if output:
        output.write_text(text, encoding="utf-8")
    print(text)
    return status


_OF_TESTS = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "-m"]
_OF_TESTS += ["not slow and not training and not soak and not parallel and not families and not real", "-q"]

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="a file for the table")
    parser.add_argument("--rows", type=int, default=60, help="rows of each table")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    given = parser.parse_args()
    sys.exit(main(given.pytest or _OF_TESTS, given.output, given.rows))
