"""Python source code that is read and not run.

Importing a module runs it. The functions here only read its text: whether a name exists, the parameters of a function,
the fields of a settings class. So a mistake is reported before torch is imported, and a configuration
from somebody else can be checked without running code that it names.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from inspect import Parameter, Signature
from pathlib import Path

__all__ = [
    "config_fields",
    "definition",
    "exists",
    "find_source",
    "imported_files",
    "imported_modules",
    "is_of_python",
    "signature_of",
]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = (ast.If, ast.Try, ast.With)


def find_source(module: str) -> Path | None:
    """The file with the source code of `module`, a dotted name or the path of a file. No package is imported.

    None if there is no such module, or if it has no source code in a file.

    >>> find_source("purerl.errors").name, find_source("purerl").name, find_source("no_such_package.module")
    ('errors.py', '__init__.py', None)
    """
    if module.endswith(".py"):
        return Path(module) if Path(module).is_file() else None
    spec = _find(module)
    origin = Path(spec.origin) if spec and spec.origin else None
    return origin if origin is not None and origin.suffix == ".py" and origin.is_file() else None


def is_of_python(module: str) -> bool:
    """Whether `module`, a dotted name or the path of a file, is part of Python itself. No package is imported.

    A module in the working directory may have the name of one of Python's.

    >>> is_of_python("shutil"), is_of_python("builtins"), is_of_python("math"), is_of_python("purerl.errors")
    (True, True, True, False)
    """
    root = module.partition(".")[0]
    if module.endswith(".py") or root not in sys.stdlib_module_names:
        return False
    path = find_source(root)
    return path is None or path.is_relative_to(sysconfig.get_path("stdlib"))


def exists(module: str) -> bool:
    """Whether there is the module `module`, a dotted name or the path of a file. No package is imported.

    >>> exists("math"), exists("purerl.no_such_module")
    (True, False)
    """
    return Path(module).is_file() if module.endswith(".py") else _find(module) is not None


def _find(module: str) -> ModuleSpec | None:
    first, *rest = module.split(".")
    try:
        spec = find_spec(first)
    except (ImportError, ValueError):
        return None
    for depth in range(1, len(rest) + 1):
        places = spec.submodule_search_locations if spec else None
        spec = PathFinder.find_spec(".".join([first, *rest[:depth]]), places) if places else None
    return spec


def definition(path: Path, name: str) -> ast.stmt | None:
    """The last statement at the top level of the file at `path` that defines, assigns or imports `name`.

    None if there is none; also if the file is not valid Python. ``from module import *`` may define any name.
    """
    first, *rest = name.split(".")
    found = [statement for statement in _statements(_tree(path).body) if {first, "*"} & _names(statement)]
    for part in rest:
        inner = found[-1].body if found and isinstance(found[-1], ast.ClassDef) else []
        found = [statement for statement in inner if part in _names(statement)]
    return found[-1] if found else None


def signature_of(path: Path, name: str) -> Signature | None:
    """The signature of the function `name` in the file at `path`; None unless it is defined there, undecorated.

    A default value is ``...``, because it is not computed.

    >>> str(signature_of(find_source("purerl.rewards.exact"), "exact_match") or "decorated")
    'decorated'
    >>> str(signature_of(find_source("purerl.errors"), "nearest"))
    '(name, known)'
    """
    node = definition(path, name)
    if not isinstance(node, _FUNCTIONS) or node.decorator_list:
        return None
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    kinds = [Parameter.POSITIONAL_ONLY] * len(arguments.posonlyargs)
    kinds += [Parameter.POSITIONAL_OR_KEYWORD] * len(arguments.args)
    parameters = [
        Parameter(one.arg, kind, default=Parameter.empty if index < required else ...)
        for index, (one, kind) in enumerate(zip(positional, kinds, strict=True))
    ]
    if arguments.vararg:
        parameters.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(Parameter(one.arg, Parameter.KEYWORD_ONLY, default=... if default else Parameter.empty))
    if arguments.kwarg:
        parameters.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(parameters)


def config_fields(path: Path, name: str = "Config") -> set[str] | None:
    """The fields of the class `name` in the file at `path`, with those that it inherits; None if they are not known.

    >>> sorted(config_fields(find_source("purerl.algos.dapo")))
    ['clip_high', 'clip_low']
    """
    node = definition(path, name)
    if isinstance(node, ast.ImportFrom):
        source = find_source(node.module or "") if not node.level else None
        original = next((alias.name for alias in node.names if alias.asname == name), name)
        return config_fields(source, original) if source and source != path else None
    if not isinstance(node, ast.ClassDef):
        return None
    annotated = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    fields = {ast.unparse(one.target) for one in annotated if "ClassVar" not in ast.unparse(one.annotation)}
    for base in node.bases:
        prefix, _, original = ast.unparse(base).rpartition(".")
        module = imported_modules(path).get(prefix)
        source = path if not prefix else find_source(module) if module else None
        inherited = config_fields(source, original) if source and (source, original) != (path, name) else None
        if inherited is None:
            return None
        fields |= inherited
    return fields


def imported_modules(path: Path) -> dict[str, str]:
    """The imports of the file at `path` at its top level: address by name.

    >>> imported_modules(find_source("purerl.recipes.chat"))["trainer"]
    'purerl.backends.hf.trainer'
    """
    found = {}
    for statement in _statements(_tree(path).body):
        if isinstance(statement, ast.Import):
            found |= {alias.asname or alias.name: alias.name for alias in statement.names}
        if isinstance(statement, ast.ImportFrom) and not statement.level:
            found |= {alias.asname or alias.name: f"{statement.module}.{alias.name}" for alias in statement.names}
    return found


def imported_files(path: Path) -> dict[str, Path]:
    """The file at `path`, and all files below its folder that it imports, directly or by each other.

    The keys are the paths relative to the folder from which the file is imported. Its folder is that of the outermost
    package, if it is part of one. Imports in functions count; those by `importlib.import_module` are not found. Empty
    for a file of purerl, of the standard library, or of an installed package.

    >>> imported_files(Path(ast.__file__))
    {}
    """
    path = path.resolve()
    if _is_installed(path):
        return {}
    origin = path.parent
    while (origin / "__init__.py").is_file():
        origin = origin.parent
    top = path.parent if origin == path.parent else origin / path.relative_to(origin).parts[0]
    folders = {path.parent, origin, *origin.parents}  # a package without __init__.py is imported from one above
    found: dict[Path, None] = {}
    remaining = [path, *_files_of(origin, path.relative_to(origin).parent.parts)]
    while remaining:
        file = remaining.pop()
        if file not in found:
            found[file] = None
            imports = [each for each in _imported(file, folders) if each.is_relative_to(top)]
            remaining += [each for each in imports if not _is_installed(each)]
    return {str(file.relative_to(origin)): file for file in sorted(found)}


_PACKAGES = Path(__file__).resolve().parents[1]
_LIBRARIES = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]


def _is_installed(path: Path) -> bool:
    """Whether the file at `path` belongs to purerl, to Python, or to an installed package."""
    folders = (_PACKAGES, *_LIBRARIES)
    return any(map(path.is_relative_to, folders)) or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _imported(path: Path, folders: set[Path]) -> Iterator[Path]:
    """The files that the file at `path` may import, if absolute names are looked up in `folders`."""
    for level, name in _import_statements(path, path.stat().st_mtime_ns):
        for place in {path.parents[level - 1]} if level else folders:
            yield from _files_of(place, tuple(name.split(".")))


@cache
def _import_statements(path: Path, changed: int) -> tuple[tuple[int, str], ...]:
    """Each name that the file at `path` imports, and the number of dots before it."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(_parse(path, changed)):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.level, f"{node.module or ''}.{alias.name}".lstrip(".")) for alias in node.names]
    return tuple(dict.fromkeys(found))


def _files_of(folder: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    """The files of the module with the name `parts` in `folder`, and of the packages that contain it."""
    for length in range(1, len(parts) + 1):
        *parents, last = parts[:length]
        for file in (folder.joinpath(*parents, f"{last}.py"), folder.joinpath(*parents, last, "__init__.py")):
            if file.is_file():
                yield file


@cache
def _parse(path: Path, changed: int) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _tree(path: Path) -> ast.Module:
    return _parse(path, path.stat().st_mtime_ns)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements in `body`, and in the blocks in it, except those of functions and classes."""
    for statement in body:
        yield statement
        if isinstance(statement, _BLOCKS):
            handlers = [inner for handler in getattr(statement, "handlers", ()) for inner in handler.body]
            more = [*getattr(statement, "orelse", ()), *getattr(statement, "finalbody", ())]
            yield from _statements([*statement.body, *handlers, *more])


def _names(statement: ast.stmt) -> set[str]:
    """The names that `statement` binds."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {statement.name}
        case ast.Import() | ast.ImportFrom():
            return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
        case ast.Assign() | ast.AnnAssign():
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        case _:
            return set()
