"""Translation of a command, a script or a configuration of verl to a TOML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from purerl.config.aliases import read_library
from purerl.config.aliases.answers import answer, defaults, other_defaults
from purerl.porting.outcomes import Setting, Translation, Unknown
from purerl.porting.toml import write_toml
from purerl.porting.translation import translate, unknown_names
from purerl.porting.verl.interpolation import resolve
from purerl.porting.verl.reading import Given, is_file_name, read
from purerl.porting.verl.rules import RULES
from purerl.porting.verl.values import is_sft_of

__all__ = ["import_verl", "translate_verl"]

_WITHOUT_TRAINING = ("main_generation", "main_eval", "preprocess", "model_merger")


def import_verl(source: str) -> str:
    """The TOML file for `source`: a command, or the name of a script or of a YAML file.

    Raises: ConfigError as `translate_verl`.
    """
    return write_toml(translate_verl(source), Path(source).name if is_file_name(source) else "A command")


def translate_verl(source: str) -> Translation:
    """The settings of purerl for a command, a script or a YAML file of verl. A script is read, not run.

    Raises: ConfigError if it cannot be read, and for an interpolation that cannot be resolved.
    """
    given = read(source)
    unknown = unknown_names(given.values, "verl")
    values = {name: value for name, value in given.values.items() if name not in unknown}
    translation = _translated(given, values)
    title = f"no such setting in verl {read_library('verl').version}"
    absent = {name: f"{title}: {do}" for name, do in unknown.items()}
    return translation._replace(
        translated=_in_order(translation.translated, given),
        unneeded=_in_order(translation.unneeded, given),
        missing=_in_order({**translation.missing, **absent}, given),
        notes=given.notes,
    )


def _in_order(items: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """`items` in the order in which the settings were given."""
    return {name: items[name] for name in (*given.values, *items) if name in items}


def _translated(given: Given, values: Mapping[str, Any]) -> Translation:
    if any(name in given.module for name in _WITHOUT_TRAINING):
        return _listed(values)
    assumed = _assumed(given, values)
    given_values = resolve({**assumed, **values})
    # A value that follows from an unknown one is that of the default.
    resolved = resolve({**assumed, **{name: each for name, each in values.items() if not isinstance(each, Unknown)}})
    values = {name: given_values[name] for name in values}
    assumed = {name: value for name, value in resolved.items() if name not in values or name in assumed}
    first = [Setting("algorithm.kind", "sft")] if is_sft_of(resolved) else [*_of_program(given.module)]
    return translate(values, "verl", RULES, assumed=assumed, first=first)


_ASYNCHRONOUS = ("one_step_off_policy", "fully_async_policy")


def _of_program(module: str) -> Iterator[Setting]:
    """The settings that the program itself stands for: asynchronous training."""
    if any(name in module for name in _ASYNCHRONOUS):
        yield Setting("rollout.max_staleness", 1, f"{module} samples while it trains")
        yield Setting("algorithm.bypass", True, "the ratio to the rollout policy")  # noqa: FBT003 - the value


def _assumed(given: Given, values: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of the trainer that is started."""
    others = other_defaults("verl")
    is_megatron = "megatron" in (values.get("model_engine"), values.get("actor_rollout_ref.actor.strategy"))
    if "sft" in given.module or (not given.module and _is_sft(values)):
        is_megatron = is_megatron or values.get("engine") == "megatron"
        processes = {"trainer.n_gpus_per_node": given.processes} if given.processes else {}
        return {**others["sft_megatron" if is_megatron else "sft"], **processes}
    devices = ("nnodes", "n_gpus_per_node") if any(name in given.module for name in _ASYNCHRONOUS) else ()
    own = {f"actor_rollout_ref.rollout.{name}": values.get(f"rollout.{name}") for name in devices}
    own = {name: value for name, value in own.items() if value is not None and not isinstance(value, Unknown)}
    return {**(others["megatron"] if is_megatron else defaults("verl")), **own}


def _is_sft(values: Mapping[str, Any]) -> bool:
    sections = {name.partition(".")[0] for name in values}
    return not sections & {"actor_rollout_ref", "algorithm", "critic", "reward"} and bool(
        sections & {"optim", "engine"}
    )


def _listed(values: Mapping[str, Any]) -> Translation:
    """The lists for a program that does not train."""
    found = {name: one for name in values if (one := answer("verl", name)) is not None}
    missing = {name: one.missing or "the program does not train" for name, one in found.items() if not one.unneeded}
    unneeded = {name: one.unneeded for name, one in found.items() if one.unneeded}
    settings: tuple[Setting, ...] = ()
    unknown = {name: value for name, value in values.items() if isinstance(value, Unknown)}
    return Translation("verl", settings, {}, unneeded, missing, unknown)
