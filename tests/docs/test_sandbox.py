"""docs/explanation/sandbox.md and docs/how-to/tools.md: the examples run, and the tables list what there is."""

from __future__ import annotations

import re
import sys
import typing
from pathlib import Path

import attrs
import pytest

from purerl.envs.settings import EnvironmentSettings
from purerl.sandbox import Limits, SandboxSettings
from purerl.sandbox.failures import LAYERS
from purerl.sandbox.program_results import Status

from .test_quickstart import ROOT

PAGE = (ROOT / "docs" / "explanation" / "sandbox.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TOOLS = (ROOT / "docs" / "how-to" / "tools.md").read_text(encoding="utf-8")


def _section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("code", BLOCKS)
def test_example_runs(code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words").write_text("a")
    code = code.replace("/data/words", str(tmp_path / "words")).replace("/usr/bin/python3", sys.executable)
    exec(code, {})
    output = capsys.readouterr().out
    if "input().split()" in code:
        assert output == "ok 0 b'6\\n'\n"
    if "math.pi" in code:
        assert output == "3.14\n\n"


def test_statuses_limits_layers_and_settings_are_listed() -> None:
    assert re.findall(r"^\| `(\w+)` \| (?:ended|was|exceeded)", PAGE, re.MULTILINE) == list(typing.get_args(Status))
    limits = re.findall(r"^\| `(\w+)` \|", _section("Limits"), re.MULTILINE)
    assert limits == [field.name for field in attrs.fields(Limits)]
    settings = re.findall(r"^\| `(\w+)` \|", _section("Other interpreters, more files"), re.MULTILINE)
    described = {*settings, "layers", "accounting", "limits"}
    assert described == {field.name for field in attrs.fields(SandboxSettings)}
    protected = _section("What is protected, layer by layer")
    assert [name for name in LAYERS if name.removesuffix(" namespace") not in protected] == []


def test_defaults_are_those_of_the_table() -> None:
    texts = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", _section("Limits"), re.MULTILINE))
    units = {"s": 1.0, "MiB": 1, "": 1}
    for field in attrs.fields(Limits):
        number, _, unit = texts[field.name].partition(" ")
        if number.isdigit():
            factor = 2**20 if field.name == "max_output" else units[unit]
            assert int(number) * factor == field.default, field.name


def test_tools_on_the_page_are_valid() -> None:
    section = TOOLS.partition("## Python programs of the model")[2]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[-1]
    names: dict = {}
    exec(code, names)
    assert names["python"]("1 + 2") == "3"
    with names["LongerCalls"]() as interpreter:
        assert interpreter.python("3 + 4") == "7"
    EnvironmentSettings(tools=("purerl.envs.python_tool:Interpreter",))
