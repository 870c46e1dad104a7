"""YAML files of TRL's command, such as ``trl sft --config FILE.yaml``, and the fields that its arguments may be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from purerl.config.aliases.answers import answers, defaults
from purerl.errors import ConfigError
from purerl.porting.trl.methods import METHODS
from purerl.porting.trl.old_names import NOT_NEEDED, current_field

__all__ = ["load_yaml", "named_fields", "read_yaml"]

_ARGUMENTS = ("ScriptArguments", "GRPOScriptArguments", "ModelConfig", "DatasetMixtureConfig")
_NO_FIELDS = ("env",)
"""Keys that are for the command itself."""


def read_yaml(path: Path, trainer: str | None) -> tuple[dict[str, Any], str]:
    """The settings in the YAML file at `path`, by name, and the method: "GRPO", "SFT", ...

    The method is `trainer`, in any case, or the only one that has all fields of the file that any trainer has.

    Raises: ConfigError if the file cannot be read, or if its fields do not decide the method.
    """
    table = load_yaml(path)
    chosen = [method for method in METHODS if trainer is None or method.lower() == trainer.lower()]
    known = {method: _fields_of(method) for method in chosen}
    anywhere = {name for fields in known.values() for name in fields}
    fields = {name for name in table if name in anywhere and name not in NOT_NEEDED}
    fitting = [method for method in chosen if fields <= known[method].keys()]
    if len(fitting) != 1 or not fields:
        raise _undecided(path, table, fitting if fields else [])
    return named_fields(table, fitting[0]), fitting[0]


def named_fields(table: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The fields in `table` by their names with the class; one that no class has is a field of the configuration."""
    known = _fields_of(method)
    return {known.get(name, f"{method}Config.{name}"): value for name, value in table.items()}


def load_yaml(path: Path) -> dict[str, Any]:
    """The keys and values of the YAML file at `path`, with the names that the fields have today.

    Raises: ConfigError if it cannot be read.
    """
    import yaml

    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read", got=str(error), need="a YAML file") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{str(path)!r}", got=type(table).__name__, need="keys and values")
    return {current_field(str(name)): _number(value) for name, value in table.items() if name not in _NO_FIELDS}


def _number(value: Any) -> Any:
    """`value`, in which text such as 1e-6, which YAML does not read as a number, is one."""
    try:
        return float(value) if isinstance(value, str) and "e" in value.lower() else value
    except ValueError:
        return value


def _fields_of(method: str) -> dict[str, str]:
    """The fields that a file for the command of `method` may have, with their names; those of earlier versions too."""
    classes = (*_ARGUMENTS, f"{method}Config")
    old = [name for one in answers("trl") for name in one.names if "*" not in name]
    names = [name for name in (*old, *defaults("trl")) if name.partition(".")[0] in classes]
    names = [name for name in names if method == "GRPO" or not name.startswith("GRPOScript")]
    return {name.partition(".")[2]: name for name in names}


def _undecided(path: Path, table: Mapping[str, Any], fitting: list[str]) -> ConfigError:
    if fitting:
        need = "fields that only one of these trainers has"
        do = f"add --trainer {fitting[0].lower()}, or another one"
        return ConfigError(f"the trainer of {str(path)!r}", got=f"one of {', '.join(fitting)}", need=need, do=do)
    return ConfigError(f"{str(path)!r}", got=", ".join(table), need="fields of one trainer of TRL", do="add --trainer")
