"""The phases of a run and of other commands: whatever may take longer than two seconds is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from purerl.algos import grpo
from purerl.data.inspect import inspect
from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.planning.plan import plan_memory
from purerl.system import phases
from purerl.testing.check import check_module
from tests.data.made import write
from tests.loop.small import fake


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the phases that begin, in their order, whether or not they take long."""
    begun: list[str] = []

    @contextmanager
    def record(current: phases.Phase, show: Any) -> Iterator[None]:
        begun.append(current._name)
        yield

    monkeypatch.setattr(phases, "_printed", record)
    with phases.shown(lambda line: None):
        yield begun


def test_a_run_has_a_phase_for_everything_before_its_steps_and_after_them(names: list[str], tmp_path: Path) -> None:
    config = fake(max_steps=2)
    train(config, directory=tmp_path / "run")
    expected = [
        "reading the files of the models",
        "reading the data",
        "importing transformers and loading a tokenizer",
        "reading and tokenizing the prompts",
        "loading the model of the policy, {path}",
        "loading the model of the generator, {path}, into fake",
        "comparing the generator with the trainer",
        "starting the workers of reward functions",
        "evaluating after step 0",
        "the first step",
        "evaluating after step 2",
        "saving the checkpoint of step 2",
        "exporting the model",
    ]
    known = [name.format(path=tmp_path / "run" / "prepared" / "model") for name in expected]
    assert [name for name in dict.fromkeys(names) if name in known] == known, names


def test_other_commands_have_phases_too(names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inspect(write(tmp_path / "rows.jsonl", [{"prompt": "1+1?", "answer": "2"}]))
    with suppress(ConfigError):
        plan_memory(fake())
    for function in ("check_algorithm", "check_exemptions", "check_settings"):
        monkeypatch.setattr(f"purerl.testing.check.{function}", lambda *args, **kwargs: None)
    check_module(grpo)
    expected = ["inspecting the data", "planning the memory", "testing purerl.algos.grpo with every law"]
    assert [name for name in names if name in expected] == expected
