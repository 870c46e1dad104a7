"""Real models with random weights, and their problems."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from purerl.process import frozen_objects

from .prepared import prepare

_SESSION = ExitStack()


def pytest_collection_finish() -> None:
    """Let runs know that objects are frozen already. Else each of them counts a million objects."""
    _SESSION.enter_context(frozen_objects())


def pytest_unconfigure() -> None:
    _SESSION.close()


def _prepared(factory: pytest.TempPathFactory, seed: int) -> Path:
    folder = factory.mktemp(f"prepared_{seed}")
    prepare(folder, seed=seed)
    return folder


@pytest.fixture(autouse=True)
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of tests need not survive a power failure. Tests that files are flushed replace `os.fsync` themselves."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model, and with its problems in two files."""
    return _prepared(tmp_path_factory, 0)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with other weights."""
    return _prepared(tmp_path_factory, 1) / "model"
