"""Fixtures of all tests of engines."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def unformatted_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not format configurations of models.

    transformers formats each configuration that it reads, for a message that it does not print. That is a fifth of the
    time in which a small model is loaded.
    """
    if "transformers.configuration_utils" in sys.modules:
        from transformers.configuration_utils import PreTrainedConfig

        monkeypatch.setattr(PreTrainedConfig, "__repr__", object.__repr__)
