"""Settings in a command, a shell script, or a YAML file of verl."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from purerl.config.aliases.answers import known, other_defaults
from purerl.errors import ConfigError
from purerl.porting.outcomes import Unknown
from purerl.porting.shell.script import Script, ShellCommand, read_script
from purerl.porting.shell.words import Words
from purerl.porting.verl.overrides import is_override, parse_override, parse_value

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
    script, command = _training_command(script, folder)
    notes = [*script.notes]
    notes += _notes_on_others([each for each in script.commands if each is not command and _module(each)], script)
    values: dict[str, Any] = {}
    options, words = _options(command.words[_start(command) :])
    for text, base in _base_configurations(options, script.words, folder):
        notes += [text] if text else []
        values |= base
    cut_off = _cut_off(command, script)
    notes += [_note_on_end(each, script) for each in cut_off]
    for word in (*words, *(word for each in cut_off for word in each.words)):
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
            continue
        if unknown is not None and key in _LABELS and (label := script.words.known_part(text)):
            notes.append(f"{unknown.place}: the part of {key}={unknown.text} that is not known is left out")
            value, unknown = label, None
        values |= _leaves(key, unknown or value)
    return Given(_module(command), values, _processes(command), tuple(notes))


_LABELS = ("trainer.experiment_name", "trainer.project_name")
"""Settings in which a part that is not known, such as a date, is left out."""


def _training_command(script: Script, folder: Path) -> tuple[Script, ShellCommand]:
    """The command with the most overrides; if there is none, that of the here-documents, which another program runs."""
    for scripts in ([script], script.documents):
        commands = [(each, command) for each in scripts for command in each.commands]
        begun = [pair for pair in commands if not is_override(pair[1].words[0])]
        for pairs in (begun, commands):
            found = max(pairs, key=lambda pair: _number_of_overrides(pair[1]), default=None)
            if found is not None and _number_of_overrides(found[1]):
                return found
    need = "a command of verl with settings: python3 -m verl.trainer.main_ppo KEY=VALUE ..."
    raise ConfigError("the script" if folder != Path.cwd() else "the command", got="no such command", need=need)


def _number_of_overrides(command: ShellCommand) -> int:
    return sum(map(is_override, command.words))


def _notes_on_others(others: Sequence[ShellCommand], script: Script) -> Iterator[str]:
    """A sentence about each program that is started, too, and how often if it is in a loop."""
    for (line, module), count in Counter((each.line, _module(each)) for each in others).items():
        times = f", {count} times" if count > 1 else ""
        yield f"{script.words.file}:{line}: {module} is started, too{times}; that is not translated"


def _cut_off(command: ShellCommand, script: Script) -> list[ShellCommand]:
    """The lines of settings after `command` that bash takes for other commands, because it has ended before them."""
    following = script.commands[script.commands.index(command) + 1 :]
    return [*takewhile(lambda each: is_override(each.words[0]), following)]


def _note_on_end(line: ShellCommand, script: Script) -> str:
    names = ", ".join(word.partition("=")[0] for word in line.words if is_override(word))
    cause = "bash ends the command before this line, at a comment, an empty line or a line without \\"
    return f"{script.words.file}:{line.line}: {cause}. verl does not read these settings; they are translated: {names}"


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


_OPTION = re.compile(r"(?:--(config[-_](?:path|name|dir))|-(c[npd]))(?:=(.*))?")
_SHORT = {"cn": "config-name", "cp": "config-path", "cd": "config-dir"}


def _options(words: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """The options of hydra that name files, by their long names, and the other words.

    >>> _options(["-cn", "mine", "--config_path=here", "a.b=1"])
    ({'config-name': 'mine', 'config-path': 'here'}, ['a.b=1'])
    """
    options: dict[str, str] = {}
    others, waiting = list[str](), ""
    for word in words:
        match = _OPTION.fullmatch(word)
        if waiting:
            options[waiting], waiting = word, ""
        elif match is None:
            others.append(word)
        else:
            name = _SHORT.get(match[2]) or match[1].replace("_", "-")
            options[name], waiting = match[3] or "", name if match[3] is None else ""
    return options, others


def _base_configurations(
    options: Mapping[str, str], expansion: Words, folder: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The settings of the files that `options` name, or a sentence about them."""
    name = options.get("config-name", "").strip("'\"").removesuffix(".yaml")
    if match := _OWN_CONFIGS.fullmatch(name):
        yield "", {"model_engine": "megatron"} if match[1] else {}
    elif name and (unknown := expansion.unknown_in("".join(options.values()))) is not None:
        yield f"{unknown.place}: {name}.yaml is in a directory that is not known: its settings are not translated", {}
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
