"""The environment of scripts of verl."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("ACTOR", "CRITIC", "NNODES", "MODEL_PATH", "DATA_HOME", "TRAIN_FILE", "TEST_FILE", "ENGINE"):
        monkeypatch.delenv(name, raising=False)
