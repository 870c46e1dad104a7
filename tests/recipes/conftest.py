"""A model trained by `chat`, for all recipes that start from a model that can answer."""

from __future__ import annotations

import pytest

from purerl.loop.train import Summary

from .made import train_chat


@pytest.fixture(scope="package")
def chat_run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return train_chat(tmp_path_factory.mktemp("chat"))
