"""Python functions as tools: their JSON schemas from type hints and docstrings, and the arguments of a call.

Type hints that are supported: str, int, float, bool, None, Any, list, tuple, dict, Literal, Enum classes, unions of
them, and Annotated with a description. The first paragraphs of the docstring describe the tool. Its parameters can be
described in Google's, NumPy's or Sphinx's style.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from purerl.errors import ConfigError, nearest

__all__ = ["Arguments", "convert_arguments", "tool_schema"]

_KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
_NO_ARGUMENTS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


class Arguments(NamedTuple):
    """The arguments of a call, converted to the types of the function, or why the function cannot be called.

    values  by the names of the parameters; empty if there is an error
    error   a text for the model; None: `values` can be passed to the function
    """

    values: Mapping[str, Any]
    error: str | None = None


def tool_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of `function` in the form that chat templates take.

    Parameters with a default are optional. The return type is not part of the schema.

    Raises: ConfigError for a function without a name or a description, for ``*args``, ``**kwargs`` and positional-only
    parameters, and for a parameter without a type hint or with one that has no JSON schema.

    >>> def calc(expression: str, digits: int = 2) -> str:
    ...     '''Evaluate an arithmetic expression.
    ...
    ...     Args:
    ...         expression: such as 12 * (3 + 4)
    ...     '''
    >>> schema = tool_schema(calc)["function"]
    >>> schema["name"], schema["description"], schema["parameters"]["required"]
    ('calc', 'Evaluate an arithmetic expression.', ['expression'])
    >>> schema["parameters"]["properties"]["expression"]
    {'type': 'string', 'description': 'such as 12 * (3 + 4)'}
    """
    name, parameters = _name(function), _parameters(function)
    text = inspect.getdoc(function) or ""
    description, descriptions = _description(text), dict(_parameter_descriptions(text))
    if not description:
        raise ConfigError(f"the tool {name!r} has no description", need="a docstring that says what it does")
    if unknown := sorted(descriptions.keys() - parameters.keys()):
        got = f"a description of {unknown[0]!r}, which is no parameter"
        raise ConfigError(f"the docstring of the tool {name!r}", got=got, do=nearest(unknown[0], parameters))
    described = {key: {"description": text} for key, text in descriptions.items() if text}
    schemas = {key: {**_schema(name, key, hint), **described.get(key, {})} for key, (hint, _) in parameters.items()}
    required = [key for key, (_, default) in parameters.items() if default is inspect.Parameter.empty]
    schema = {"type": "object", "properties": schemas, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def convert_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Arguments:
    """Convert the `arguments` of a call, which are values of JSON, to the types of the parameters of `function`.

    An integral number is converted to int or float, a list to a tuple, and a value of an Enum to its member. Nothing
    else is converted: the text "3" is not an integer.

    >>> def wait(seconds: float) -> None:
    ...     '''Wait.'''
    >>> convert_arguments(wait, {"seconds": 3})
    Arguments(values={'seconds': 3.0}, error=None)
    >>> convert_arguments(wait, {"second": 3}).error
    "wait: unknown argument 'second', did you mean 'seconds'?; missing argument 'seconds' (number)"
    """
    parameters, values = _parameters(function), dict[str, Any]()
    errors = [_unknown(key, parameters) for key in arguments if key not in parameters]
    for key, (hint, default) in parameters.items():
        if key in arguments:
            try:
                values[key] = None if arguments[key] is default is None else _converted(hint, arguments[key])
            except ValueError:
                errors.append(f"argument {key!r} is {_shortened(arguments[key])}, not {_kind(hint)}")
        elif default is inspect.Parameter.empty:
            errors.append(f"missing argument {key!r} ({_kind(hint)})")
    return Arguments({}, f"{_name(function)}: {'; '.join(errors)}") if errors else Arguments(values)


def _unknown(name: str, parameters: Mapping[str, Any]) -> str:
    return f"unknown argument {name!r}, " + (nearest(name, parameters) if parameters else "there are no arguments")


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        need = "a function or a method with a name: the model calls the tool by it"
        raise ConfigError("a tool without a name", got=repr(function), need=need)
    return name


def _parameters(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    name = _name(function)
    try:
        signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"the type hints of the tool {name!r} cannot be read", got=str(error)) from error
    for key, parameter in signature.parameters.items():
        if parameter.kind in _NO_ARGUMENTS:
            raise ConfigError(f"the tool {name!r}", got=f"the parameter {parameter}", need="parameters with a name")
        if key not in hints:
            raise ConfigError(f"the parameter {key!r} of the tool {name!r}", need="a type hint, such as str")
    return {key: (hints[key], parameter.default) for key, parameter in signature.parameters.items()}


def _schema(name: str, key: str, hint: Any) -> dict[str, Any]:
    try:
        return _schema_of(hint)
    except TypeError as error:
        need = "str, int, float, bool, None, Any, list, tuple, dict, Literal, an Enum class, or a union of them"
        raise ConfigError(f"the parameter {key!r} of the tool {name!r}", got=str(error), need=need) from error


def _schema_of(hint: Any) -> dict[str, Any]:
    """Raises TypeError for a type that has no JSON schema."""
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        texts = [text for text in args[1:] if isinstance(text, str)]
        return {**_schema_of(args[0]), **({"description": texts[0]} if texts else {})}
    if origin in (Union, UnionType):
        return _union_schema([_schema_of(option) for option in args])
    if choices := [choice for choice, _ in _choices(hint)]:
        kinds = list(dict.fromkeys(_scalar_kind(type(choice)) for choice in choices))
        return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": choices}
    if origin in (list, Sequence, tuple, dict, Mapping):
        return _container_schema(origin, args)
    return {} if origin is Any else {"type": _scalar_kind(hint)}


def _scalar_kind(hint: Any) -> str:
    if hint is None or hint in _KINDS:
        return _KINDS[hint or NoneType]
    raise TypeError(f"the type {getattr(hint, '__name__', hint)}")


def _container_schema(origin: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    if origin is tuple:
        return {"type": "array", **_tuple_schema(args)}
    if origin in (list, Sequence):
        return {"type": "array", **({"items": _schema_of(args[0])} if args else {})}
    return {"type": "object", **({"additionalProperties": _schema_of(args[1])} if args else {})}


def _tuple_schema(args: tuple[Any, ...]) -> dict[str, Any]:
    if args[1:] == (...,):
        return {"items": _schema_of(args[0])}
    return {"prefixItems": [*map(_schema_of, args)], "minItems": len(args), "maxItems": len(args)} if args else {}


def _union_schema(options: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    simple = all(option.keys() == {"type"} and isinstance(option["type"], str) for option in options)
    return {"type": [option["type"] for option in options]} if simple else {"anyOf": list(options)}


def _choices(hint: Any) -> list[tuple[Any, Any]]:
    """The values of a Literal, or of the members of an Enum class, each with what the function gets for it."""
    if get_origin(hint) is Literal:
        return [(choice, choice) for choice in get_args(hint)]
    is_enum = isinstance(hint, type) and issubclass(hint, Enum)
    return [(member.value, member) for member in list[Any](hint)] if is_enum else []


def _kind(hint: Any) -> str:
    schema = _schema_of(hint)
    if "enum" in schema:
        return "one of " + ", ".join(map(repr, schema["enum"]))
    kinds = schema.get("type", "any value")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


def _converted(hint: Any, value: Any) -> Any:
    """`value` as an instance of `hint`. Raises ValueError if it is of another type."""
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        return _converted(args[0], value)
    if origin in (Union, UnionType):
        return _converted_to_first(args, value)
    if origin in (list, Sequence, tuple):
        return _converted_list(origin, args, value)
    if origin in (dict, Mapping):
        pairs = _instance(dict, value).items()
        return {key: _converted(args[1], item) if args else item for key, item in pairs}
    if choices := _choices(hint):
        return _chosen(choices, value)
    return value if origin is Any else _scalar(NoneType if origin is None else origin, value)


def _chosen(choices: Sequence[tuple[Any, Any]], value: Any) -> Any:
    for choice, result in choices:
        if type(choice) is type(value) and choice == value:
            return result
    raise ValueError


def _converted_to_first(options: Sequence[Any], value: Any) -> Any:
    """`value` as the first of the types that it is an instance of, otherwise the first that it can be converted to."""
    exact = [option for option in options if type(value) is (get_origin(option) or option)]
    for option in [*exact, *options]:
        try:
            return _converted(option, value)
        except ValueError:
            continue
    raise ValueError


def _converted_list(origin: type, args: Sequence[Any], value: Any) -> Any:
    items = _instance(list, value)
    is_fixed = origin is tuple and args and args[1:] != (...,)
    types = args if is_fixed else [args[0] if args else Any] * len(items)
    if len(types) != len(items):
        raise ValueError
    converted = [_converted(kind, item) for kind, item in zip(types, items, strict=True)]
    return tuple(converted) if origin is tuple else converted


def _instance(kind: type, value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError
    return value


def _scalar(kind: type, value: Any) -> Any:
    if kind is float and isinstance(value, int):
        try:
            return float(_instance(int, value))
        except OverflowError:
            raise ValueError from None
    is_integral = isinstance(value, float) and value.is_integer()
    return int(value) if kind is int and is_integral else _instance(kind, value)


_SECTION = re.compile(r"^(\w[\w ]*:|\w[\w ]*\n-{3,}|:\w+.*|>>> .*)$", re.MULTILINE)
_GOOGLE = re.compile(r"^(?:Args|Arguments|Parameters):\n((?:[ \t]+.*(?:\n|\Z)|\n)*)", re.MULTILINE)
_NUMPY = re.compile(r"^Parameters\n-{3,}\n(.*?)(?=^\w[\w ]*\n-{3,}$|\Z)", re.MULTILINE | re.DOTALL)
_SPHINX = re.compile(r"^:param (?:[^:\n]* )?(\w+):(.*(?:\n[ \t]+.*)*)", re.MULTILINE)


def _description(text: str) -> str:
    """The text before the first section."""
    return " ".join(_SECTION.split(text, maxsplit=1)[0].split())


def _parameter_descriptions(text: str) -> Iterator[tuple[str, str]]:
    """The name and the description of each parameter that the docstring describes."""
    google, numpy = _GOOGLE.search(text), _NUMPY.search(text)
    if google:
        yield from _entries(inspect.cleandoc(google[1]), r"\*{0,2}(\w+)(?: ?\([^)\n]*\))?:(.*)")
    if numpy:
        yield from _entries(inspect.cleandoc(numpy[1]), r"(\w+)(?: ?:[^\n]*)?()")
    for match in _SPHINX.finditer(text):
        yield match[1], " ".join(match[2].split())


def _entries(text: str, head: str) -> Iterator[tuple[str, str]]:
    """Entries that begin with `head` at the start of a line; the lines of their description are indented."""
    for match in re.finditer(rf"^{head}((?:\n(?:[ \t].*)?)*)$", text, re.MULTILINE):
        yield match[1], " ".join(f"{match[2]} {match[3]}".split())
