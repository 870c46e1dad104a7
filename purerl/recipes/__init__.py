"""Recipes: Python functions that return a RunConfig.

Ours lie here, one module for each task, with a function of the module's name. A recipe of your own can be anywhere: a
function in a module or in a file, or a TOML file.

What a recipe cannot know, such as the model, is a parameter of its function: ``gsm8k(model=..., data=...)`` in Python,
``--set model=... --set data=...`` on the command line. What a parameter means is said beside its type, as
``Annotated[str, "problems to test on"]``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import Parameter, signature
from pkgutil import iter_modules
from traceback import extract_tb
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import attrs

from purerl.config.explain import Setting, explain, toml
from purerl.config.schema import RunConfig
from purerl.config.structure import apply, build, flat, read_table, read_toml, unknown
from purerl.errors import ConfigError, PurerlError, nearest
from purerl.plugins import locate

__all__ = ["arguments", "explained", "find", "names", "resolve"]


def find(recipe: str) -> Callable[..., RunConfig]:
    """The function that `recipe` names: one of ours, ``module:function``, ``file.py:function``, or ``file.toml``.

    The folder of a file.py joins `sys.path`, as it does when Python runs the file, so that what the recipe names in it
    (rewards, engines) can be imported.

    Raises: ConfigError where there is no such thing.
    """
    if recipe.endswith(".toml"):
        return partial(read_toml, recipe, RunConfig)
    source, _, name = recipe.rpartition(":")
    if not source:
        if recipe not in names():
            need = "one of ours, module:function, file.py:function, or file.toml"
            raise ConfigError(f"no recipe is called {recipe!r}", need=need, do=nearest(recipe, names()))
        source = f"{__name__}.{name}"
    function: Callable[..., RunConfig] = locate(f"{source}:{name}")
    if not callable(function):
        raise ConfigError(f"recipe {recipe!r}", got=repr(function), need="a function")
    return function


def resolve(recipe: str, settings: Iterable[str] = ()) -> RunConfig:
    """What the function that `recipe` names returns, with `settings` made.

    Settings of the function's own parameters are its arguments, read as they are annotated: where that is ``str |
    Model``, both ``model=gpt2`` and ``model.revision=main`` are. All others are made in what it returns.

    Raises: ConfigError as `find` and `apply` do, for an argument that is missing, and for a function that returns
    something else.
    """
    function = find(recipe)
    parameters = _parameters(function)
    sides: tuple[list[str], list[str]] = ([], [])
    for setting in settings:
        sides[_first_key(setting) in parameters].append(setting)
    others, own = sides
    arguments = _arguments(recipe, function, parameters, own) if parameters else {}
    config = _called(recipe, function, arguments)
    if not isinstance(config, RunConfig):
        raise ConfigError(f"recipe {recipe!r}", got=f"it returned {config!r}", need="a RunConfig")
    _check_known(others, {*parameters, *attrs.fields_dict(RunConfig)})
    return apply(config, others)


def _called(recipe: str, function: Callable, arguments: Mapping[str, Any]) -> Any:
    """What `function` returns; where one of somebody else's raises, a ConfigError that says in which of its lines."""
    try:
        return function(**arguments)
    except PurerlError:
        raise
    except Exception as error:
        if ":" not in recipe:
            raise
        file = getattr(sys.modules[function.__module__], "__file__", None)
        frames = [one for one in extract_tb(error.__traceback__) if one.filename == file]
        lines = ", ".join(f"line {one.lineno} in {one.name}" for one in frames)
        need, do = "a function that returns a RunConfig", f"mend it in {file}{', ' if lines else ''}{lines}"
        raise ConfigError(
            f"recipe {recipe!r} fails", got=f"{type(error).__name__}: {error}", need=need, do=do
        ) from error


def _check_known(settings: Iterable[str], known: Iterable[str]) -> None:
    """Refuse what is no setting of a run: its arguments, which the run itself does not know, are near it as well."""
    for key in map(_first_key, (setting for setting in settings if "=" in setting)):
        if key and key not in known:
            raise unknown(key, key, known)


