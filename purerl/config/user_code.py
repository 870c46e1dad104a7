"""The code of the user in a run: the files that its configuration names, and what they import, with their digests.

It is found in the source code, without running it. The code of trackers is left out, because no result depends on it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from purerl.config.schema import RunConfig
from purerl.config.structure import to_dict
from purerl.config.untrusted import functions_in, kinds_in
from purerl.envs.settings import servers_of
from purerl.plugins import GROUPS, addresses
from purerl.rewards.settings import by_name
from purerl.system.digests import DigestWriter, digest_of
from purerl.system.static_inspect import find_source, imported_files

__all__ = ["code_digests"]

_OTHER_SECTIONS = ("trackers", "placement", "initial_run")
"""Sections without code on which a result of the run depends. The initial run is a run with code of its own."""


def code_digests(config: RunConfig, functions: Mapping[str, Callable[..., Any]]) -> dict[str, str]:
    """The digest of each file of the user's code in a run of `config`, by its path from the folder it is imported from.

    These are the files of algorithms, modifiers, engines, rewards, environments, workflows and all other functions, and
    the files that each of them imports below its own folder, as `imported_files` finds them. Files of purerl and of
    installed packages are not among them.

    functions  reward functions that were passed as objects, by the name of their reward. One without a file, as in a
               notebook, has the digest of its source code; one without source code has none
    """
    files = {file for module in _modules(config, functions) if (file := _file_of(module))}
    digests: dict[str, str] = {}
    for name, function in functions.items():
        source = _source_of(function)
        if isinstance(source, Path):
            files.add(source)
        elif source is not None:
            digests[f"the function {name}"] = _digest_of_text(source)
    found: dict[str, Path] = {}
    for file in sorted(files):
        for name, path in imported_files(file).items():
            found[name if found.get(name, path) == path else str(path)] = path
    return {**digests, **{name: digest_of(path) for name, path in sorted(found.items())}}


def _modules(config: RunConfig, functions: Mapping[str, Any]) -> Iterator[str]:
    """The modules and files that `config` names, without those of `functions`, which are only names there.

    A program that is started as a server of tools is named in its command.
    """
    objects = {each.function for name, each in by_name(config.rewards, config.gates).items() if name in functions}
    named = (name for _, name in functions_in(config) if name not in objects)
    table = {name: section for name, section in to_dict(config).items() if name not in _OTHER_SECTIONS}
    for address in (*named, *(address for kind in kinds_in(table) for address in _addresses_of(kind))):
        yield address.partition(":")[0]
    servers = servers_of(config.environment) if config.environment else ()
    yield from (word for server in servers for word in server.split() if word.endswith(".py"))


def _addresses_of(kind: str) -> set[str]:
    """The addresses of all plugins with the name `kind`, or `kind` itself, if it is an address."""
    return {known[kind] for known in map(addresses, GROUPS) if kind in known} or {kind}


def _file_of(module: str) -> Path | None:
    """The source code of `module`, which may be that of the program that runs."""
    main = getattr(sys.modules.get(module), "__file__", None) if module == "__main__" else None
    return Path(main) if main else find_source(module)


def _source_of(function: Callable[..., Any]) -> Path | str | None:
    """The file that defines `function`; without a file its source code, if it is known."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    target = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    try:
        file = inspect.getsourcefile(target)
        return Path(file) if file and Path(file).is_file() else inspect.getsource(target)
    except (TypeError, OSError):  # it is written in C, or was made by exec
        return None


def _digest_of_text(text: str) -> str:
    writer = DigestWriter()
    writer.write(text.encode())
    return writer.digest
