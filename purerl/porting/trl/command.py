"""YAML files of TRL's command, such as ``trl sft --config FILE.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from purerl.config.aliases.answers import defaults
from purerl.errors import ConfigError, nearest
from purerl.porting.trl.script import METHODS

__all__ = ["read_yaml"]

_ARGUMENTS = ("ScriptArguments", "GRPOScriptArguments", "ModelConfig", "DatasetMixtureConfig")
_NO_FIELDS = ("env",)
"""Keys that are for the command itself."""


def read_yaml(path: Path, trainer: str | None) -> tuple[dict[str, Any], str]:
    """The settings in the YAML file at `path`, by name, and the method: "GRPO", "SFT", ...

    The method is `trainer`, in any case, or the only one that has all fields of the file.

    Raises: ConfigError if the file cannot be read, or if its fields do not decide the method.
    """
    table = _load(path)
    chosen = [method for method in METHODS if trainer is None or method.lower() == trainer.lower()]
    known = {method: _fields_of(method) for method in chosen}
    fitting = [method for method in chosen if table.keys() <= known[method].keys()]
    if len(fitting) != 1:
        raise _undecided(path, table, known, fitting)
    return {known[fitting[0]][name]: value for name, value in table.items()}, fitting[0]


def _load(path: Path) -> dict[str, Any]:
    import yaml

    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read", got=str(error), need="a YAML file") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{str(path)!r}", got=type(table).__name__, need="keys and values")
    return {str(name): _number(value) for name, value in table.items() if name not in _NO_FIELDS}


def _number(value: Any) -> Any:
    """`value`, in which text such as 1e-6, which YAML does not read as a number, is one."""
    try:
        return float(value) if isinstance(value, str) and "e" in value.lower() else value
    except ValueError:
        return value


def _fields_of(method: str) -> dict[str, str]:
    """The fields that a file for the command of `method` may have, with their names."""
    classes = (*_ARGUMENTS, f"{method}Config")
    names = [name for name in defaults("trl") if name.partition(".")[0] in classes]
    names = [name for name in names if method == "GRPO" or not name.startswith("GRPOScript")]
    return {name.partition(".")[2]: name for name in names}


def _undecided(path: Path, table: dict[str, Any], known: dict[str, dict[str, str]], fitting: list[str]) -> ConfigError:
    if fitting:
        need = "fields that only one of these trainers has"
        do = f"add --trainer {fitting[0].lower()}, or another one"
        return ConfigError(f"the trainer of {str(path)!r}", got=f"one of {', '.join(fitting)}", need=need, do=do)
    anywhere = {name for fields in known.values() for name in fields}
    unknown = [name for name in table if name not in anywhere]
    if unknown:
        errors = (ConfigError(name, got="no such setting in TRL", do=nearest(name, anywhere)) for name in unknown)
        return ConfigError("\n".join(map(str, errors)))
    return ConfigError(f"{str(path)!r}", got=", ".join(table), need="fields of one trainer of TRL")
