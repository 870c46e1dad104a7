"""docs/how-to/rewards.md and docs/how-to/reward_functions.md: TOML is checked, Python is executed."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import purerl
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict, to_dict
from purerl.recipes.addition import addition
from purerl.rewards.check import check_rewards
from purerl.rewards.settings import RewardWorkers
from purerl.rewards.sources import named_functions

from .test_quickstart import FENCE, ROOT

GUIDES = ROOT / "docs" / "how-to"
TEXT = "\n".join((GUIDES / f"{name}.md").read_text(encoding="utf-8") for name in ("rewards", "reward_functions"))
BLOCKS = {kind: [code for language, _, code in FENCE.findall(TEXT) if language == kind] for kind in ("toml", "python")}
FUNCTIONS = "def {name}(completion, example):\n    return 1.0\n"


@pytest.fixture(autouse=True)
def my_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the user that the page names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    scaled = "def scaled(completion, example, factor=1.0):\n    return factor\n"
    verl = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n"
    Path("my_rewards.py").write_text(FUNCTIONS.format(name="short") + scaled + verl, encoding="utf-8")


@pytest.mark.parametrize("code", BLOCKS["toml"])
def test_a_block_of_toml_is_valid(code: str) -> None:
    config = from_dict(RunConfig, {**to_dict(addition()), **tomllib.loads(code)})
    check_rewards(config.rewards, config.gates, config.reward_workers, {})


def test_blocks_of_python_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(recipe: str, *, rewards: Sequence[Any], gates: Sequence[Any] = ()) -> None:
        named = named_functions(rewards, gates)
        check_rewards(*named[:2], RewardWorkers(), named[2])
        calls.append(named)

    calls: list[Any] = []
    monkeypatch.setattr(purerl, "train", train)
    namespace: dict[str, Any] = {"__name__": "rewards_page"}
    for name in ("correct", "well_formed"):
        exec(FUNCTIONS.format(name=name), namespace)
    for code in BLOCKS["python"]:
        exec(compile(code, "rewards.md", "exec"), namespace)
    assert len(calls) == sum("purerl.train(" in code for code in BLOCKS["python"])
