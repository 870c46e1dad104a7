"""examples/rl_loop.py: a loop without `purerl.train`, which learns and is short."""

from __future__ import annotations

import ast
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "rl_loop.py"
CODE = EXAMPLE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = spec_from_file_location("rl_loop", EXAMPLE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_one_page_and_uses_public_names_below_the_loop() -> None:
    assert 150 <= len(CODE.splitlines()) <= 200
    imports = [node for node in ast.walk(ast.parse(CODE)) if isinstance(node, ast.ImportFrom) and node.module]
    modules = [node.module for node in imports if node.module.startswith("purerl")]
    assert modules
    assert [module for module in modules if module.split(".")[1] in ("loop", "runs", "opening")] == []
    assert [alias.name for node in imports for alias in node.names if alias.name.startswith("_")] == []


def test_reward_counts_correct_digits(example: ModuleType) -> None:
    rewards = [example.correct_digits("47=", completion) for completion in ("74", "44", "7", "47", "")]
    assert rewards == [1.0, 0.5, 0.5, 0.0, 0.0]


@pytest.mark.slow
def test_it_learns(example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accuracies = example.learn(tmp_path)
    assert len(accuracies) == example.NUM_STEPS // example.EVALUATE_EVERY + 1
    assert accuracies[0] <= 0.1
    assert accuracies[-1] >= 0.9
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[1]) for line in lines] == [*range(0, 101, 10)]
