"""docs/how-to/workflows.md, "In a configuration": the example trains."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from attrs import evolve

from purerl.loop.train import train
from purerl.rollouts.custom import ARGUMENTS
from tests.loop.small import fake

from .test_quickstart import ROOT

PAGE = (ROOT / "docs" / "how-to" / "workflows.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## In a configuration")[2]
WORKFLOW, _, FUNCTION = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[SETTINGS] = [tomllib.loads(text)["rollout"] for text in re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)]


def test_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = (" Is that right? ", "+")  # what the tokenizer of the test knows
    (tmp_path / "self_check.py").write_text(WORKFLOW.replace(*question) + FUNCTION, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "self_check", raising=False)
    config = fake(max_steps=1)
    config = evolve(config, rollout=evolve(config.rollout, workflow=SETTINGS["workflow"]))
    assert train(config, directory=tmp_path / "run").steps == 1


def test_page_lists_all_arguments() -> None:
    assert tuple(re.findall(r"^\| `(\w+)` \|", SECTION, re.MULTILINE)) == ARGUMENTS
