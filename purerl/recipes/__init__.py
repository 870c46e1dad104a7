"""Recipes: Python functions that return a RunConfig.

The recipes of purerl are the modules of this package, each with a function of the module's name. Your own recipe can be
a function in any module or file, or a TOML file.

What a recipe cannot know, such as the model, is a parameter of its function: ``gsm8k(model=..., data=...)`` in Python,
``--set model=... --set data=...`` on the command line. The meaning of a parameter is part of its annotation:
``Annotated[str, "problems to evaluate on"]``.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from inspect import Parameter, signature
from pkgutil import iter_modules
from traceback import extract_tb
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import attrs

from purerl.config.keys import section_in
from purerl.config.listing import Setting, explain, toml
from purerl.config.origins import Origins, give_way, named_by, preset_values
from purerl.config.overrides import apply, build
from purerl.config.recipe_keys import check_file_keys, check_names, check_recipe_keys
from purerl.config.schema import RunConfig
from purerl.config.structure import read_toml, to_dict
from purerl.config.tables import flat, read_table, with_kind
from purerl.errors import ConfigError, PurerlError, nearest
from purerl.plugins import locate
from purerl.system.static_inspect import find_source, signature_of

__all__ = ["explain_recipe", "find", "names", "required_settings", "resolve", "settle"]

_ARGUMENT = "an argument of the recipe"
_HELPERS = ("smollm2", "tiny_task")  # modules beside the recipes


def names() -> list[str]:
    """The recipes of this package."""
    return sorted(module.name for module in iter_modules(__path__) if module.name not in _HELPERS)


def find(recipe: str) -> Callable[..., RunConfig]:
    """The function called `recipe`: a name in `names`, ``module:function``, ``file.py:function``, or ``file.toml``.

    The directory of a file.py is added to `sys.path`, as when Python runs the file. So the recipe can name objects in
    that file, such as rewards and engines.

    Raises: ConfigError if there is no such function.
    """
    if recipe.endswith(".toml"):
        return partial(read_toml, recipe, RunConfig)
    function: Callable[..., RunConfig] = locate(":".join(_address_of(recipe)))
    if not callable(function):
        raise ConfigError(f"recipe {recipe!r}", got=repr(function), need="a function")
    return function


def _address_of(recipe: str) -> tuple[str, str]:
    """The module, or file, and the name of the function of a recipe that is no TOML file."""
    source, _, name = recipe.rpartition(":")
    if not source and name not in names():
        need = "a recipe of purerl, module:function, file.py:function, or file.toml"
        do = f"write the recipe before its settings: addition {recipe}" if "=" in recipe else nearest(recipe, names())
        raise ConfigError(f"unknown recipe {recipe!r}", need=need, do=do)
    return source or f"{__name__}.{name}", name


def resolve(recipe: str, settings: Iterable[str] = ()) -> RunConfig:
    """The RunConfig of `recipe`, with `settings`, strings ``key=value``, applied.

    A setting that has the name of a parameter of the recipe is an argument of the function. It is converted to the
    annotated type: for ``str | Model``, both ``model=gpt2`` and ``model.revision=main`` are valid. All other settings
    are applied to the RunConfig that the function returns. A value of the recipe that has lost its effect because of
    them gives way, and a warning says so.

    Raises: ConfigError as `find` and `purerl.config.overrides.apply`; for a missing argument; if the function raises or
    returns something else.
    """
    config, notes = settle(recipe, settings)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return config


def settle(
    recipe: str, settings: Iterable[str] = (), check: Callable[[RunConfig], object] = lambda config: None
) -> tuple[RunConfig, list[str]]:
    """The result of `resolve` after `check`, and a note for each value that gave way, as in `purerl.config.origins`.

    Raises: ConfigError as `resolve` and as `check`.
    """
    settings = [*settings]
    _check_keys(recipe, settings)
    draft = _of_file(recipe, settings) if recipe.endswith(".toml") else _of_function(recipe, settings)

    def checked(changes: Sequence[str]) -> RunConfig:
        config = draft.make(changes)
        check(config)
        return config

    if not draft.changes:
        return checked(()), []
    return give_way(lambda more: checked([*draft.changes, *more]), draft.origins(), lambda: checked(()))


class _Draft(NamedTuple):
    """A recipe before the `changes` of the command line.

    make     the configuration with changes
    origins  the origins of its values
    """

    make: Callable[[Sequence[str]], RunConfig]
    changes: Sequence[str]
    origins: Callable[[], Origins]


def _of_file(recipe: str, settings: Sequence[str]) -> _Draft:
    """The changes are applied to what is written: roles inherit from the changed trainer."""
    table = read_table(recipe)

    def make(changes: Sequence[str]) -> RunConfig:
        check_names(changes, attrs.fields_dict(RunConfig))
        return build(RunConfig, changes, deepcopy(table)) if changes else read_toml(recipe, RunConfig)

    return _Draft(make, settings, partial(_origins, settings, table, recipe))


def _of_function(recipe: str, settings: Sequence[str]) -> _Draft:
    function = find(recipe)
    parameters = _parameters(function)
    own = [setting for setting in settings if _name_of(setting) in parameters]
    others = [setting for setting in settings if _name_of(setting) not in parameters]
    arguments = _read_arguments(recipe, function, parameters, own) if parameters else {}
    config = _call(recipe, function, arguments)
    if not isinstance(config, RunConfig):
        raise ConfigError(f"recipe {recipe!r}", got=f"it returned {config!r}", need="a RunConfig")
    check_names(others, {*parameters, *attrs.fields_dict(RunConfig)})

    def make(changes: Sequence[str]) -> RunConfig:
        return apply(config, changes, before=own)

    return _Draft(make, others, lambda: _origins(settings, to_dict(config), f"the recipe {recipe}"))


def _origins(settings: Sequence[str], table: Mapping[str, Any], owner: str) -> Origins:
    """The origins of the values in the `table` of `owner`.

    A string for a section, as in ``data=file``, names only the field that it is short for.
    """
    values = flat(dict(table))
    named = {_long_key(key, values) for key in named_by(RunConfig, settings)}
    return Origins(named, values, owner, _preset_of(settings, table))


def _preset_of(settings: Sequence[str], table: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The values of the preset that `settings`, or otherwise the `table` of a recipe, choose, as `preset_values`."""
    chosen = [setting.partition("=")[2].strip("\" '") for setting in settings if _ALGORITHM.match(setting)]
    section = with_kind(table.get("algorithm"))
    return preset_values(chosen[-1] if chosen else section.get("kind") if isinstance(section, Mapping) else None)


