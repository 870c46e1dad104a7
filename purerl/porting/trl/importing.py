"""Translation of a script or a YAML file of TRL to a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from purerl.config.aliases.answers import defaults
from purerl.errors import ConfigError
from purerl.porting.outcomes import Setting, Translation
from purerl.porting.toml import write_toml
from purerl.porting.translation import translate
from purerl.porting.trl.command import read_yaml
from purerl.porting.trl.data_rules import DATA_RULES
from purerl.porting.trl.fields import PROCESSES
from purerl.porting.trl.loss_rules import LOSS_RULES
from purerl.porting.trl.run_rules import RUN_RULES
from purerl.porting.trl.script import read_script
from purerl.settings import no_effect

__all__ = ["RULES", "import_trl", "translate_trl"]

RULES = RUN_RULES | LOSS_RULES | DATA_RULES
"""The rules that purerl/config/aliases/trl_answers.toml names."""

_KINDS = {"Reward": "reward_model"}


def import_trl(source: Path, *, trainer: str | None = None, processes: int = 1) -> str:
    """The TOML file for the script or YAML file `source`, which would be started on `processes` processes.

    Raises: ConfigError as `translate_trl`.
    """
    return write_toml(translate_trl(source, trainer=trainer, processes=processes), source.name)


def translate_trl(source: Path, *, trainer: str | None = None, processes: int = 1) -> Translation:
    """The settings of purerl for the script or YAML file `source`; for YAML `trainer` says whose it is: "grpo", ...

    Raises: ConfigError if it cannot be read, does not have one trainer, or has a setting that TRL does not have.
    """
    if source.suffix == ".py" and trainer is not None:
        raise no_effect("--trainer", trainer, "a YAML file: a script creates its trainer")
    if source.suffix not in (".py", ".yaml", ".yml"):
        need = "a script (.py), or a file for TRL's command (.yaml)"
        raise ConfigError(f"{str(source)!r}", got=f"the extension {source.suffix!r}", need=need)
    given, method = read_script(source) if source.suffix == ".py" else read_yaml(source, trainer)
    first = [Setting("name", source.stem), Setting("trainer.kind", "hf")]
    if method in _KINDS:
        first.append(Setting("algorithm.kind", _KINDS[method]))
    if processes > 1:
        first.append(Setting("placement.ranks", processes))
    context = {PROCESSES: processes}
    return translate(given, "trl", RULES, assumed=_assumed(method, given), context=context, first=first)


def _assumed(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of the classes that are used: the trainer, its configuration, and others that are given."""
    used = {f"{method}Trainer", f"{method}Config", *(name.partition(".")[0] for name in given)}
    return {name: value for name, value in defaults("trl").items() if name.partition(".")[0] in used}
