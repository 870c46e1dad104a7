"""The settings of TRL and verl in the tables, with their defaults, against the installed libraries.

A failure names what a new version has added, removed, or given another default: LIBRARY_fields.json is to be changed,
and LIBRARY_answers.toml needs an answer for what is new.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import pytest

from purerl.config.aliases.answers import answer, defaults, other_defaults


def test_settings_of_trl_transformers_and_peft_are_those_of_the_table() -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed: nox -s oracle")
    from peft import LoraConfig
    from transformers import TrainingArguments
    from trl.scripts.grpo import GRPOScriptArguments

    methods = ("GRPO", "SFT", "DPO", "KTO", "Reward")
    classes = [*(getattr(trl, f"{method}Config") for method in methods), TrainingArguments, LoraConfig]
    classes += [trl.ModelConfig, trl.ScriptArguments, GRPOScriptArguments, trl.DatasetMixtureConfig]
    inherited = {field.name for field in fields(trl.ScriptArguments)}
    found = {
        f"{cls.__name__}.{name}": default
        for cls in classes
        for name, default in _defaults(cls)
        if cls is not GRPOScriptArguments or name not in inherited
    }
    for method in methods:
        parameters = [*inspect.signature(getattr(trl, f"{method}Trainer").__init__).parameters.values()][1:]
        found |= {f"{method}Trainer.{each.name}": _plain(each.default) for each in parameters}
    _compare("trl", found)


_TRAINERS_OF_VERL = {
    "dp": ("ppo_trainer", []),
    "megatron": ("ppo_trainer", ["model_engine=megatron"]),
    "sft": ("sft_trainer_engine", []),
    "sft_megatron": ("sft_trainer_engine", ["engine=megatron", "optim=megatron"]),
}


@pytest.mark.parametrize("trainer", _TRAINERS_OF_VERL)
def test_settings_of_verl_are_those_of_the_table(trainer: str) -> None:
    hydra = pytest.importorskip("hydra", reason="hydra is not installed: nox -s oracle")
    from omegaconf import OmegaConf

    try:
        directory = distribution("verl").locate_file("verl/trainer/config")
    except PackageNotFoundError:
        pytest.skip("verl is not installed: nox -s oracle")
    name, overrides = _TRAINERS_OF_VERL[trainer]
    with hydra.initialize_config_dir(str(directory), version_base=None):
        config = OmegaConf.to_container(hydra.compose(name, overrides=overrides), resolve=False)
    _compare("verl", dict(_leaves(config)), None if trainer == "dp" else other_defaults("verl")[trainer])


def _compare(library: str, found: Mapping[str, Any], listed: Mapping[str, Any] | None = None) -> None:
    """Compare `found` with `listed`, or with the defaults of the library."""
    listed = defaults(library) if listed is None else listed
    new = [name for name in found if name not in listed]
    removed = [name for name in listed if name not in found]
    changed = {name: (listed[name], found[name]) for name in found if name in listed and listed[name] != found[name]}
    assert {"new": new, "removed": removed, "changed": changed} == {"new": [], "removed": [], "changed": {}}
    assert [name for name in found if answer(library, name) is None] == []


def _defaults(cls: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(cls):
        is_made = field.default_factory is not MISSING
        yield field.name, _plain(field.default_factory() if is_made else field.default)


def _plain(value: Any) -> Any:
    """`value` as JSON has it; None for what JSON has not."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    is_missing = value is MISSING or value is inspect.Parameter.empty
    return value if isinstance(value, bool | int | float | str) and not is_missing else None


def _leaves(table: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys and values of all values in `table` that are not tables, or are empty ones."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
