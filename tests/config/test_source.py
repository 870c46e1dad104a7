"""Source code that is read and not run: it says the same as the imported module."""

from __future__ import annotations

import inspect
from pathlib import Path

import attrs
import pytest

from purerl.plugins import GROUPS, fields_of, find, names
from purerl.recipes import find as find_recipe
from purerl.recipes import names as recipe_names
from purerl.system import static_inspect as source

TEXT = """
import os.path as paths
from functools import *
if True:
    from purerl.algos.grpo import Config
    a, b = 1, 2
else:
    def other(x, /, y, *z, k=1, **rest): ...
try:
    pass
except ImportError:
    c: int = 3

class Outer:
    def method(self): ...

@decorated
def wrapped(a): ...
raise SystemExit
"""


def test_fields_of_every_plugin_are_those_of_its_config() -> None:
    plugins = [(group, kind) for group in GROUPS for kind in names(group)]
    expected = {plugin: set(attrs.fields_dict(find(*plugin).Config)) for plugin in plugins}
    assert {plugin: fields_of(*plugin) for plugin in plugins} == expected


@pytest.mark.parametrize("recipe", recipe_names())
def test_signature_of_every_recipe_has_its_parameters(recipe: str) -> None:
    path = source.find_source(f"purerl.recipes.{recipe}")
    assert path is not None
    signature = source.signature_of(path, recipe)
    assert signature is not None
    actual = inspect.signature(find_recipe(recipe)).parameters
    assert [*signature.parameters] == [*actual]
    required = [name for name, one in signature.parameters.items() if one.default is one.empty]
    assert required == [name for name, one in actual.items() if one.default is one.empty]


def test_names_are_found_in_blocks_and_classes_and_nothing_runs(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(TEXT.replace("from functools import *\n", ""))
    for name in ("paths", "Config", "a", "b", "other", "c", "Outer", "Outer.method", "wrapped"):
        assert source.definition(path, name) is not None, name
    for name in ("missing", "os", "Outer.missing", "method", "x"):
        assert source.definition(path, name) is None, name
    assert str(source.signature_of(path, "other")) == "(x, /, y, *z, k=Ellipsis, **rest)"
    assert source.signature_of(path, "wrapped") is None
    assert source.config_fields(path) == {"clip_low", "clip_high"}
    path.write_text(TEXT)
    assert source.definition(path, "anything") is not None, "the star may import it"
    path.write_text("def broken(:")
    assert source.definition(path, "broken") is None


def test_modules_are_found_without_importing_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "package_that_raises"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError")
    (package / "module.py").write_text("def function(a): ...")
    assert source.find_source("package_that_raises.module") == package / "module.py"
    assert source.exists("package_that_raises")
    assert not source.exists("package_that_raises.other")
    assert not source.exists("package_that_raises.module.inner")
    assert source.find_source("math") is None
    assert source.exists("math")
