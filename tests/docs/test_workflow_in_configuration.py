"""docs/workflows.md, "In a configuration": the example trains."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from attrs import evolve

from purerl.loop.train import train
from purerl.rollouts.custom import ARGUMENTS
from purerl.rollouts.settings import WorkflowSettings
from tests.loop.small import fake

from .test_quickstart import ROOT

SECTION = (ROOT / "docs" / "workflows.md").read_text(encoding="utf-8").partition("## In a configuration")[2]
[CODE] = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
[SETTINGS] = [tomllib.loads(text)["rollout"] for text in re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)]


def test_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "second_try.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "second_try", raising=False)
    workflow = evolve(WorkflowSettings(**SETTINGS["workflow"]), kwargs={"hint": "+"})
    config = fake(max_steps=1, rewards=())
    config = evolve(config, rollout=evolve(config.rollout, workflow=workflow))
    assert train(config, directory=tmp_path / "run").steps == 1


def test_page_lists_all_arguments() -> None:
    assert tuple(re.findall(r"^\| `(\w+)` \|", SECTION, re.MULTILINE)) == ARGUMENTS
