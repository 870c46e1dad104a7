"""The names that engines may define are those of `TrainerPlugin` and `GeneratorPlugin`."""

from __future__ import annotations

import subprocess
import sys
from inspect import isfunction
from typing import Any

import attrs
import pytest

from purerl.backends.plugin import GeneratorPlugin, TrainerPlugin, engine_plugin, generator_plugin, trainer_plugin
from purerl.plugins import find, names
from purerl.system.memory_use import MemoryUse

CLASSES = {"trainer": TrainerPlugin, "generator": GeneratorPlugin}
ENGINES = [(group, kind) for group in CLASSES for kind in names(group)]
OF_SETTINGS = {"replayed_routes", "returns_routes"}  # by default the value of a setting, which each engine can have


def _defined(group: str, kind: str) -> set[str]:
    """The public functions and constants of the module of an engine."""
    module = find(group, kind)
    functions = {name for name in module.__all__ if isfunction(getattr(module, name)) or name.isupper()}
    return {"Config"} | functions


@pytest.mark.parametrize(("group", "kind"), ENGINES)
def test_every_public_function_of_an_engine_is_a_field(group: str, kind: str) -> None:
    assert _defined(group, kind) <= {*attrs.fields_dict(CLASSES[group])}
    plugin = engine_plugin(group, kind)
    assert type(plugin) is CLASSES[group]
    assert {name: getattr(plugin, name) for name in _defined(group, kind)} == {
        name: getattr(find(group, kind), name) for name in _defined(group, kind)
    }


@pytest.mark.parametrize("group", CLASSES)
def test_every_field_is_documented_and_defined_by_an_engine(group: str) -> None:
    fields = {*attrs.fields_dict(CLASSES[group])}
    assert fields <= OF_SETTINGS.union(*(_defined(*engine) for engine in ENGINES))
    text = CLASSES[group].__doc__ or ""
    assert [name for name in fields if f"\n    {name}" not in text] == []


class Least:
    """A trainer and a generator with what is needed, and nothing else."""

    @attrs.frozen
    class Config:
        """No settings."""

    @staticmethod
    def build(config: Any, **arguments: Any) -> Any:
        raise NotImplementedError


def test_defaults() -> None:
    """They accept everything, and say of the engine what changes nothing."""
    config, kind = Least.Config(), f"{__name__}:Least"
    trainer, generator = trainer_plugin(config), generator_plugin(config)
    assert trainer.build is generator.build is Least.build
    trainer.check(config, role="policy", outputs=(), updates=None)
    trainer.check_installed(config)
    trainer.check_ranks(config, 3)
    trainer.check_model(config, model="m", outputs=(), is_trained=True)
    generator.check(config)
    generator.check_adapter_rank(config, 8)
    generator.check_running(config, model="m")
    assert (trainer.adapter_rank(config), trainer.compute_dtype(config)) == (None, None)
    assert (trainer.depends_on_length(config), trainer.replayed_routes(config)) == (True, "off")
    assert generator.returns_routes(config) is False
    assert generator.command is trainer.conformance is None
    for plugin, group in ((trainer, "trainer"), (generator, "generator")):
        assert plugin.capabilities is plugin.preview is plugin.VERSION is None
        text = f"the {group} {kind} is not counted: its memory is not known"
        assert plugin.memory(config, model="m") == MemoryUse(states={}, assumed=(text,))


@pytest.mark.parametrize("kind", ["hf", "vllm", "sglang"])
def test_generators_return_routes_as_their_setting_says(kind: str) -> None:
    for value in (False, True):
        config = find("generator", kind).Config(return_routes=value)
        assert generator_plugin(config).returns_routes(config) is value


def test_settings_of_engines_load_no_torch() -> None:
    modules = [find(*engine).Config.__module__ for engine in ENGINES]
    assert all(module.endswith(".settings") for module in modules)
    code = f"import sys, {', '.join([*modules, 'purerl.backends.plugin'])}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
