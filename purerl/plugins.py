"""Plugins: algorithms, their modifiers, trainers, generators, trackers and kinds of rewards, found by name.

A plugin is a module, or a class named as ``package.module:Class``, with two attributes:

    Config                                      a frozen attrs class: the settings and their defaults
    algorithm(config), or build(config, ...)    creates the algorithm, or the trainer, generator, tracker or reward
                                                function; of a modifier: modify(config, algorithm)

The arguments of these functions are

    algorithm(config)                                           an algorithm
    modify(config, algorithm)                                   a modifier; it returns the changed algorithm
    build(config, *, model, role, outputs, updates, seed)       a trainer
    build(config, *, model, seed)                               a generator
    build(config, *, run_info)                                  a tracker
    build(config)                                               a reward function, in a worker process

`role` is the role of the model, such as "critic". `outputs` are the outputs that the run needs from the model.
`updates` is the number of optimizer steps of the run, 0 for a model that is not trained.

What else a plugin may define is listed, with its defaults, by the classes `TrainerPlugin` and `GeneratorPlugin` of
`purerl.backends.plugin` for engines. Others may have

    check(config)           of a tracker or a kind of reward: raises ConfigError if its library is not installed
    columns(config), data_sources(config), seconds(config), check_running(config)
                            of a kind of reward: the columns of the data that it reads, the rows that it is for, how
                            long a call may take, and whether its server answers, see `purerl.rewards.sources`

The class Config may be in another module than the plugin, if it has an attribute PLUGIN with the plugin's address.

The *kind* of a plugin is its name: the name of a module of purerl (``grpo``, ``hf``), a name that a distribution
declares as an entry point in one of the groups ``purerl.algorithms``, ``purerl.modifiers``, ``purerl.trainers``,
``purerl.generators``, ``purerl.trackers`` and ``purerl.rewards``, or the address of a module or class:
``package.module``, ``package.module:Class``, ``file.py``, ``file.py:Class``, or the name of a module in the working
directory. No registration is needed.
"""

from __future__ import annotations

import symtable
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

import attrs

from purerl.errors import ConfigError, nearest, similar
from purerl.system.similar_paths import similar_path
from purerl.system.static_inspect import config_fields, find_source

__all__ = ["GROUPS", "Group", "addresses", "fields_of", "find", "kind_of", "locate", "names", "similar_module"]


class Group(NamedTuple):
    """A group of plugins.

    files         pattern of purerl's modules of this group; `*` is the kind
    entry_points  group of the entry points of other distributions
    builder       name of the function that a plugin needs beside Config
    reserved      names that no field of Config may have: they are written beside the settings of the plugin
    """

    files: str
    entry_points: str
    builder: str
    reserved: tuple[str, ...] = ("kind",)


_OF_EVERY_REWARD = (
    "function",
    "role",
    "weight",
    "kwargs",
    "name",
    "data_source",
    "mean",
    "std",
    "clip",
    "at_least",
    "config",
)

GROUPS: Mapping[str, Group] = {
    "algorithm": Group("algos/*.py", "purerl.algorithms", "algorithm"),
    "modifier": Group("algos/modifiers/*.py", "purerl.modifiers", "modify"),
    "trainer": Group("backends/*/trainer.py", "purerl.trainers", "build"),
    "generator": Group("backends/*/generator.py", "purerl.generators", "build"),
    "tracker": Group("monitoring/trackers/*.py", "purerl.trackers", "build"),
    "reward": Group("rewards/kinds/*.py", "purerl.rewards", "build", ("kind", *_OF_EVERY_REWARD)),
}


def find(group: str, kind: str) -> Any:
    """The plugin of `group` with the name or address `kind`: a module or a class.

    Raises: ConfigError for an unknown name, with the nearest known one; for an address without a module or class; and
    for an object that is not a plugin.

    >>> find("algorithm", "purerl.errors")
    Traceback (most recent call last):
    purerl.errors.ConfigError: invalid algorithm 'purerl.errors'
      got:  no attribute Config, algorithm
      need: a frozen attrs class Config, and a function algorithm
    """
    known = addresses(group)
    if kind not in known and "." not in kind and ":" not in kind and not _is_plugin_module(group, kind):
        do = f"{nearest(kind, known)}; name a plugin of your own by its address, package.module or file.py"
        raise ConfigError(f"unknown {group} {kind!r}", do=do)
    plugin = locate(known.get(kind, kind))
    _, _, builder, reserved = GROUPS[group]
    missing = [name for name in ("Config", builder) if not hasattr(plugin, name)]
    if missing:
        need = f"a frozen attrs class Config, and a function {builder}"
        raise ConfigError(f"invalid {group} {kind!r}", got=f"no attribute {', '.join(missing)}", need=need)
    if not attrs.has(plugin.Config):
        raise ConfigError(f"Config of {kind!r}", got=repr(plugin.Config), need="a frozen attrs class")
    if taken := [name for name in attrs.fields_dict(plugin.Config) if name in reserved]:
        need = f"another name than {', '.join(reserved)}: these are settings of every {group}"
        raise ConfigError(f"Config of {kind!r}", got=f"a field called {taken[0]}", need=need)
    return plugin


def kind_of(config: Any) -> str:
    """The kind of the plugin that `config` is a Config of. It is the inverse of `find`.

    A class with an attribute PLUGIN of its own belongs to the plugin with this address. Any other class belongs to its
    module, or to a class in that module.

    Raises: ConfigError if there is no plugin with this class as Config.
    """
    named: str | None = vars(type(config)).get("PLUGIN")
    if named is not None:
        return _kinds().get(named, named)
    module = sys.modules[type(config).__module__]
    classes = {f":{name}": value for name, value in vars(module).items() if isinstance(value, type)}
    for suffix, value in {"": module, **classes}.items():
        if getattr(value, "Config", None) is type(config):
            address = _FILES.get(module.__name__, module.__name__) + suffix
            return _kinds().get(address, address)
    need = f"the Config of a plugin: the attribute Config of {type(config).__module__}, or of a class in it"
    raise ConfigError(f"{type(config).__qualname__} is not the Config of a plugin", got=repr(config), need=need)


