"""Plugins are found by name, by entry point and by address, and what is no plugin is refused with a reason."""

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
NOTHING = f"nothing is found at '{HERE}:Missing'\n  got:  module {HERE} without Missing\n"
NO_BUILD = f"'{HERE}:WithoutBuild' is no trainer\n  got:  nothing called build in it\n"


@pytest.mark.parametrize(("group", "kind"), [(group, kind) for group in GROUPS for kind in names(group)])
def test_every_name_of_ours_is_a_plugin_and_kind_of_is_the_inverse_of_find(group: str, kind: str) -> None:
    plugin = find(group, kind)
    config = object.__new__(plugin.Config)  # a Config may have fields without a default
    assert callable(getattr(plugin, GROUPS[group].builder))
    assert type(config) is plugin.Config
    assert kind_of(config) == kind


def test_ours_are_found() -> None:
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
def test_an_address_names_a_module_or_a_class(kind: str, config: object) -> None:
    plugin = find("trainer", kind)
    assert plugin.Config is type(config)
    assert plugin.build(config)[1] is config
    assert kind_of(config) == kind


@pytest.fixture
def entry_points(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if a distribution were installed that declares two trainers, one under a name of ours."""
    mine = EntryPoint("mine", f"{HERE}:Nested", "purerl.trainers")
    theirs = EntryPoint("hf", f"{HERE}:Outside", "purerl.trainers")
    points = EntryPoints([mine, theirs])
    monkeypatch.setattr(plugins, "entry_points", lambda group: points.select(group=group))
    plugins._addresses.cache_clear()
    yield
    plugins._addresses.cache_clear()


@pytest.mark.usefixtures("entry_points")
def test_an_entry_point_gives_a_short_name() -> None:
    assert "mine" in names("trainer")
    assert "mine" not in names("generator")
    assert find("trainer", "mine") is examples.Nested
    assert kind_of(examples.Nested.Config()) == "mine"
    assert find("trainer", "hf").__name__ == "purerl.backends.hf.trainer", "no distribution changes what ours means"


def test_names_imports_nothing() -> None:
    code = "import sys; from purerl.plugins import names; names('algorithm'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("group", "kind", "message"),
    [
        ("algorithm", "gropo", "no algorithm is called 'gropo'\n  do:   did you mean 'grpo'?; one of your own is "),
        ("trainer", "nowhere.at_all", "nothing is found at 'nowhere.at_all'\n  got:  No module named 'nowhere'\n"),
        ("trainer", f"{HERE}:Missing", NOTHING),
        ("trainer", f"{HERE}:WithoutBuild", NO_BUILD),
        ("algorithm", HERE, f"'{HERE}' is no algorithm\n  got:  nothing called algorithm in it\n"),
        ("tracker", "purerl.errors", "'purerl.errors' is no tracker\n  got:  nothing called Config, build in it\n"),
        ("trainer", f"{HERE}:WithKind", "without a field called kind"),
        ("trainer", ".relative", "nothing is found at '.relative'"),
        ("trainer", ":Class", "nothing is found at ':Class'"),
    ],
)  # fmt: skip
def test_what_is_no_plugin_is_refused(group: str, kind: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        find(group, kind)
    assert message in str(error.value)


def test_a_config_of_no_plugin_has_no_kind() -> None:
    with pytest.raises(ConfigError, match=r"^Lonely has no kind"):
        kind_of(examples.Lonely())
