"""Recipes: Python functions that return a RunConfig.

Ours lie here, one module for each task and model, with a function of the module's name. A recipe of your own can be
anywhere: a function in a module or in a file, or a TOML file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pkgutil import iter_modules

from purerl.config.explain import Setting, explain
from purerl.config.schema import RunConfig
from purerl.config.structure import apply, flat, read_table, read_toml
from purerl.errors import ConfigError, nearest
from purerl.plugins import locate

__all__ = ["explained", "find", "names", "resolve"]


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
            do = f"{nearest(recipe, names())}; or module:function, file.py:function, file.toml"
            raise ConfigError(f"no recipe is called {recipe!r}", do=do)
        source = f"{__name__}.{name}"
    function: Callable[..., RunConfig] = locate(f"{source}:{name}")
    if not callable(function):
        raise ConfigError(f"recipe {recipe!r}", got=repr(function), need="a function")
    return function


def resolve(recipe: str, settings: Iterable[str] = ()) -> RunConfig:
    """What the function that `recipe` names returns, with `settings` made.

    Raises: ConfigError as `find` and `apply` do, and for a function that returns something else.
    """
    config = find(recipe)()
    if not isinstance(config, RunConfig):
        raise ConfigError(f"recipe {recipe!r}", got=f"it returned {config!r}", need="a RunConfig")
    return apply(config, settings)


def explained(recipe: str, settings: Iterable[str]) -> list[Setting]:
    """Every setting of what `resolve` gives, and where it came from. Raises: ConfigError as `resolve` does."""
    made = [setting.partition("=")[0].strip() for setting in settings]
    written = flat(read_table(recipe)) if recipe.endswith(".toml") else {}
    source = recipe if written else "recipe"
    return explain(resolve(recipe, settings), made=made, written=written, recipe=source)


def names() -> list[str]:
    """Our recipes."""
    return sorted(module.name for module in iter_modules(__path__))
