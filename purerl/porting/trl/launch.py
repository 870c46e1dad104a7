"""Commands that start a trainer of TRL: ``trl sft --FIELD VALUE``, and a script that has fields as its arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from purerl.errors import ConfigError
from purerl.porting.shell.script import ShellCommand, read_script
from purerl.porting.trl.methods import METHODS

__all__ = ["Launch", "read_launch"]

_TRL = re.compile(r"(?:.*/)?trl(?:\.py)?")
_PROCESSES = ("num_processes", "nproc_per_node", "num_gpus")


class Launch(NamedTuple):
    """A command.

    method     of ``trl METHOD``: "SFT", ...; empty for a script
    script     the script that is started; None for TRL's own
    config     the YAML file of ``--config``, if there is one
    flags      the other arguments by their names; an `Unknown` in place of a value that is not known
    processes  the number of processes that the launcher starts; None if it does not say
    notes      sentences about what is not read
    """

    method: str
    script: Path | None
    config: Path | None
    flags: Mapping[str, Any]
    processes: int | None
    notes: tuple[str, ...] = ()


def read_launch(text: str, file: str, folder: Path) -> Launch:
    """The first command in `text`, a shell script that is called `file`, that starts TRL or a script in Python.

    Nothing is run. Paths are relative to `folder`. Raises: ConfigError if there is no such command.
    """
    script = read_script(text, file, os.environ)
    for command in script.commands:
        start, method = _start(command)
        if start:
            program, words = command.words[start - 1], command.words[start:]
            named = {name: script.words.unknown_in(str(value)) or value for name, value in _flags(words)}
            config = named.pop("config", None)
            processes = [value for name, value in _flags(command.words[:start]) if name in _PROCESSES]
            return Launch(
                method,
                None if method else _found(program, folder),
                None if config is None else _found(str(config), folder),
                named,
                processes[0] if processes and isinstance(processes[0], int) else None,
                script.notes,
            )
    need = "trl sft --FIELD VALUE, or a script in Python with arguments: accelerate launch train.py --FIELD VALUE"
    raise ConfigError(f"the command in {file!r}", got="no such command", need=need)


def _start(command: ShellCommand) -> tuple[int, str]:
    """(the index after the program, the method of TRL's own command); 0 if this is another command."""
    known = {method.lower(): method for method in METHODS}
    for index, word in enumerate(command.words):
        following = command.words[index + 1] if index + 1 < len(command.words) else ""
        if _TRL.fullmatch(word) and following in known:
            return index + 2, known[following]
        if word.endswith(".py") and not word.startswith("-"):
            return index + 1, ""
    return 0, ""


def _found(name: str, folder: Path) -> Path:
    return Path(name) if Path(name).is_file() else folder / name


def _flags(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Arguments as transformers reads them: ``--name value``, ``--name=value``, ``--name a b`` and ``--name``."""
    for index, word in enumerate(words):
        if not word.startswith("--") or word == "--":
            continue
        name, equals, value = word[2:].partition("=")
        following = [value] if equals else [*_until_next(words[index + 1 :])]
        values = [_value(each) for each in following]
        yield name.replace("-", "_"), values[0] if len(values) == 1 else values or True


def _until_next(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if word.startswith("--"):
            return
        yield word


def _value(text: str) -> Any:
    import yaml

    try:
        value = yaml.safe_load(text)
        return float(value) if isinstance(value, str) and re.fullmatch(r"[+-]?[\d.]+e[+-]?\d+", value) else value
    except yaml.YAMLError:
        return text
