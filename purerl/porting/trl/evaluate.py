"""Values of expressions in a script, computed from its text: constants, arithmetic, and calls that are known."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from purerl.porting.outcomes import Unknown
from purerl.porting.trl.scopes import Assignment, Scope
from purerl.porting.trl.values import Adapted, Dataset, Function, Instance, Pretrained

__all__ = ["Evaluator"]

_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: Mapping[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_}
_DTYPES = ("bfloat16", "float16", "float32", "float64")
_LOADERS = {"load_dataset", "load_from_disk"}
_ENUMERATIONS = tuple(
    f"{module}:{name}"
    for module in ("transformers", "transformers.trainer_utils", "transformers.training_args")
    for name in ("IntervalStrategy", "SaveStrategy", "SchedulerType", "OptimizerNames", "HubStrategy")
)
"""Enumerations of transformers, whose values are the names of their members in small letters."""
_FILES = (".jsonl", ".parquet", ".arrow")


class Evaluator:
    """Values of expressions in the script `file`, where `scope` holds.

    names      what the script imports and defines: names in the script, and the functions and classes that they are
    classes    names of classes whose calls are kept as an `Instance`
    options    the defaults of arguments of the command line, by name; those that were used are in `defaults`
    runs_all   whether importing the script runs the training
    """

    def __init__(
        self,
        file: str,
        scope: Scope,
        names: Mapping[str, Function],
        classes: Mapping[str, str],
        options: Mapping[str, ast.expr],
        *,
        runs_all: bool,
    ):
        self._file, self._scope, self._names, self._classes = file, scope, names, classes
        self._options, self._runs_all = options, runs_all
        self.defaults: list[str] = []

    def value(self, node: ast.expr | None, line: int) -> Any:
        """The value of `node`, in which names have the values that they have on `line`; an `Unknown` if unknown."""
        if node is None:
            return Unknown("?", f"{self._file}:{line}")
        found = self._value(node, line)
        return self._unknown(node) if found is _NOTHING else found

    def arguments(self, call: ast.Call, line: int, positional: tuple[str, ...] = ()) -> dict[str, Any]:
        """The arguments of `call` by name. Those in ``**`` whose names are not known have the name "**"."""
        found = {name: self.value(node, line) for name, node in zip(positional, call.args, strict=False)}
        for keyword in call.keywords:
            value = self.value(keyword.value, line)
            if keyword.arg is not None:
                found[keyword.arg] = value
            elif isinstance(value, Mapping):
                found |= value
            else:
                found["**"] = value
        return found

    def _unknown(self, node: ast.expr) -> Unknown:
        return Unknown(" ".join(ast.unparse(node).split()), f"{self._file}:{node.lineno}")

    def _value(self, node: ast.expr, line: int) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._name(name, line)
            case ast.Subscript():
                return self._subscript(node, line)
            case ast.Call():
                return self._call(node, line)
            case ast.Attribute():
                return self._attribute(node, line)
        return self._composed(node, line)

    def _composed(self, node: ast.expr, line: int) -> Any:
        match node:
            case ast.List() | ast.Tuple() | ast.Set():
                return [self.value(each, line) for each in node.elts]
            case ast.Dict():
                return self._dict(node, line)
            case ast.BinOp() | ast.UnaryOp():
                return self._operation(node, line)
            case ast.JoinedStr(values=parts):
                texts = [self._text(part, line) for part in parts]
                return _NOTHING if None in texts else "".join(filter(None, texts))
        return _NOTHING

    def _name(self, name: str, line: int) -> Any:
        assignment = self._scope.find(name, line)
        if assignment is None:
            return self._names.get(name, _NOTHING)
        if assignment.is_conditional or assignment.value is None:
            return _NOTHING
        if isinstance(assignment.value, ast.Lambda) and self._scope.is_of_module(name):
            return Function(f"{self._file}:{name}", None, runs_all=self._runs_all)
        value = self.value(assignment.value, assignment.line)
        if not isinstance(value, Instance):
            return value
        changes = self._scope.attributes(name, assignment.line, line)
        changed = {each.attribute: self._changed(each) for each in changes}
        return value._replace(arguments={**value.arguments, **changed})

    def _changed(self, change: Assignment) -> Any:
        """The value that an attribute has after an assignment, which may not be executed."""
        known = change.value is not None and not change.is_conditional
        return self.value(change.value, change.line) if known or change.value is None else self._unknown(change.value)

    def _dict(self, node: ast.Dict, line: int) -> Any:
        found: dict[str, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.value(item, line)
            if key is None and isinstance(value, Mapping):
                found |= value
            elif key is None or isinstance(name := self.value(key, line), Unknown | list | dict):
                return _NOTHING
            else:
                found[name] = value
        return found

    def _operation(self, node: ast.BinOp | ast.UnaryOp, line: int) -> Any:
        parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
        values = [self.value(part, line) for part in parts]
        function = (_UNARY if isinstance(node, ast.UnaryOp) else _OPERATORS).get(type(node.op))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and all(map(_is_small, values)):
            function = operator.pow
        if function is None or not all(isinstance(value, int | float | str | list) for value in values):
            return _NOTHING
        try:
            return function(*values)
        except (TypeError, ValueError, ArithmeticError):
            return _NOTHING

    def _text(self, node: ast.expr, line: int) -> str | None:
        inner = node.value if isinstance(node, ast.FormattedValue) and node.format_spec is None else node
        value = self.value(inner, line)
        return str(value) if isinstance(value, str | int | float) else None

    def _attribute(self, node: ast.Attribute, line: int) -> Any:
        first = node.value.id if isinstance(node.value, ast.Name) else ""
        if first == "torch" and node.attr in _DTYPES:
            return node.attr
        function = self._names.get(first)
        if function is None:
            return self._option(first, node, line)
        if function.address.startswith(f"{self._file}:"):
            return function._replace(address=f"{function.address}.{node.attr}")
        if ":" in function.address:
            return node.attr.lower() if function.address in _ENUMERATIONS else _NOTHING
        return function._replace(address=f"{function.address}:{node.attr}")

    def _option(self, name: str, node: ast.Attribute, line: int) -> Any:
        """The default of an argument of the command line, if `name` is what a parser has returned."""
        assignment = self._scope.find(name, line)
        call = assignment.value if assignment is not None and not assignment.is_conditional else None
        is_parsed = isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("parse_args", "parse_known_args")
        if not is_parsed or node.attr not in self._options:
            return _NOTHING
        default = self._options[node.attr]
        self.defaults.append(f"{name}.{node.attr} = {ast.unparse(default)} ({self._file}:{default.lineno})")
        return self.value(default, line)

    def _subscript(self, node: ast.Subscript, line: int) -> Any:
        value, key = self.value(node.value, line), self.value(node.slice, line)
        if isinstance(value, Dataset) and isinstance(key, str):
            return value._replace(split=key)
        try:
            return value[key] if isinstance(value, list | dict) else _NOTHING
        except (TypeError, KeyError, IndexError):
            return _NOTHING

    def _call(self, node: ast.Call, line: int) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in self._classes:
            arguments = self.arguments(node, line, ("output_dir",))
            return Instance(self._classes[name], arguments, f"{self._file}:{node.lineno}")
        if name == "from_pretrained":
            found = self.arguments(node, line, ("path",))
            path = found.pop("path", found.pop("pretrained_model_name_or_path", None))
            return Pretrained(path, found, f"{self._file}:{node.lineno}")
        if name in _LOADERS:
            return self._load(node, name, line)
        if name in ("get_peft_model", "prepare_model_for_kbit_training"):
            model, *rest = [*self.arguments(node, line, ("model", "peft_config")).values()] or [_NOTHING]
            return (
                Adapted(model, rest[0]) if rest and isinstance(rest[0], Instance) else model if not rest else _NOTHING
            )
        return self._builtin(node, name, line) if name in ("dict", "float") else self._result(node, name, line)

    def _builtin(self, node: ast.Call, name: str, line: int) -> Any:
        if name == "dict":
            found = self.arguments(node, line)
            return _NOTHING if "**" in found or node.args else found
        text = self.value(node.args[0], line) if node.args else None
        return float(text) if str(text).strip("+-").lower() in ("inf", "infinity") else _NOTHING

    def _result(self, node: ast.Call, name: str, line: int) -> Any:
        """The result of a method of a data set, or of a function that may return a reward function."""
        if isinstance(node.func, ast.Attribute) and isinstance(data := self.value(node.func.value, line), Dataset):
            return data._replace(steps=(*data.steps, name))
        function = self._value(node.func, line)
        if isinstance(function, Function) and function.arguments is None:
            return function._replace(arguments=self.arguments(node, line))
        return _NOTHING

    def _load(self, node: ast.Call, name: str, line: int) -> Any:
        found = self.arguments(node, line, ("path", "name"))
        path, split, files = found.get("path"), found.get("split"), found.get("data_files")
        if not isinstance(path, str) or isinstance(split, Unknown):
            return _NOTHING
        by_split = files if isinstance(files, Mapping) else {"": files}
        is_read = path in ("json", "parquet") and "[" not in str(split)
        known = {part: found for part, each in by_split.items() if is_read and (found := _readable(each))}
        if name == "load_from_disk":
            known = {"": (path,)}
        return Dataset(ast.unparse(node), path, split, known, (), f"{self._file}:{node.lineno}")


_NOTHING = object()
_LARGEST_EXPONENT = 64


def _readable(files: Any) -> tuple[str, ...]:
    """`files` as a tuple, if purerl can read all of them."""
    names = [files] if isinstance(files, str) else files
    is_known = isinstance(names, list) and all(isinstance(each, str) and each.endswith(_FILES) for each in names)
    return tuple(names) if is_known else ()


def _is_small(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= _LARGEST_EXPONENT
