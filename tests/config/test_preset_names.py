"""The name of a preset: in a summary, in the console, in config.toml and in the facts that a report reads."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from purerl.config.overrides import apply
from purerl.config.plan import plan
from purerl.config.preset_names import preset_of
from purerl.config.presets import presets
from purerl.config.structure import to_dict
from purerl.loop.train import train
from tests.loop.small import fake

SAME = {"bnpo@trl": "grpo@trl = bnpo@trl", "grpo@trl": "grpo@trl = bnpo@trl", "dpo@trl": None}
"""Presets that equal another one, or an algorithm of purerl with its defaults."""


@pytest.mark.parametrize("name", presets())
def test_an_algorithm_with_the_settings_of_a_preset_has_its_name(name: str) -> None:
    assert preset_of(apply(fake(), [f"algorithm.kind={name}"]).algorithm) == SAME.get(name, name)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (["algorithm.kind=grpo"], None),
        (["algorithm.kind=grpo", "algorithm.clip_high=0.28"], None),
        (["algorithm.kind=grpo@verl", "algorithm.clip_high=0.3"], None),
        (["algorithm.kind=grpo@verl", "algorithm.entropy_bonus=0.01"], "grpo@verl + entropy_bonus"),
    ],
)
def test_other_settings_have_no_name_and_added_modifiers_follow_it(settings: list[str], name: str | None) -> None:
    assert preset_of(apply(fake(), settings).algorithm) == name


def test_a_run_of_a_preset_has_its_name_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = apply(fake(max_steps=2), ["algorithm.kind=grpo@verl"])
    assert plan(config).startswith(f"addition: grpo@verl ({config.algorithm}), 2 steps")
    train(config, directory=tmp_path)
    text = (tmp_path / "config.toml").read_text()
    assert text.splitlines()[1] == "# algorithm: grpo@verl"
    assert tomllib.loads(text)["algorithm"] == to_dict(config)["algorithm"]
    assert json.loads((tmp_path / "data.json").read_text())["preset"] == "grpo@verl"
    assert f"grpo@verl ({config.algorithm})" in capsys.readouterr().out
    assert train(config, directory=tmp_path).was_finished
