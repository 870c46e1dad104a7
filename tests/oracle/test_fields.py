"""The lists of fields of TRL and verl against the installed libraries: none is missing, and none is superfluous."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "generate" / "fields"


def _listed(library: str) -> list[str]:
    return sorted((FOLDER / f"{library}.txt").read_text(encoding="utf-8").split())


def test_all_fields_of_trl_are_listed() -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed: nox -s oracle")
    from transformers import TrainingArguments

    inherited = {field.name for field in fields(TrainingArguments)}
    classes = (trl.GRPOConfig, trl.DPOConfig, trl.SFTConfig)
    own = [f"{cls.__name__}.{field.name}" for cls in classes for field in fields(cls) if field.name not in inherited]
    assert sorted([*own, *(f"TrainingArguments.{name}" for name in inherited)]) == _listed("trl")


def test_all_keys_of_verl_are_listed() -> None:
    hydra = pytest.importorskip("hydra", reason="hydra is not installed: nox -s oracle")
    from omegaconf import OmegaConf

    try:
        directory = distribution("verl").locate_file("verl/trainer/config")
    except PackageNotFoundError:
        pytest.skip("verl is not installed: nox -s oracle")
    with hydra.initialize_config_dir(str(directory), version_base=None):
        config = OmegaConf.to_container(hydra.compose("ppo_trainer"), resolve=False)
    assert sorted(_leaves(config)) == _listed("verl")


def _leaves(table: Any, above: str = "") -> Iterator[str]:
    """The dotted keys of all values in `table` that are not tables, or are empty ones."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"