def _kinds() -> dict[str, str]:
    """Kind by address, of all plugins that have a short name."""
    return {address: kind for group in GROUPS for kind, address in addresses(group).items()}


def names(group: str) -> list[str]:
    """The names of all plugins of `group`, in purerl and in installed distributions. None of them is imported."""
    return sorted(addresses(group))


def fields_of(group: str, kind: str) -> set[str] | None:
    """The settings of the plugin `kind`, read from its source code; None if they are not known. It is not imported.

    >>> sorted(fields_of("generator", "hf") & {"max_num_seqs", "lr"})
    ['max_num_seqs']
    """
    module, colon, _ = addresses(group).get(kind, kind).partition(":")
    path = None if colon else find_source(module)
    return config_fields(path) if path else None


def _is_plugin_module(group: str, name: str) -> bool:
    """Whether `name` is a module, such as one in the working directory, that defines what a plugin of `group` needs."""
    path = find_source(name)
    return path is not None and _defines(path, GROUPS[group].builder)


def locate(address: str) -> Any:
    """Import the object at `address`: ``package.module``, ``package.module:name``, or ``file.py:name``.

    The directory of a file is added to `sys.path`, as when Python runs the file, so that the file can import modules in
    this directory.

    Raises: ConfigError if there is no such module or no such name in it, or if importing it fails.
    """
    name_of_module, _, name = address.partition(":")
    if name_of_module.endswith(".py"):
        name_of_module = _make_importable(Path(name_of_module))
    if not all(name_of_module.split(".")):
        raise _not_found(address, f"{name_of_module!r}, which is not the name of a module")
    try:
        module = import_module(name_of_module)
    except (Exception, SystemExit) as error:
        # A module that is missing inside of the plugin is another error.
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name_of_module}.".startswith(f"{error.name}."):
            near = similar_module(name_of_module)
            raise _not_found(address, str(error), near and address.replace(name_of_module, near, 1)) from error
        got, need = f"{type(error).__name__}: {error}", "a module that can be imported from here"
        do = f"fix it; python -c 'import {name_of_module}' in its directory prints the traceback"
        raise ConfigError(f"{address!r} cannot be imported", got=got, need=need, do=do) from error
    if name and not hasattr(module, name):
        near = similar(name, [known for known in vars(module) if known[0] != "_"])
        got = f"module {name_of_module} without {name}"
        raise _not_found(address, got, near and f"{address.partition(':')[0]}:{near}")
    return getattr(module, name) if name else module


_FILES: dict[str, str] = {}
"""Paths of the files from which `locate` imported modules, as they were named, by the name of the module."""


def _make_importable(path: Path) -> str:
    """Make the file at `path` importable, and return its name as a module."""
    if not path.is_file():
        near = similar_path(path)
        do = f"did you mean {str(near)!r}?" if near else "check the path, which is relative to the working directory"
        raise ConfigError(f"file {str(path)!r}", got="no such file", need="a Python file", do=do)
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    spec = None if "." in path.stem else find_spec(path.stem)
    if spec is None or Path(spec.origin).resolve() != path.resolve():
        got = f"another module with the name {path.stem!r}" if spec else "a name that no module can have"
        raise ConfigError(f"file {str(path)!r}", got=got, do="rename the file")
    _FILES[path.stem] = str(path)
    return path.stem


def similar_module(name: str) -> str | None:
    """The module whose name has, in place of the first part that does not exist, one that is similar; else None."""
    parts = name.split(".")
    for depth, part in enumerate(parts):
        parent = ".".join(parts[:depth])
        spec = find_spec(parent) if parent else None
        places = spec.submodule_search_locations if spec else None if parent else [str(Path.cwd())]
        known = {module.name for module in iter_modules(places or ())} | ({"purerl"} if not parent else set())
        if part not in known:
            near = similar(part, known)
            return ".".join([*parts[:depth], near, *parts[depth + 1 :]]) if near else None
    return None


def _not_found(address: str, got: str, near: str | None = None) -> ConfigError:
    need = "package.module or package.module:name, importable from here"
    do = "check its spelling, install its package, or name a file: file.py:name"
    do = f"did you mean {near!r}?" if near else do
    return ConfigError(f"cannot find {address!r}", got=got, need=need, do=do)


@cache
def addresses(group: str) -> Mapping[str, str]:
    """Address by kind, of all plugins of `group` that have a short name.

    A name of purerl cannot be overridden by an entry point.
    """
    pattern, entry_point_group, builder, _ = GROUPS[group]
    depth = pattern.removesuffix(".py").split("/").index("*")
    root = Path(__file__).parent
    modules = (path.relative_to(root).with_suffix("").parts for path in root.glob(pattern) if _defines(path, builder))
    own = {parts[depth]: ".".join(("purerl", *parts)) for parts in modules}
    return {entry.name: entry.value for entry in _entry_points().select(group=entry_point_group)} | own


@cache
def _entry_points() -> Any:  # its type depends on the version of Python
    """The entry points of all installed distributions. Finding them reads a file of each distribution."""
    return entry_points()


def _defines(path: Path, builder: str) -> bool:
    """Whether the module at `path` defines or imports `Config` and `builder`. It is not imported."""
    table = symtable.symtable(path.read_text(encoding="utf-8"), str(path), "exec")
    defined = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    return {"Config", builder} <= defined
