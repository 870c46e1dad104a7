"""Plugins: algorithms, trainers, generators and trackers, found by name.

A module, or a class named as ``package.module:Class``, *is* a plugin if it exposes two things:

    Config                                      a frozen attrs class: what can be set, and the defaults
    algorithm(config), or build(config, ...)    what makes one: the first for an algorithm, the second for the others

A trainer may also expose ``check(config, role, outputs, updates)``, which refuses what does not fit the run before
anything is loaded: the role of the model, what the algorithm wants of it, and the optimizer steps of the run. A tracker
may expose ``check(config)``, which refuses a machine without its library.

It is known by its *kind*: the name of a module of ours (``grpo``, ``hf``), a name that a distribution declares as an
entry point in one of the groups ``purerl.algorithms``, ``purerl.trainers``, ``purerl.generators`` and
``purerl.trackers``, or the address itself. There is nothing to register with.
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
from typing import Any, NamedTuple

import attrs

from purerl.errors import ConfigError, nearest

__all__ = ["GROUPS", "Group", "find", "kind_of", "locate", "names"]


class Group(NamedTuple):
    """A group of plugins: the files of ours (`*` is the kind), the entry points of others, and what makes one."""

    home: str
    entry_points: str
    builder: str


GROUPS: Mapping[str, Group] = {
    "algorithm": Group("algos/*.py", "purerl.algorithms", "algorithm"),
    "trainer": Group("backends/*/trainer.py", "purerl.trainers", "build"),
    "generator": Group("backends/*/generator.py", "purerl.generators", "build"),
    "tracker": Group("tracking/*.py", "purerl.trackers", "build"),
}


def find(group: str, kind: str) -> Any:
    """The plugin of `group` that is known as `kind`: a module, or a class.

    Raises: ConfigError for a name that is unknown, with the nearest known one, for an address where there is nothing,
    and for something that is no plugin.

    >>> find("algorithm", "purerl.errors")
    Traceback (most recent call last):
    purerl.errors.ConfigError: 'purerl.errors' is no algorithm
      got:  nothing called Config, algorithm in it
      need: a frozen attrs class Config, and a function algorithm
    """
    addresses = _addresses(group)
    if kind not in addresses and "." not in kind and ":" not in kind:
        do = f"{nearest(kind, addresses)}; one of your own is named as package.module"
        raise ConfigError(f"no {group} is called {kind!r}", do=do)
    plugin = locate(addresses.get(kind, kind))
    builder = GROUPS[group].builder
    missing = [name for name in ("Config", builder) if not hasattr(plugin, name)]
    if missing:
        need = f"a frozen attrs class Config, and a function {builder}"
        raise ConfigError(f"{kind!r} is no {group}", got=f"nothing called {', '.join(missing)} in it", need=need)
    if not attrs.has(plugin.Config) or "kind" in attrs.fields_dict(plugin.Config):
        need = "a frozen attrs class, without a field called kind: that is the plugin's own name"
        raise ConfigError(f"Config of {kind!r}", got=repr(plugin.Config), need=need)
    return plugin


def kind_of(config: Any) -> str:
    """The kind that `config`, an instance of a plugin's Config, belongs to: the inverse of `find`.

    Raises: ConfigError where the module that defines it exposes it nowhere as Config.
    """
    module = sys.modules[type(config).__module__]
    classes = {f":{name}": value for name, value in vars(module).items() if isinstance(value, type)}
    for suffix, value in {"": module, **classes}.items():
        if getattr(value, "Config", None) is type(config):
            address = module.__name__ + suffix
            kinds = {a: kind for group in GROUPS for kind, a in _addresses(group).items()}
            return kinds.get(address, address)
    need = f"the Config of a plugin: {type(config).__module__}, or a class in it, exposes it as Config"
    raise ConfigError(f"{type(config).__qualname__} has no kind", got=repr(config), need=need)


def names(group: str) -> list[str]:
    """The kinds of `group` that have a short name, ours and those of installed distributions; imports none of them."""
    return sorted(_addresses(group))


def locate(address: str) -> Any:
    """What is at `address`: ``package.module``, ``package.module:name``, or ``file.py:name``.

    The folder of a file joins `sys.path`, as it does when Python runs the file, so that what lies beside it can be
    imported.

    Raises: ConfigError where there is no such module, nothing of that name in it, or where importing it fails.
    """
    module, _, name = address.partition(":")
    if module.endswith(".py"):
        module = _importable(Path(module))
    if not all(module.split(".")):
        raise _nothing_at(address, f"{module!r}, which is no module's name")
    try:
        found = import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and _is_within(error.name, module):
            raise _nothing_at(address, str(error)) from error
        got, need = f"{type(error).__name__}: {error}", "a module that can be imported from here"
        do = f"mend it; python -c 'import {module}' in its folder shows where"
        raise ConfigError(f"{address!r} cannot be imported", got=got, need=need, do=do) from error
    if name and not hasattr(found, name):
        raise _nothing_at(address, f"module {module} without {name}")
    return getattr(found, name) if name else found


def _is_within(missing: str | None, module: str) -> bool:
    """Whether the module `missing` is `module` or a package that it is in, rather than something that it imports."""
    return missing is not None and f"{module}.".startswith(f"{missing}.")


def _importable(path: Path) -> str:
    """Make the file at `path` importable; its name as a module."""
    if not path.is_file():
        do = "check its path, which begins in the working directory"
        raise ConfigError(f"file {str(path)!r}", got="no such file", need="a Python file", do=do)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = None if "." in path.stem else find_spec(path.stem)
    if spec is None or Path(spec.origin).resolve() != path.resolve():
        got = f"another module that is called {path.stem!r}" if spec else "no module's name"
        raise ConfigError(f"file {str(path)!r}", got=got, do="give the file a name of its own")
    return path.stem


def _nothing_at(address: str, got: str) -> ConfigError:
    need = "package.module or package.module:name, importable from here"
    do = "check its spelling, install its package, or name a file: file.py:name"
    return ConfigError(f"nothing is found at {address!r}", got=got, need=need, do=do)


@cache
def _addresses(group: str) -> Mapping[str, str]:
    """Kind -> address. Ours come last: no distribution changes what a name of ours means."""
    home, others, builder = GROUPS[group]
    place = home.removesuffix(".py").split("/").index("*")
    root = Path(__file__).parent
    files = (path.relative_to(root).with_suffix("").parts for path in root.glob(home) if _defines(path, builder))
    ours = {parts[place]: ".".join(("purerl", *parts)) for parts in files}
    return {entry.name: entry.value for entry in entry_points(group=others)} | ours


def _defines(path: Path, builder: str) -> bool:
    """Whether the module has `Config` and `builder` at its top level, as its text says."""
    table = symtable.symtable(path.read_text(encoding="utf-8"), str(path), "exec")
    bound = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    return {"Config", builder} <= bound