def arguments(recipe: str) -> list[str]:
    """A setting, in capitals, for each thing that the recipe has to be told.

    >>> arguments("gsm8k")
    ['model=MODEL', 'data=DATA']
    """
    return [f"{name}={name.upper()}" for name in _required(_parameters(find(recipe)))]


def _required(parameters: Mapping[str, Parameter]) -> list[str]:
    return [name for name, one in parameters.items() if one.default is Parameter.empty]


def _parameters(function: Callable) -> dict[str, Parameter]:
    kinds = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return {name: one for name, one in signature(function).parameters.items() if one.kind in kinds}


def _first_key(setting: str) -> str:
    return re.split("[.=]", setting, maxsplit=1)[0].strip()


def _arguments(
    recipe: str, function: Callable, parameters: Mapping[str, Parameter], settings: Sequence[str]
) -> dict[str, Any]:
    """What `settings` give for the `parameters` of `function`; the rest are as it has them."""
    required = _required(parameters)
    given = {_first_key(setting) for setting in settings}
    missing = [name for name in required if name not in given]
    if missing:
        command = " --set ".join([f"purerl train {recipe}", *arguments(recipe)])
        raise ConfigError(f"recipe {recipe!r}", got=f"no {' and no '.join(missing)}", do=command)
    hints, needed = get_type_hints(function), {"help": "an argument of the recipe"}
    fields = {
        name: attrs.field(
            type=hints.get(name, Any),
            default=attrs.NOTHING if name in required else one.default,
            metadata=needed,
        )
        for name, one in parameters.items()
    }
    made = build(attrs.make_class("Arguments", fields, frozen=True, kw_only=True), settings)
    return {name: getattr(made, name) for name in fields}


def explained(recipe: str, settings: Iterable[str]) -> list[Setting]:
    """The arguments of `recipe`, and every setting of what `resolve` gives; each with where it came from.

    What the recipe has to be told and is not is its name in capitals, where that may be a text.

    Raises: ConfigError as `resolve` does.
    """
    parameters, settings = _parameters(find(recipe)), [*settings]
    hints = _hints(find(recipe)) if parameters else {}
    numbers = [name for name in _required(parameters) if hints.get(name) in (bool, int, float)]
    needed = [one for one in arguments(recipe) if _first_key(one) not in numbers]
    needed += [one for one in settings if _first_key(one) in numbers]
    config = resolve(recipe, [*needed, *settings])
    try:
        otherwise = resolve(recipe, needed)
    except ConfigError:
        otherwise = config
    given = {key.strip(): value.strip() for key, _, value in (one.partition("=") for one in settings)}
    written = flat(read_table(recipe)) if recipe.endswith(".toml") else {}
    source = recipe if written else "recipe"
    made = explain(config, otherwise=otherwise, made=given, written=written, recipe=source)
    known = {one.key for one in made}
    own = [_argument(name, one, hints.get(name), given) for name, one in parameters.items() if name not in known]
    return [*own, *made]


def _argument(name: str, parameter: Parameter, hint: Any, given: Mapping[str, str]) -> Setting:
    """The argument `name` of a recipe, of which `given` are settings."""
    field = attrs.fields_dict(RunConfig).get(name)
    said = [one for one in get_args(hint)[1:] if isinstance(one, str)] if get_origin(hint) is Annotated else []
    meaning = said[0] if said else field.metadata["help"] if field else "an argument of the recipe"
    if name in map(_first_key, given):
        return Setting(name, given.get(name, ""), "", meaning, "--set")
    if parameter.default is Parameter.empty:
        return Setting(name, "", "", meaning, "missing")
    return Setting(name, toml(parameter.default), "", meaning, "default")


def _hints(function: Callable) -> dict[str, Any]:
    return get_type_hints(function, include_extras=True)


def names() -> list[str]:
    """Our recipes."""
    return sorted(module.name for module in iter_modules(__path__))
