"""Settings in a script that uses TRL, read from its text: the script is not run.

The script must create one trainer. Its settings are the arguments of the trainer, and those of the configurations that
are passed to it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from purerl.config.aliases.answers import defaults
from purerl.errors import ConfigError
from purerl.porting.outcomes import Unknown
from purerl.porting.trl.evaluate import Evaluator
from purerl.porting.trl.scopes import Scope, is_main_guard, nodes_in_order
from purerl.porting.trl.values import Function, Instance

__all__ = ["METHODS", "read_script"]

METHODS = ("GRPO", "SFT", "DPO", "KTO", "Reward")
"""The trainers of TRL that are known, without "Trainer"."""

_CONFIGS = {f"{method}Config": f"{method}Config" for method in METHODS}
_OTHERS = {"TrainingArguments": "TrainingArguments", "LoraConfig": "LoraConfig"}
_OLD = {"tokenizer": "processing_class"}


def read_script(path: Path) -> tuple[dict[str, Any], str]:
    """The settings in the script at `path`, by name, and the method: "GRPO", "SFT", ...

    Raises: ConfigError if the file cannot be read or is no Python, or does not create exactly one trainer of TRL.
    """
    tree = _parse(path)
    names = _names(tree, path.as_posix())
    method, call = _trainer(tree, names, path)
    function = _function_around(tree, call)
    classes = _classes(names)
    evaluator = Evaluator(path.as_posix(), Scope(tree, function), names, classes)
    trainer = f"{method}Trainer"
    positional = tuple(name.partition(".")[2] for name in defaults("trl") if name.startswith(f"{trainer}."))
    arguments = evaluator.arguments(call, call.lineno, positional)
    found: dict[str, Any] = {f"{trainer}.{_OLD.get(name, name)}": value for name, value in arguments.items()}
    found |= _fields(arguments.get("args"), f"{method}Config", path)
    peft = arguments.get("peft_config")
    found |= _fields(peft, "LoraConfig", path) if isinstance(peft, Instance) else {}
    return _without_stars(found), method


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read", got=str(error), need="a script in Python") from error


def _names(tree: ast.Module, file: str) -> dict[str, Function]:
    """The functions and classes that the script imports and defines, by the names that it uses for them."""
    runs_all = _runs_training(tree)
    found: dict[str, Function] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name] = Function(alias.name, None, runs_all=False)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = Function(f"{node.module}:{alias.name}", None, runs_all=False)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = Function(f"{file}:{node.name}", None, runs_all=runs_all)
    return found


def _runs_training(tree: ast.Module) -> bool:
    """Whether the module creates a trainer or trains when it is imported."""
    body = [node for node in tree.body if not is_main_guard(node)]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    calls = (each for node in body if not isinstance(node, functions) for each in ast.walk(node))
    names = {_called(each) for each in calls if isinstance(each, ast.Call)}
    return "train" in names or any(name.endswith("Trainer") for name in names)


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _classes(names: Mapping[str, Function]) -> dict[str, str]:
    """The names of the classes of configurations in the script: those of the libraries, and those of its imports."""
    known = _CONFIGS | _OTHERS
    renamed = {name: known.get(function.address.rpartition(":")[2], "") for name, function in names.items()}
    return known | {name: cls for name, cls in renamed.items() if cls}


def _trainer(tree: ast.Module, names: Mapping[str, Function], path: Path) -> tuple[str, ast.Call]:
    """The method of the trainer that the script creates, and the call that creates it."""
    known = {f"{method}Trainer": method for method in METHODS}
    known |= {name: known[cls] for name, each in names.items() if (cls := each.address.rpartition(":")[2]) in known}
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    for node in classes:  # its own subclasses
        for base in node.bases:
            cls = getattr(base, "id", getattr(base, "attr", ""))
            known |= {node.name: known[cls]} if cls in known else {}
    calls = [node for node in nodes_in_order(tree) if isinstance(node, ast.Call) and _called(node) in known]
    if len(calls) != 1:
        lines = ", ".join(f"{_called(call)} on line {call.lineno}" for call in calls) or "none"
        do = "copy what belongs to one trainer into a file" if calls else "name the file that creates it"
        need = f"a script that creates one of {', '.join(f'{method}Trainer' for method in METHODS)}"
        raise ConfigError(f"trainers in {str(path)!r}", got=lines, need=need, do=do)
    return known[_called(calls[0])], calls[0]


def _function_around(tree: ast.Module, call: ast.Call) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost function in which `call` is."""
    around = [
        node
        for node in nodes_in_order(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and call in ast.walk(node)
    ]
    return around[-1] if around else None


def _fields(value: Any, cls: str, path: Path) -> dict[str, Any]:
    """The fields of the configuration `value`; those of TrainingArguments too have the name `cls`."""
    if value is None:
        return {}
    if not isinstance(value, Instance):
        got = str(value) if isinstance(value, Unknown) else type(value).__name__
        need = f"a call of {cls} in the script"
        do = "name the YAML file of TRL's command instead, if the configuration is in one"
        raise ConfigError(f"the configuration of the trainer in {str(path)!r}", got=got, need=need, do=do)
    return {f"{cls}.{name}": each for name, each in value.arguments.items()}


def _without_stars(found: Mapping[str, Any]) -> dict[str, Any]:
    """`found`, in which arguments in ``**`` must be known. Raises ConfigError."""
    errors = [
        ConfigError(name, got=str(value), need="arguments that are written in the script", do="write them one by one")
        for name, value in found.items()
        if name.endswith(".**")
    ]
    if errors:
        raise ConfigError("\n".join(map(str, errors)))
    return dict(found)