_ALGORITHM = re.compile(r"\s*algorithm(\.kind)?\s*=")


def _long_key(key: tuple[str, ...], values: Mapping[str, Any]) -> tuple[str, ...]:
    field = attrs.fields_dict(attrs.resolve_types(RunConfig)).get(key[0])
    section = section_in(field.type) if field is not None and len(key) == 1 and key[0] not in values else None
    short = [each.name for each in attrs.fields(section) if each.metadata.get("short")] if section else []
    return (*key, *short[:1])


def required_settings(recipe: str) -> list[str]:
    """One setting for each required argument of `recipe`, with the name in capitals as its value.

    >>> required_settings("gsm8k")
    ['model=MODEL', 'data=DATA']
    """
    return [f"{name}={name.upper()}" for name in _required(_parameters(find(recipe)))]


def explain_recipe(recipe: str, settings: Iterable[str], config: RunConfig | None = None) -> list[Setting]:
    """The arguments of `recipe`, and every setting of what `resolve` returns, each with its source.

    `config` is the result of `settle`, if it is known. The value of a required argument that is missing is its name in
    capitals, if it can be a string.

    Raises: ConfigError as `resolve`.
    """
    settings = [*settings]
    _check_keys(recipe, settings)
    parameters = _parameters(find(recipe))
    hints = get_type_hints(find(recipe), include_extras=True) if parameters else {}
    numbers = [name for name in _required(parameters) if hints.get(name) in (bool, int, float)]
    needed = [setting for setting in required_settings(recipe) if _name_of(setting) not in numbers]
    needed += [setting for setting in settings if _name_of(setting) in numbers]
    config = unchanged = config or settle(recipe, [*needed, *settings])[0]
    if settings:
        with suppress(ConfigError):
            unchanged, _ = settle(recipe, needed)
    changes = {key.strip(): value.strip() for key, _, value in (setting.partition("=") for setting in settings)}
    table = read_table(recipe) if recipe.endswith(".toml") else {}
    explained = explain(
        config,
        unchanged=unchanged,
        changed=changes,
        written=flat(table),
        recipe=recipe if table else "recipe",
        preset=_preset_of(settings, table),
    )
    known = {setting.key for setting in explained}
    own = [_explain_argument(name, one, hints.get(name), changes) for name, one in parameters.items()]
    return [*(setting for setting in own if setting.key not in known), *explained]


