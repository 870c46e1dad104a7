"""Settings of TRL, peft and verl that are written in a configuration of purerl: what to write in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from purerl.config.aliases import LIBRARIES
from purerl.config.aliases.answers import defaults
from purerl.config.aliases.remedies import full_names
from purerl.config.tables import write
from purerl.errors import ConfigError

if TYPE_CHECKING:
    from purerl.porting.outcomes import Translation

__all__ = ["lines_for"]


def lines_for(given: Mapping[str, Any]) -> dict[str, str]:
    """The lines in place of the settings `given` of other libraries, by their names; names of none are left out.

    All settings of a library are translated together, because the value of one may depend on others. Those that are
    not given have the library's defaults. If that is refused, each is translated alone.

    >>> lines_for({"actor_rollout_ref.rollout.n": 8, "nothing": 1})
    {'actor_rollout_ref.rollout.n': 'write rollout.samples_per_prompt = 8'}
    """
    lines: dict[str, str] = {}
    for library in LIBRARIES:
        names = {full[0]: name for name in given if name not in lines and (full := full_names(library, name))}
        values = {full: given[name] for full, name in names.items() if full in defaults(library)}
        if not values:
            continue
        found = _lines(library, values) or {
            full: line for each in values.items() for full, line in _lines(library, dict([each])).items()
        }
        lines |= {names[full]: line for full, line in found.items() if line}
    return lines


def _lines(library: str, given: Mapping[str, Any]) -> dict[str, str]:
    """The lines for each setting in `given`; empty if they do not fit together, or a value has a wrong type."""
    translated = {"trl": _translate_trl, "verl": _translate_verl}[library]
    try:
        found, without = translated(given, given), translated({}, given)
    except (ConfigError, TypeError, ValueError, AttributeError, LookupError):
        return {}
    usual = {setting.key: setting.value for setting in without.settings}
    values = {setting.key: setting.value for setting in found.settings}
    changed = {key: value for key, value in values.items() if key not in usual or usual[key] != value}
    return {name: _line(found, name, values, changed) for name in given}


def _translate_trl(given: Mapping[str, Any], names: Iterable[str]) -> Translation:
    """The translation of `given`, with the classes of `names`."""
    from purerl.porting.translation import translate
    from purerl.porting.trl.fields import PROCESSES
    from purerl.porting.trl.importing import RULES

    classes = {name.partition(".")[0] for name in names} | {"GRPOTrainer"}
    assumed = {name: value for name, value in defaults("trl").items() if name.partition(".")[0] in classes}
    uses_lora = {"ModelConfig.use_peft": True} if any(name.startswith("ModelConfig.lora") for name in given) else {}
    return translate(given, "trl", RULES, assumed=assumed | uses_lora, context={PROCESSES: 1})


def _translate_verl(given: Mapping[str, Any], _: Iterable[str]) -> Translation:
    from purerl.porting.translation import translate
    from purerl.porting.verl.interpolation import resolve
    from purerl.porting.verl.rules import RULES

    values = resolve({**defaults("verl"), **given})
    assumed = {name: value for name, value in values.items() if name not in given}
    return translate({name: values[name] for name in given}, "verl", RULES, assumed=assumed)


def _line(found: Translation, name: str, values: Mapping[str, Any], changed: Mapping[str, Any]) -> str:
    """The lines for the setting `name`: those of its settings in `values` that it has `changed`, or all of them."""
    keys = [key for key in found.translated.get(name, ()) if key in values]
    if keys := [key for key in keys if key in changed] or keys:
        return f"write {', '.join(f'{key} = {write(values[key])}' for key in keys)}"
    if name in found.unneeded:
        return "together with your other settings, nothing has to be set"
    return f"not there: {found.missing[name]}" if name in found.missing else ""
