"""The sessions that need other libraries, and whether their files have changed since they passed.

    python -m tests.closures [SESSION ...]      print those of the sessions that have to run; without names: of all
    python -m tests.closures --passed SESSION   record that a session has passed with the files as they are

The files of a session are those of its tests and all that these import, also in functions; modules that they name in
texts; the settings of packages; and the recipes of environments. tests/passed.json has a digest of these files for each
session, from the last time that it passed. Comments and docstrings do not count. `nox -s SESSION` writes the file if
every test has passed, and .ci/run leaves out the sessions whose digest is the same. `nox -s nightly` runs all.

While a session runs, this module is a plugin of pytest: the session fails if it has imported a file of this project
that is not in its closure.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import functools
import hashlib
import json
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.library.import_rules import imports

if TYPE_CHECKING:
    import pytest

__all__ = ["SESSIONS", "VARIABLE", "closure", "digest", "must_run", "record"]

ROOT = Path(__file__).parents[1]
PASSED = ROOT / "tests" / "passed.json"
VARIABLE = "PURERL_TEST_CLOSURE"
"""Environment variable: the session that runs."""

_OF_PRESETS = "purerl/algos/modifiers"  # a run looks for the preset that it equals, and presets name some modifiers
SESSIONS = {
    "adapters": ("tests/adapters", "examples/mcp_server"),
    "megatron": ("tests/megatron", _OF_PRESETS),
    "oracle": ("tests/oracle", "purerl/algos"),  # it imports every algorithm
    "ray": ("tests/ray", _OF_PRESETS),
    "sglang": ("tests/engines", _OF_PRESETS),
    "vllm": ("tests/engines", _OF_PRESETS),
}
"""The folder of the tests of each session, and folders whose modules they import without a name."""

_LIBRARY = ("__init__", "import_rules", "sources")
# Part of each closure. They name files that they do not import, and what they import is here.
_TOOLS = ("noxfile.py", "tests/closures.py", *(f"tests/library/{name}.py" for name in _LIBRARY))
_ALWAYS = (*_TOOLS, "constraints/default.txt", "tests/conftest.py", "tests/forks.py")
_PACKAGES = ("purerl", "purerl_cli", "tests", "benchmarks")
# Folders whose modules are found by a short name, such as kind = "grpo".
_PLUGINS = (
    "algos", "algos/modifiers", "backends", "rewards/kinds", "monitoring/trackers", "adapters", "recipes",
    "config/presets",
)  # fmt: skip


def closure(*folders: str) -> set[Path]:
    """The files in `folders`, and all that they depend on."""
    found: set[Path] = set()
    inside = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    remaining = [*(path for path in inside if path.suffix == ".py"), *(ROOT / name for name in _ALWAYS)]
    while remaining:
        path = remaining.pop()
        if path not in found:
            found.add(path)
            remaining += _named_by(path)
    data = {other for path in found for other in path.parent.iterdir() if path.name == "__init__.py"}
    data = {path for path in data.union(inside) if path.is_file() and path.suffix not in (".py", ".pyc")}
    return found | data - {PASSED}


@functools.cache
def _named_by(path: Path) -> tuple[Path, ...]:
    """The files that a file imports, or names in a text."""
    relative = path.relative_to(ROOT / "cli" if path.is_relative_to(ROOT / "cli") else ROOT)
    if path.suffix != ".py" or relative.as_posix() in _TOOLS:
        return ()
    text = path.read_text(encoding="utf-8")
    names = {each.module for each in imports(text, ".".join(relative.parent.parts))}
    texts = {node.value for node in ast.walk(ast.parse(text)) if _is_text(node)}
    names |= {each.partition(":")[0] for each in texts if each.startswith(_PACKAGES)}
    modules = {".".join(name.split(".")[:length]) for name in names for length in range(1, 2 + name.count("."))}
    plugins = _plugins() if relative.parts[0] == "tests" else {}
    short = [found for each in texts for found in plugins.get(each, ())]
    return (*short, *(found for module in modules if (found := _file_of(module))))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200


@functools.cache
def _file_of(module: str) -> Path | None:
    """The file of a module of this project; None if there is none."""
    if not module.startswith(_PACKAGES):
        return None
    path = (ROOT / "cli" if module.startswith("purerl_cli") else ROOT).joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


@functools.cache
def _plugins() -> dict[str, list[Path]]:
    """The files that a short name may mean."""
    found: dict[str, list[Path]] = {}
    for folder in _PLUGINS:
        for path in sorted((ROOT / "purerl" / folder).iterdir()):
            files = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
            found.setdefault(path.stem, []).extend(files)
    return found


@functools.cache
def _content(path: Path) -> str:
    """A digest of a file; of its code only, if it is Python."""
    data = path.read_bytes()
    if path.suffix == ".py":
        tree = ast.parse(data)
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and _is_docstring(body[0].value):
                del body[0]
        data = ast.dump(tree).encode()
    return hashlib.sha256(data).hexdigest()


def _is_docstring(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def digest(files: Iterable[Path]) -> str:
    """A digest of the names and contents of `files`, and of the packages that the project needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = [project["dependencies"], project["optional-dependencies"]]
    contents = sorted((path.relative_to(ROOT).as_posix(), _content(path)) for path in files)
    return hashlib.sha256(json.dumps([packages, contents]).encode()).hexdigest()


def must_run(sessions: Iterable[str]) -> Iterator[str]:
    """Those of `sessions` whose files have changed since they passed, and those without a closure."""
    passed = json.loads(PASSED.read_text(encoding="utf-8")) if PASSED.exists() else {}
    for session in sessions:
        if session not in SESSIONS or passed.get(session) != digest(closure(*SESSIONS[session])):
            yield session


def record(session: str) -> None:
    """Write the digest of the files of `session`, which has passed. Others may end at the same time."""
    found = digest(closure(*SESSIONS[session]))
    with PASSED.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        passed = json.loads(file.read() or "{}") | {session: found}
        file.truncate(0)
        file.write(json.dumps(passed, indent=2, sort_keys=True) + "\n")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let the session fail if a module of this project is loaded that its closure does not have."""
    name = os.environ.get(VARIABLE)
    if name is None or session.exitstatus != 0:
        return
    files = {Path(file) for module in list(sys.modules.values()) if (file := _loaded_from(module))}
    missing = sorted(str(path.relative_to(ROOT)) for path in files & _own_files() - closure(*SESSIONS[name]))
    if missing:
        sys.stderr.write(f"\ntests/closures.py: {name} imports {', '.join(missing)}, which its closure does not have\n")
        session.exitstatus = 1


def _loaded_from(module: Any) -> str | None:
    return getattr(module, "__file__", None)


def _own_files() -> set[Path]:
    return {path for folder in ("purerl", "cli", "tests") for path in (ROOT / folder).rglob("*.py")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sessions", nargs="*", default=sorted(SESSIONS))
    parser.add_argument("--passed", metavar="SESSION", choices=sorted(SESSIONS))
    given = parser.parse_args()
    if given.passed:
        record(given.passed)
    else:
        print(*must_run(given.sessions))  # noqa: T201 -- the result
