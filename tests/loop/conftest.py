"""Real models with random weights, and their problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from .prepared import prepare


def _prepared(factory: pytest.TempPathFactory, seed: int) -> Path:
    folder = factory.mktemp(f"prepared_{seed}")
    prepare(folder, seed=seed)
    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model, and with its problems in two files."""
    return _prepared(tmp_path_factory, 0)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with other weights."""
    return _prepared(tmp_path_factory, 1) / "model"
