"""ARCHITECTURE.md: its table of packages is that of the package, and its path of a step is that of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.library.architecture import PAGE, ROOT, entries, sentence, with_table

_FUNCTION = re.compile(r"^\d+\. `(purerl/[\w/]+\.py):([\w.]+)`", re.MULTILINE)
_LAST = "optimizer.step"


def _function(path: str, name: str) -> ast.FunctionDef:
    """The function of this qualified name in the file."""
    node: ast.AST = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for part in name.split("."):
        named = [each for each in ast.iter_child_nodes(node) if getattr(each, "name", None) == part]
        assert named, f"{path} has no {name}"
        node = named[0]
    assert isinstance(node, ast.FunctionDef), f"{name} in {path} is not a function"
    return node


def _called(function: ast.FunctionDef) -> Iterator[str]:
    """The functions that `function` calls, as they are written, and under the names that they are imported by."""
    nodes = [*ast.walk(function)]
    imports = (alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names)
    names = {alias.asname: alias.name for alias in imports if alias.asname}
    for node in nodes:
        if isinstance(node, ast.Call):
            text = ast.unparse(node.func)
            yield names.get(text, text)


def _path_of_a_step() -> list[tuple[str, str]]:
    """The functions from `purerl.train` to the last one before the optimizer: a file and a name."""
    return _FUNCTION.findall(PAGE.read_text(encoding="utf-8"))


def test_table_of_packages_is_up_to_date() -> None:
    """If not, run `python -m tests.library.architecture`."""
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page


def test_files_that_are_named_exist() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/**/*.py")}
    named = {*re.findall(r"`([\w/]+\.py)(?::[\w.]+)?`", PAGE.read_text(encoding="utf-8"))}
    assert [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)] == []


def test_every_package_has_a_sentence() -> None:
    """Also for a reader of the table, who does not see the rest of the docstring."""
    sentences = {path: sentence(path) for path in entries()}
    assert [path for path, text in sentences.items() if not text.endswith(".")] == []
    assert len({*sentences.values()}) == len(sentences)


def test_each_function_on_the_path_of_a_step_calls_the_next() -> None:
    functions = _path_of_a_step()
    assert functions[0] == ("purerl/runs/__init__.py", "train")
    following = [*(name.rpartition(".")[2] for _, name in functions[1:]), _LAST]
    for (path, name), called in zip(functions, following, strict=True):
        assert any(call == called or call.endswith(f".{called}") for call in _called(_function(path, name))), (
            f"{name} in {path} does not call {called}"
        )


def test_path_of_a_step_ends_with_the_optimizer() -> None:
    path, name = _path_of_a_step()[-1]
    assert _LAST in _called(_function(path, name))
    assert f"`{_LAST}()`" in PAGE.read_text(encoding="utf-8")


def test_calls_are_found_under_the_names_of_imports() -> None:
    tree = ast.parse("def f():\n    from a import g as h\n    h()\n    b.c()")
    [function] = tree.body
    assert isinstance(function, ast.FunctionDef)
    assert [*_called(function)] == ["g", "b.c"]
