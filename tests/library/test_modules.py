"""Rules that hold for every file: each test names all files that break its rule.

They are in one file because they share the syntax trees. The files beside this one test that the rules find what breaks
them: test_imports.py, test_devices.py, test_unpickling.py and test_temporary_files.py.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest

from purerl import plugins
from tests.library import device_rules, import_rules, sources, temporary_rules
from tests.library.import_rules import imports, package_of
from tests.library.unpickling_rules import PERMITTED, names_in

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _files(*folders: str) -> list[Path]:
    """The Python files in `folders`, without those that Sphinx has copied."""
    built, paths = ROOT / "docs" / "_build", (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in paths if not path.is_relative_to(built))


MODULES = _files("purerl", "cli")
ALGORITHMS = _files("purerl/algos")


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module", autouse=True)
def shared() -> Iterator[None]:
    with sources.shared():
        yield
    _text.cache_clear()


def _none(problems: Iterable[str]) -> None:
    """Fail with a line for each problem: pytest shortens a list."""
    lines = [*problems]
    assert not lines, "\n".join(["", *lines])


# --- modules and functions ---------------------------------------------------------------------------------------


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("cli.").removesuffix(".__init__")


def _functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in sources.nodes(_text(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _sort_key(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, as ruff sorts them (RUF022)."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


def _problems_of_all(path: Path) -> Iterator[str]:
    module = import_module(_module(path))
    exported: Sequence[str] | None = getattr(module, "__all__", None)
    if exported is None:
        if path.name != "__init__.py" or _functions(path):
            yield "a module must define __all__"
        return
    yield from (f"{name} does not exist" for name in exported if not hasattr(module, name))
    if list(exported) != sorted(set(exported), key=_sort_key):
        yield f"in another order, or twice: {exported}"


def test_all_is_sorted_and_its_names_exist() -> None:
    files = (path for path in MODULES if path.name != "__main__.py")
    _none(f"{_name(path)}: {problem}" for path in files for problem in _problems_of_all(path))


def test_files_are_short() -> None:
    lengths = {_name(path): len(_text(path).splitlines()) for path in MODULES}
    _none(f"{name}: {lines} lines" for name, lines in lengths.items() if lines > 400)


def test_functions_are_short() -> None:
    functions = (
        (path, node, (node.end_lineno or 0) - node.lineno + 1) for path in MODULES for node in _functions(path)
    )
    _none(f"{_name(path)}: {node.name}: {lines} lines" for path, node, lines in functions if lines > 60)


def test_algorithms_have_no_device_transfer_and_no_print() -> None:
    forbidden = {"item", "cpu", "tolist", "numpy", "print"}
    calls = (
        (path, node.func) for path in ALGORITHMS for node in sources.nodes(_text(path)) if isinstance(node, ast.Call)
    )
    names = ((path, getattr(function, "attr", getattr(function, "id", ""))) for path, function in calls)
    _none(f"{_name(path)}: {name}" for path, name in names if name in forbidden)


def test_algorithms_have_no_bool_argument() -> None:
    functions = ((path, node.args) for path in ALGORITHMS for node in _functions(path))
    arguments = ((path, each) for path, a in functions for each in (*a.posonlyargs, *a.args, *a.kwonlyargs))
    annotated = ((path, each.arg, each.annotation) for path, each in arguments if each.annotation)
    _none(f"{_name(path)}: {name}" for path, name, type_ in annotated if ast.unparse(type_) == "bool")


def test_algorithms_are_built_with_keywords() -> None:
    calls = ((path, node) for path in ALGORITHMS for node in sources.nodes(_text(path)) if isinstance(node, ast.Call))
    _none(
        f"{_name(path)}:{call.lineno}: Algorithm({ast.unparse(call.args[0])}, ...)"
        for path, call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "Algorithm" and call.args
    )


# --- imports -----------------------------------------------------------------------------------------------------


def test_package_follows_the_import_rules() -> None:
    _none(import_rules.violations(ROOT / "purerl"))


def test_loop_does_not_name_an_engine() -> None:
    """The loop neither imports a backend nor contains the name of one as a string."""
    engines = {*plugins.names("trainer"), *plugins.names("generator")}
    for path in (ROOT / "purerl" / "loop").glob("*.py"):
        modules = {imported.module for imported in imports(_text(path), "purerl.loop")}
        assert not [name for name in modules if name.startswith("purerl.backends.") and name.split(".")[2] in engines]
        constants = {node.value for node in sources.nodes(_text(path)) if isinstance(node, ast.Constant)}
        assert not engines & constants, path


def test_every_package_is_in_a_layer() -> None:
    entries = [path for path in (ROOT / "purerl").iterdir() if path.suffix == ".py" or list(path.glob("*.py"))]
    packages = {path.stem for path in entries} - {"__init__"}
    assert {name for name in packages if package_of(("purerl", name)) != name} == set()


def _packages(requirements: Sequence[str]) -> set[str]:
    return {re.split(r"[\[<>=~!; ]", requirement)[0].replace("-", "_") for requirement in requirements}


def test_dependencies_are_the_imported_packages() -> None:
    """Also those in functions. The files of an engine's processes are imported in another environment."""
    extras = [_packages(names) for extra, names in PROJECT["optional-dependencies"].items() if extra != "dev"]
    optional = {"mlflow", "PIL", "megatron"}.union(*extras)  # mlflow-skinny, pillow and megatron-core
    engine = ROOT / "purerl/backends/transfer/engine"
    modules = {each.module for path in MODULES if engine not in path.parents for each in imports(_text(path), "purerl")}
    others = {module.partition(".")[0] for module in modules} - {*sys.stdlib_module_names, "purerl", "purerl_cli"}
    others = {"pyyaml" if name == "yaml" else name for name in others}
    assert others - optional == _packages(PROJECT["dependencies"])


# --- names -------------------------------------------------------------------------------------------------------


def test_only_the_device_modules_name_a_kind_of_accelerator() -> None:
    _none(device_rules.violations(ROOT))


def test_every_device_module_and_literal_is_needed() -> None:
    for file in device_rules.DEVICE_MODULES:
        assert list(device_rules.named_devices(_text(ROOT / file))), file
    for file, literals in device_rules.LITERALS.items():
        assert {name for _, name in device_rules.named_devices(_text(ROOT / file))} == literals


def test_only_modules_that_are_named_have_temporary_folders() -> None:
    found = {_name(path): [*temporary_rules.uses(_text(path))] for path in MODULES}
    _none(f"{name}: {names}" for name, names in found.items() if names and name not in temporary_rules.ALLOWED)
    _none(f"{name} is named without need" for name in temporary_rules.ALLOWED if not found.get(name))


def test_names_that_make_code_of_bytes_are_used_only_where_they_are_permitted() -> None:
    """An entry of the list for what a module does not use anymore fails too."""
    found = {_name(path): names_in(_text(path)) for path in _files("purerl", "cli", "benchmarks", "docs", "examples")}
    permitted = {name: permission.names for name, permission in PERMITTED.items()}
    pairs = {name: (found.get(name, set()), permitted.get(name, set())) for name in found | permitted}
    _none(f"{name}: uses {used}, may use {may}" for name, (used, may) in pairs.items() if used != may)
