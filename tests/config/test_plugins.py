"""Plugins are found by name, by entry point and by address. Objects that are not plugins are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from purerl import plugins
from purerl.errors import ConfigError
from purerl.plugins import GROUPS, find, kind_of, names
from tests.config import examples

HERE = "tests.config.examples"
MISSING = f"cannot find '{HERE}:Missing'\n  got:  module {HERE} without Missing\n"
NO_BUILD = f"invalid trainer '{HERE}:WithoutBuild'\n  got:  no attribute build\n"


def test_every_name_is_a_plugin_and_kind_of_is_the_inverse_of_find() -> None:
    for group, kind in [(each, name) for each in GROUPS for name in names(each)]:
        plugin = find(group, kind)
        config = object.__new__(plugin.Config)  # a Config may have fields without a default
        assert callable(getattr(plugin, GROUPS[group].builder)), (group, kind)
        assert type(config) is plugin.Config, (group, kind)
        assert kind_of(config) == kind, group


def test_plugins_of_purerl_are_found() -> None:
    assert {"grpo"} <= set(names("algorithm"))
    assert "algebra" not in names("algorithm")
    assert {"hf"} <= set(names("trainer"))
    assert {"hf"} <= set(names("generator"))


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (HERE, examples.Config()),
        (f"{HERE}:Nested", examples.Nested.Config()),
        (f"{HERE}:Outside", examples.OutsideConfig()),
    ],
)
def test_an_address_may_be_a_module_or_a_class(kind: str, config: object) -> None:
    plugin = find("trainer", kind)
    assert plugin.Config is type(config)
    assert plugin.build(config)[1] is config
    assert kind_of(config) == kind


@pytest.fixture
def entry_points(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two trainers that a distribution declares, one of them with a name that purerl uses."""
    new = EntryPoint("mine", f"{HERE}:Nested", "purerl.trainers")
    taken = EntryPoint("hf", f"{HERE}:Outside", "purerl.trainers")
    points = EntryPoints([new, taken])
    monkeypatch.setattr(plugins, "entry_points", lambda: points)
    plugins._entry_points.cache_clear()
    plugins.addresses.cache_clear()
    yield
    plugins._entry_points.cache_clear()
    plugins.addresses.cache_clear()


@pytest.mark.usefixtures("entry_points")
def test_an_entry_point_declares_a_name() -> None:
    assert "mine" in names("trainer")
    assert "mine" not in names("generator")
    assert find("trainer", "mine") is examples.Nested
    assert kind_of(examples.Nested.Config()) == "mine"
    assert find("trainer", "hf").__name__ == "purerl.backends.hf.trainer", "names of purerl cannot be overridden"


def test_names_does_not_import_torch() -> None:
    code = "import sys; from purerl.plugins import names; names('algorithm'); print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"


@pytest.mark.parametrize(
    ("group", "kind", "message"),
    [
        ("algorithm", "gropo", "unknown algorithm 'gropo'\n  do:   did you mean 'grpo'?; name a plugin of "),
        ("trainer", "nowhere.at_all", "cannot find 'nowhere.at_all'\n  got:  No module named 'nowhere'\n"),
        ("trainer", f"{HERE}:Missing", MISSING),
        ("trainer", f"{HERE}:WithoutBuild", NO_BUILD),
        ("algorithm", HERE, f"invalid algorithm '{HERE}'\n  got:  no attribute algorithm\n"),
        ("tracker", "purerl.errors", "invalid tracker 'purerl.errors'\n  got:  no attribute Config, build\n"),
        ("trainer", f"{HERE}:WithKind", "got:  a field called kind\n  need: another name than kind: "),
        ("trainer", ".relative", "cannot find '.relative'"),
        ("trainer", ":Class", "cannot find ':Class'"),
    ],
)  # fmt: skip
def test_objects_that_are_not_plugins_are_refused(group: str, kind: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        find(group, kind)
    assert message in str(error.value)


def test_a_config_names_its_plugin_and_one_that_extends_it_does_not_inherit_the_name() -> None:
    assert kind_of(examples.NamedConfig()) == f"{HERE}:Named"
    assert find("trainer", f"{HERE}:Named").Config is examples.NamedConfig
    assert kind_of(examples.Extending.Config()) == f"{HERE}:Extending"


def test_a_config_without_plugin_has_no_kind() -> None:
    with pytest.raises(ConfigError, match=r"^NoPluginConfig is not the Config of a plugin"):
        kind_of(examples.NoPluginConfig())
