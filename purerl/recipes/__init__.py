"""Recipes: Python functions that return a RunConfig.

Ours lie here, one module for each task, with a function of the module's name. A recipe of your own can be anywhere: a
function in a module or in a file, or a TOML file.

What a recipe cannot know, such as the model, is a parameter of its function: ``gsm8k(model=..., data=...)`` in Python,
``--set model=... --set data=...`` on the command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import Parameter, signature
from pkgutil import iter_modules
from typing import Any, get_type_hints

import attrs

from purerl.config.explain import Setting, explain
from purerl.config.schema import RunConfig
from purerl.config.structure import apply, build, flat, read_table, read_toml
from purerl.errors import ConfigError, nearest
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
    config = function(**_arguments(recipe, function, parameters, own)) if parameters else function()
    if not isinstance(config, RunConfig):
        raise ConfigError(f"recipe {recipe!r}", got=f"it returned {config!r}", need="a RunConfig")
    return apply(config, others)


def arguments(recipe: str) -> list[str]:
    """A setting, in capitals, for each thing that the recipe has to be told.

    >>> arguments("gsm8k")
    ['model=MODEL', 'data=DATA']
    """
    parameters = _parameters(find(recipe)).items()
    return [f"{name}={name.upper()}" for name, one in parameters if one.default is Parameter.empty]


def _parameters(function: Callable) -> dict[str, Parameter]:
    kinds = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return {name: one for name, one in signature(function).parameters.items() if one.kind in kinds}


def _first_key(setting: str) -> str:
    return re.split("[.=]", setting, maxsplit=1)[0].strip()


def _arguments(
    recipe: str, function: Callable, parameters: Mapping[str, Parameter], settings: Sequence[str]
) -> dict[str, Any]:
    """What `settings` give for the `parameters` of `function`; the rest are as it has them."""
    required = [name for name, one in parameters.items() if one.default is Parameter.empty]
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
    """Every setting of what `resolve` gives, and where it came from. Raises: ConfigError as `resolve` does."""
    made = [setting.partition("=")[0].strip() for setting in settings]
    written = flat(read_table(recipe)) if recipe.endswith(".toml") else {}
    source = recipe if written else "recipe"
    return explain(resolve(recipe, settings), made=made, written=written, recipe=source)


def names() -> list[str]:
    """Our recipes."""
    return sorted(module.name for module in iter_modules(__path__))
