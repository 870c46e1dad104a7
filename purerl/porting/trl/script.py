"""Settings in a script that uses TRL, read from its text: the script is not run.

The script must create one trainer. Its settings are the arguments of the trainer, and those of the configurations that
are passed to it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from purerl.config.aliases.answers import defaults
from purerl.errors import ConfigError
from purerl.porting.outcomes import Unknown
from purerl.porting.trl.evaluate import Evaluator
from purerl.porting.trl.methods import METHODS
from purerl.porting.trl.old_names import argument_of_config, current_argument, current_field
from purerl.porting.trl.scopes import Scope, is_main_guard, nodes_in_order, options_of
from purerl.porting.trl.values import Adapted, Function, Instance

__all__ = ["Script", "read_script"]

_CONFIGS = {f"{method}Config": f"{method}Config" for method in METHODS}
_OTHERS = {"TrainingArguments": "TrainingArguments", "LoraConfig": "LoraConfig"}
_PARSERS = ("HfArgumentParser", "TrlParser")


class Script(NamedTuple):
    """The settings in a script, by name.

    method      of its trainer: "GRPO", "SFT", ...
    is_parsed   whether its configuration comes from the arguments of the command line
    defaults    values of the script that are defaults of arguments of the command line, as text
    """

    settings: dict[str, Any]
    method: str
    is_parsed: bool
    defaults: tuple[str, ...]


def read_script(path: Path) -> Script:
    """The settings in the script at `path`, and its method.

    Raises: ConfigError if the file cannot be read or is no Python, or does not create exactly one trainer of TRL.
    """
    tree = _parse(path)
    names = _names(tree, path.as_posix())
    method, call = _trainer(tree, names, path)
    function = _function_around(tree, call)
    classes = _classes(names)
    runs_all = _runs_training(tree)
    options = options_of(tree)
    evaluator = Evaluator(path.as_posix(), Scope(tree, function), names, classes, options, runs_all=runs_all)
    trainer = f"{method}Trainer"
    positional = tuple(name.partition(".")[2] for name in defaults("trl") if name.startswith(f"{trainer}."))
    arguments = evaluator.arguments(call, call.lineno, positional)
    moved = argument_of_config(arguments)
    found: dict[str, Any] = {f"{method}Config.{name}": value for name, value in moved.items()}
    found |= {
        f"{trainer}.{current_argument(name)}": value
        for name, value in arguments.items()
        if current_field(name) not in moved
    }
    adapted, peft = arguments.get("model"), arguments.get("peft_config")
    if isinstance(adapted, Adapted):
        found[f"{trainer}.model"], peft = adapted.model, adapted.adapter
    found |= _fields(peft, "LoraConfig", path) if isinstance(peft, Instance) else {}
    is_parsed = isinstance(arguments.get("args"), Unknown) and any(parser in names for parser in _PARSERS)
    if is_parsed:
        found = {name: value for name, value in found.items() if not _is_parsed(name, value)}
    else:
        found |= _fields(arguments.get("args"), f"{method}Config", path)
    return Script(_without_stars(found), method, is_parsed, tuple(dict.fromkeys(evaluator.defaults)))


def _is_parsed(name: str, value: Any) -> bool:
    """Whether an argument of the trainer is one that TRL's own scripts make from parsed arguments."""
    argument = name.partition(".")[2]
    return argument == "args" or (argument in ("model", "peft_config") and isinstance(value, Unknown))


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
        others = [
            each for each in nodes_in_order(tree) if isinstance(each, ast.Call) and _called(each)[-7:] == "Trainer"
        ]
        lines = ", ".join(f"{_called(call)} on line {call.lineno}" for call in calls or others) or "none"
        do = "name the file that creates it, or the command that starts it"
        do = "copy what belongs to one trainer into a file" if calls else do
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
        do = f"assign {cls}(...) to a name before the trainer is created; if it comes from the command line, name the "
        do += "YAML file, or the command: purerl import trl 'python train.py --FIELD VALUE'"
        raise ConfigError(f"the configuration of the trainer in {str(path)!r}", got=got, need=need, do=do)
    return {f"{cls}.{current_field(name)}": each for name, each in value.arguments.items()}


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
