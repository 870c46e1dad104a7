"""Random numbers in reward functions depend only on the seed of the input."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from purerl.rewards.adapters import RewardInput
from purerl.rewards.loading import name_of
from purerl.rewards.runner import RewardRunner
from purerl.seeds import seed_everything

from . import functions, random_functions

ROOT = Path(__file__).parents[2]
SEEDS = [5, 3, 5, 2**62 + 4, 0, 1]
INPUTS = [RewardInput(str(k), f"completion {k}", {"prompt": "p"}, seed) for k, seed in enumerate(SEEDS)]


def _components(
    function: Callable[..., Any], inputs: Sequence[RewardInput], *, num_workers: int | None = None
) -> dict[str, Any]:
    """The components of each input, by row. Without `num_workers` the function runs in this process."""
    name = name_of(function)
    in_process = {} if num_workers else {name: function}
    with RewardRunner([name], functions=in_process, timeout=60.0, num_workers=num_workers) as runner:
        results = runner.run(inputs)
    assert not any(result.failure for result in results)
    return {item.row: result.components for item, result in zip(inputs, results, strict=True)}


@pytest.mark.parametrize("function", [functions.random_python, functions.random_before_await])
def test_random_reward_is_independent_of_process_worker_count_and_order(function: Callable[..., Any]) -> None:
    expected = _components(function, INPUTS)
    assert expected["0"] == expected["2"], "equal seeds"
    assert len({components[function.__name__] for components in expected.values()}) == 5, "different seeds"
    assert _components(function, INPUTS[::-1]) == expected
    for num_workers in (1, 2, 3):
        assert _components(function, INPUTS, num_workers=num_workers) == expected
        assert _components(function, INPUTS[::-1], num_workers=num_workers) == expected


def test_numpy_and_torch_are_seeded_in_workers() -> None:
    expected = _components(random_functions.random_numpy_and_torch, INPUTS)
    assert len({tuple(components.values()) for components in expected.values()}) == 5
    assert _components(random_functions.random_numpy_and_torch, INPUTS, num_workers=1) == expected


def test_batched_call_is_seeded_with_the_seed_of_its_first_row() -> None:
    first = _components(functions.random_trl, INPUTS)
    second = _components(functions.random_trl, [INPUTS[0], *[item._replace(seed=7) for item in INPUTS[1:]]])
    assert first == second
    assert len({components["random_trl"] for components in first.values()}) == len(INPUTS)
    assert _components(functions.random_trl, INPUTS, num_workers=1) == first


def test_seed_defaults_to_0() -> None:
    item = RewardInput("0", "completion", {"prompt": "p"})
    assert item.seed == 0
    assert _components(functions.random_python, [item])["0"] == _components(functions.random_python, INPUTS[4:5])["4"]


def test_seed_everything_seeds_python_numpy_and_torch() -> None:
    def draw(seed: int) -> tuple[float, ...]:
        seed_everything(seed)
        return random.random(), numpy.random.random(), torch.rand(()).item()

    assert draw(2**40 + 3) == draw(2**40 + 3)
    assert all(a != b for a, b in zip(draw(3), draw(4), strict=True))


def test_seed_everything_imports_neither_numpy_nor_torch() -> None:
    code = "import sys; from purerl.seeds import seed_everything; seed_everything(1)"
    code += "; print({'torch', 'numpy'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout == "set()\n"