def _explain_argument(name: str, parameter: Parameter, hint: Any, changes: Mapping[str, str]) -> Setting:
    field = attrs.fields_dict(RunConfig).get(name)
    notes = [note for note in get_args(hint)[1:] if isinstance(note, str)] if get_origin(hint) is Annotated else []
    meaning = notes[0] if notes else field.metadata["help"] if field else _ARGUMENT
    if name in map(_name_of, changes):
        return Setting(name, changes.get(name, ""), "", meaning, "--set")
    if parameter.default is Parameter.empty:
        return Setting(name, "", "", meaning, "missing")
    return Setting(name, toml(parameter.default), "", meaning, "default")


# --- arguments ---------------------------------------------------------------------------------------------------


def _parameters(function: Callable) -> dict[str, Parameter]:
    kinds = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return {name: one for name, one in signature(function).parameters.items() if one.kind in kinds}


def _required(parameters: Mapping[str, Parameter]) -> list[str]:
    return [name for name, one in parameters.items() if one.default is Parameter.empty]


def _name_of(setting: str) -> str:
    """The first part of the key: ``model`` for ``model.revision=main``."""
    return setting.partition("=")[0].partition(".")[0].strip()


def _read_arguments(
    recipe: str, function: Callable, parameters: Mapping[str, Parameter], settings: Sequence[str]
) -> dict[str, Any]:
    """The arguments of `function`: from `settings`, otherwise the defaults."""
    required, given = _required(parameters), set(map(_name_of, settings))
    missing = [name for name in required if name not in given]
    if missing:
        command = " --set ".join([f"purerl train {recipe}", *required_settings(recipe)])
        raise ConfigError(f"recipe {recipe!r}", got=f"no {' and no '.join(missing)}", do=command)
    hints = get_type_hints(function)
    fields = {
        name: attrs.field(
            type=hints.get(name, Any),
            default=attrs.NOTHING if name in required else one.default,
            metadata={"help": _ARGUMENT},
        )
        for name, one in parameters.items()
    }
    arguments = build(attrs.make_class("Arguments", fields, frozen=True, kw_only=True), settings)
    return {name: getattr(arguments, name) for name in fields}


def _call(recipe: str, function: Callable, arguments: Mapping[str, Any]) -> Any:
    """The result of `function`. An exception in a recipe that is not of purerl is a ConfigError with its line."""
    try:
        return function(**arguments)
    except PurerlError:
        raise
    except Exception as error:
        if ":" not in recipe:
            raise
        file = getattr(sys.modules[function.__module__], "__file__", None)
        frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename == file]
        lines = "".join(f", line {frame.lineno} in {frame.name}" for frame in frames)
        got, need = f"{type(error).__name__}: {error}", "a function that returns a RunConfig"
        raise ConfigError(f"recipe {recipe!r} raised", got=got, need=need, do=f"fix it in {file}{lines}") from error


def _check_keys(recipe: str, settings: Sequence[str]) -> None:
    """Refuse unknown keys of `settings` and of a TOML file, as far as they are found without importing the recipe."""
    if recipe.endswith(".toml"):
        check_file_keys(recipe, read_table(recipe), settings, _translate)
        return
    module, name = _address_of(recipe)
    source = find_source(module)
    known = signature_of(source, name) if source else None
    if known is not None and source is not None:
        check_recipe_keys(settings, {*known.parameters}, _translate, source=source if ":" not in recipe else None)


def _translate(given: Mapping[str, Any]) -> Mapping[str, str]:
    """The lines in place of settings of other libraries."""
    from purerl.porting.lines import lines_for

    return lines_for(given)
