"""The library computes what it has computed when `recorded.json` was written: see `tests.guards`."""

from __future__ import annotations

import pytest

from tests.guards import algorithms, default_metrics, machine, modifiers, recipes, recorded
from tests.guards.import_graph import circles, growth, import_graph, problems, summary, upward

BEFORE = recorded()


def test_metrics_of_the_default_run_are_equal_bit_for_bit() -> None:
    before = BEFORE["metrics"]
    if machine() != before["machine"]:
        pytest.skip(f"recorded on {before['machine']}; this is {machine()}")
    now = default_metrics()
    for phase, results in before["results"].items():
        for step, other in zip(results["steps"], now[phase]["steps"], strict=True):
            assert other == step, f"{phase}: step {step['step']}"
        assert now[phase]["weights"] == results["weights"], phase


def test_configurations_of_recipes_are_equal() -> None:
    now, before = recipes(), BEFORE["recipes"]
    assert sorted(now) == sorted(before)
    for name, recipe in before.items():
        assert now[name]["toml"] == recipe["toml"], name
        assert now[name]["digest"] == recipe["digest"], name


def test_algorithms_have_the_same_fingerprints() -> None:
    assert algorithms() == BEFORE["algorithms"]


def test_modifiers_have_the_same_fingerprints() -> None:
    assert modifiers() == BEFORE["modifiers"]


def test_circles_and_upward_arrows_of_imports_only_become_fewer() -> None:
    """After files have moved, `python -m tests.guards imports` records the new names, if there are not more."""
    now = summary(import_graph())
    assert problems(now, BEFORE["imports"]) == []
    assert growth(now, BEFORE["imports"]) == []


def test_each_import_counts(tmp_path) -> None:
    (tmp_path / "algos").mkdir()
    (tmp_path / "errors.py").write_text("def f():\n    from purerl import seeds")
    (tmp_path / "seeds.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import purerl.errors")
    (tmp_path / "kernels.py").write_text("from .algos import name, ppo")
    (tmp_path / "algos" / "__init__.py").write_text("from . import ppo")
    (tmp_path / "algos" / "ppo.py").write_text("from ..errors import E")
    graph = import_graph(tmp_path)
    assert graph["purerl.kernels"] == {"purerl.algos", "purerl.algos.ppo"}
    assert graph["purerl.algos"] == {"purerl.algos.ppo"}
    assert circles(graph) == [["purerl.errors", "purerl.seeds"]]
    assert upward(graph) == [["kernels", "algos"]]


def test_a_larger_circle_is_a_problem() -> None:
    before = {"circles": [["a", "b", "c"]], "package_circles": [], "upward": []}
    smaller, other = before | {"circles": [["a", "b"]]}, before | {"circles": [["a", "d"]]}
    larger = before | {"circles": [["a", "b", "c", "d"]]}
    assert problems(smaller, before) == growth(smaller, before) == growth(other, before) == []
    assert problems(other, before) == ["circles: a <-> d"]
    assert growth(larger, before) == ["circles: 1 with 4 members, recorded are 1 with 3"]
