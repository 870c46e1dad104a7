"""Settings of TRL, peft and verl that are written in a configuration of purerl: what to write in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purerl.config.aliases import LIBRARIES
from purerl.config.aliases.answers import defaults
from purerl.config.aliases.remedies import full_names
from purerl.config.tables import write
from purerl.errors import ConfigError
from purerl.porting.outcomes import Translation
from purerl.porting.translation import translate
from purerl.porting.trl.fields import PROCESSES

__all__ = ["lines_for"]


def lines_for(given: Mapping[str, Any]) -> dict[str, str]:
    """What to write in place of the settings `given` of other libraries, by their names; names of none are left out.

    All settings of a library are translated together, because the value of one may depend on others. Those that are
    not given have the library's defaults.

    >>> lines_for({"actor_rollout_ref.rollout.n": 8, "seed": 1})
    {'actor_rollout_ref.rollout.n': 'write rollout.samples_per_prompt = 8'}
    """
    lines: dict[str, str] = {}
    for library in LIBRARIES:
        names = {full[0]: name for name in given if name not in lines and (full := full_names(library, name))}
        found = _translated(library, {full: given[name] for full, name in names.items()}) if names else None
        if found is not None:
            lines |= {name: line for full, name in names.items() if (line := _line(found, full))}
    return lines


def _translated(library: str, given: Mapping[str, Any]) -> Translation | None:
    """The translation of the settings `given`; None if they do not fit together, or a value has a wrong type."""
    from purerl.porting.trl.importing import RULES as TRL_RULES
    from purerl.porting.verl.rules import RULES as VERL_RULES

    classes = {name.partition(".")[0] for name in given} | {"GRPOTrainer"}
    assumed = defaults(library)
    if library == "trl":
        assumed = {name: value for name, value in assumed.items() if name.partition(".")[0] in classes}
    rules = {"trl": TRL_RULES, "verl": VERL_RULES}[library]
    try:
        return translate(given, library, rules, assumed=assumed, context={PROCESSES: 1})
    except (ConfigError, TypeError, ValueError, AttributeError, LookupError):
        return None


def _line(found: Translation, name: str) -> str:
    values = {setting.key: setting.value for setting in found.settings}
    if keys := [key for key in found.translated.get(name, ()) if key in values]:
        return f"write {', '.join(f'{key} = {write(values[key])}' for key in keys)}"
    if name in found.unneeded:
        return found.unneeded[name]
    return f"not there: {found.missing[name]}" if name in found.missing else ""
