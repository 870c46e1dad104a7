"""Settings in a command, a shell script, or a YAML file of verl."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from purerl.config.aliases.answers import known, other_defaults
from purerl.errors import ConfigError
from purerl.porting.outcomes import Unknown
from purerl.porting.verl.overrides import is_override, parse_override, parse_value
from purerl.porting.verl.shell import Script, ShellCommand, read_script

__all__ = ["Given", "is_file_name", "read"]


class Given(NamedTuple):
    """The settings of a source.

    module     the program that it starts, such as verl.trainer.main_ppo; empty for a configuration
    values     the settings, by dotted key; an `Unknown` in place of a value that is not known
    processes  the processes of each host that torchrun starts, if it does
    notes      sentences about what is not read
    """

    module: str
    values: Mapping[str, Any]
    processes: int | None
    notes: tuple[str, ...]


_YAML, _SCRIPTS = (".yaml", ".yml"), (".sh", ".bash", ".slurm", ".sbatch", "")
_OWN_CONFIGS = re.compile(r"(?:one_step_off_|fully_async_)?(?:ppo|dapo|sft)(_megatron)?_trainer(?:_engine)?")
_PROGRAM = re.compile(r"(.*/)?(python[\d.]*|torchrun|accelerate|deepspeed|uv)")


def read(source: str) -> Given:
    """The settings of `source`: the name of a script or of a YAML file, or a command. Nothing is run.

    Raises: ConfigError if it cannot be read, or has no settings of verl.
    """
    path = Path(source)
    if not is_file_name(source):
        return _of_script(read_script(source, "the command", os.environ), Path.cwd())
    if not path.is_file():
        need = 'a script (.sh), a YAML file, or a command in quotes: "python3 -m verl.trainer.main_ppo KEY=VALUE ..."'
        raise ConfigError(repr(source), got="no such file", need=need)
    if path.suffix in _YAML:
        return Given("", _read_yaml(path), None, ())
    if path.suffix not in _SCRIPTS:
        raise ConfigError(repr(source), got=f"the extension {path.suffix!r}", need="a script (.sh), or a YAML file")
    try:
        text = path.read_text(encoding="utf-8")
    except ValueError as error:
        raise ConfigError(repr(source), got=str(error), need="a shell script, as UTF-8") from error
    return _of_script(read_script(text, path.name, os.environ), path.parent)


def is_file_name(source: str) -> bool:
    """Whether `source` is a file or could be the name of one, and no command."""
    is_name = not re.search(r"\s", source.strip()) and "=" not in source
    return is_name or (len(source) < 1000 and Path(source).is_file())


# --- scripts -------------------------------------------------------------------------------------------------------


def _of_script(script: Script, folder: Path) -> Given:
    """The settings of the command that trains: the one with the most overrides."""
    ranked = sorted(script.commands, key=lambda command: sum(map(is_override, command.words)), reverse=True)
    if not ranked or not any(map(is_override, ranked[0].words)):
        need = "a command of verl with settings: python3 -m verl.trainer.main_ppo KEY=VALUE ..."
        raise ConfigError("the script" if folder != Path.cwd() else "the command", got="no such command", need=need)
    command, notes = ranked[0], [*script.notes]
    others = [each for each in ranked[1:] if _module(each)]
    notes += [f"{script.words.file}:{each.line}: {_module(each)} is not translated" for each in others]
    values: dict[str, Any] = {}
    for text, base in _base_configurations(command, folder):
        notes += [text] if text else []
        values |= base
    for word in command.words[_start(command) :]:
        if not is_override(word):
            notes += _note_on(word, script, command)
            continue
        name, equals, text = word.partition("=")
        if script.words.unknown_in(name):
            notes.append(f"{script.words.file}:{command.line}: {script.words.restored(word)} is not translated")
            continue
        key, value, deletes = parse_override(f"{name}{equals}" if script.words.unknown_in(text) else word)
        unknown = script.words.unknown_in(text)
        if deletes:
            notes.append(f"{script.words.file}:{command.line}: ~{key} is not translated")
        else:
            values |= _leaves(key, unknown or value)
    return Given(_module(command), values, _processes(command), tuple(notes))


def _start(command: ShellCommand) -> int:
    """The index of the first word after the module or the file that is started."""
    words = command.words
    for index, word in enumerate(words):
        if word == "-m" and index + 1 < len(words) and not is_override(words[index + 1]):
            return index + 2
        if word.endswith(".py") and not is_override(word):
            return index + 1
    return 0


def _module(command: ShellCommand) -> str:
    """The module that `command` starts; empty if it starts none."""
    start = _start(command)
    return command.words[start - 1] if start and any(map(_PROGRAM.fullmatch, command.words[: start - 1])) else ""


def _processes(command: ShellCommand) -> int | None:
    words = " ".join(command.words[: _start(command)])
    match = re.search(r"--nproc[-_]per[-_]node[= ](\d+)|--num_processes[= ](\d+)", words)
    return int(match[1] or match[2]) if match else None


def _note_on(word: str, script: Script, command: ShellCommand) -> Iterator[str]:
    if (unknown := script.words.unknown_in(word)) is not None:
        yield f"{unknown.place}: {unknown.text} is not known, and nothing of it is translated"
    elif not word.startswith("-") and _start(command):
        yield f"{script.words.file}:{command.line}: {word!r} is no setting of verl"


def _base_configurations(command: ShellCommand, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The settings of the files that ``--config-path`` and ``--config-name`` name, or a sentence about them."""
    options, words = {}, command.words
    for index, word in enumerate(words):
        match = re.fullmatch(r"--(config[-_](?:path|name|dir))(?:=(.*))?", word)
        if match:
            following = words[index + 1] if index + 1 < len(words) else ""
            options[match[1].replace("_", "-")] = match[2] if match[2] is not None else following
    name = options.get("config-name", "").strip("'\"").removesuffix(".yaml")
    if match := _OWN_CONFIGS.fullmatch(name):
        yield "", {"model_engine": "megatron"} if match[1] else {}
    elif name:
        path = Path(options.get("config-path") or options.get("config-dir") or ".") / f"{name}.yaml"
        found = next((each for each in (path, folder / path) if each.is_file()), None)
        missing = f"{name}.yaml was not found at {path.parent}: its settings are not translated"
        yield ("", _read_yaml(found)) if found else (missing, {})


# --- YAML ----------------------------------------------------------------------------------------------------------


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(repr(str(path)), got=str(error), need="a YAML file with settings of verl") from error
    if not isinstance(content, Mapping):
        raise ConfigError(repr(str(path)), got=type(content).__name__, need="a YAML file with settings of verl")
    sections = {key: value for key, value in content.items() if key not in ("hydra", "defaults")}
    return {name: leaf for key, value in sections.items() for name, leaf in _leaves(str(key), value).items()}


def _leaves(key: str, value: Any) -> dict[str, Any]:
    """The settings in `value` at `key`, by dotted key: a table that is a setting itself stays one."""
    is_table = known("verl").get(key) == {} and key not in other_defaults("verl")["other_versions"]
    if isinstance(value, Mapping) and value and not is_table:
        return {name: leaf for part, each in value.items() for name, leaf in _leaves(f"{key}.{part}", each).items()}
    if isinstance(value, str) and not isinstance(value, Unknown):
        value = parse_value(value) if re.fullmatch(r"[+-]?[\d.]+e[+-]?\d+", value, re.IGNORECASE) else value
    return {key: value}
