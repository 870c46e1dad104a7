"""Translation of a script, a command or a YAML file of TRL to a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from purerl.config.aliases import read_library
from purerl.config.aliases.answers import defaults
from purerl.errors import ConfigError
from purerl.porting.outcomes import Setting, Translation
from purerl.porting.toml import write_toml
from purerl.porting.translation import translate, unknown_names
from purerl.porting.trl.command import load_yaml, named_fields, read_yaml
from purerl.porting.trl.data_rules import DATA_RULES
from purerl.porting.trl.fields import PROCESSES
from purerl.porting.trl.launch import Launch, read_launch
from purerl.porting.trl.loss_rules import LOSS_RULES
from purerl.porting.trl.old_names import NOT_NEEDED, current_field
from purerl.porting.trl.run_rules import RUN_RULES
from purerl.porting.trl.script import Script, read_script
from purerl.settings import no_effect

__all__ = ["RULES", "import_trl", "translate_trl"]

RULES = RUN_RULES | LOSS_RULES | DATA_RULES
"""The rules that purerl/config/aliases/trl_answers.toml names."""

_KINDS = {"Reward": "reward_model"}
_SHELL = (".sh", ".bash", ".slurm", ".sbatch")


class _Given(NamedTuple):
    """The settings of a source by name, the method, the number of processes, and sentences about what is not read."""

    name: str
    settings: Mapping[str, Any]
    method: str
    processes: int
    notes: tuple[str, ...] = ()


def import_trl(source: Path | str, *, trainer: str | None = None, processes: int | None = None) -> str:
    """The TOML file for `source`, as `translate_trl` reads it.

    Raises: ConfigError as `translate_trl`.
    """
    title = Path(source).name if not _is_command(str(source)) else "A command"
    return write_toml(translate_trl(source, trainer=trainer, processes=processes), title)


def translate_trl(source: Path | str, *, trainer: str | None = None, processes: int | None = None) -> Translation:
    """The settings of purerl for `source`: a script, a YAML file, or a command that starts TRL or a script.

    trainer    whose a YAML file is: "grpo", ...
    processes  how many the script is started on; if not given, those of the command, or one

    Raises: ConfigError if it cannot be read, or does not have one trainer.
    """
    given = _read(source, trainer, processes)
    settings, absent = {}, {}
    unknown = unknown_names(given.settings, "trl")
    for name, value in given.settings.items():
        if name in unknown:
            absent[name] = f"no such setting in TRL {read_library('trl').version}: {unknown[name]}"
        else:
            settings[name] = value
    old = {name: NOT_NEEDED[field] for name in absent if (field := name.partition(".")[2]) in NOT_NEEDED}
    first = [Setting("name", given.name), Setting("trainer.kind", "hf")]
    if given.method in _KINDS:
        first.append(Setting("algorithm.kind", _KINDS[given.method]))
    if given.processes > 1:
        first.append(Setting("placement.ranks", given.processes))
    context, assumed = {PROCESSES: given.processes}, _assumed(given.method, settings)
    found = translate(settings, "trl", RULES, assumed=assumed, context=context, first=first)
    absent = {name: why for name, why in absent.items() if name not in old}
    title = f"TRL {read_library('trl').version} does not have, so that nothing is translated"
    notes = (*given.notes, *([f"{title}: {', '.join(absent)}"] if absent else []))
    return found._replace(unneeded={**found.unneeded, **old}, missing={**found.missing, **absent}, notes=notes)


def _is_command(source: str) -> bool:
    return any(map(str.isspace, source.strip())) and not Path(source).exists()


def _read(source: Path | str, trainer: str | None, processes: int | None) -> _Given:
    path = Path(source)
    is_command = _is_command(str(source))
    is_yaml = not is_command and path.suffix in (".yaml", ".yml")
    if trainer is not None and not is_yaml:
        raise no_effect("--trainer", trainer, "a YAML file: a script creates its trainer, and a command names it")
    if is_command:
        return _started(read_launch(str(source), "the command", Path()), processes)
    if is_yaml:
        return _Given(path.stem, *read_yaml(path, trainer), processes or 1)
    if path.suffix in _SHELL:
        return _started(read_launch(_text(path), path.name, path.parent), processes)
    if path.suffix != ".py":
        need = "a script (.py), a file for TRL's command (.yaml), a shell script (.sh), or a command in quotes"
        raise ConfigError(f"{str(path)!r}", got=f"the extension {path.suffix!r}", need=need)
    script = read_script(path)
    return _Given(path.stem, script.settings, script.method, processes or 1, _notes(script, path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read", got=str(error), need="a shell script") from error


def _started(launch: Launch, processes: int | None) -> _Given:
    """The settings of a command: those of its script, of its YAML file, and its arguments, each before the next."""
    count = processes or launch.processes or 1
    table = load_yaml(launch.config) if launch.config is not None else {}
    table |= {current_field(name): value for name, value in launch.flags.items()}
    if launch.script is None:
        return _Given(launch.method.lower(), named_fields(table, launch.method), launch.method, count, launch.notes)
    script = read_script(launch.script)
    if not script.is_parsed:
        notes = (*launch.notes, *_notes(script, launch.script))
        if table:
            notes += (f"arguments of {launch.script.name} are not translated: {', '.join(table)}",)
        return _Given(launch.script.stem, script.settings, script.method, count, notes)
    settings = script.settings
    if "dataset_name" in table or "datasets" in table:
        settings = {name: value for name, value in settings.items() if not name.endswith("_dataset")}
    settings = {**settings, **named_fields(table, script.method)}
    return _Given(launch.script.stem, settings, script.method, count, launch.notes)


def _notes(script: Script, path: Path) -> tuple[str, ...]:
    """Sentences about values that the command line of the script may have."""
    if script.is_parsed:
        do = f"the whole command in quotes is read with them: 'accelerate launch {path.name} --FIELD VALUE'"
        return (
            f"{path.name} takes its configuration from the command line, so its fields have TRL's defaults here; {do}",
        )
    if script.defaults:
        return (f"defaults of arguments of the command line: {', '.join(script.defaults)}",)
    return ()


def _assumed(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of the classes that are used: the trainer, its configuration, and others that are given."""
    used = {f"{method}Trainer", f"{method}Config", *(name.partition(".")[0] for name in given)}
    return {name: value for name, value in defaults("trl").items() if name.partition(".")[0] in used}
