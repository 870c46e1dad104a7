"""A model that `chat` taught, for all recipes that begin with one that can answer."""

from __future__ import annotations

import pytest

from purerl.loop.train import Summary

from .made import teach


@pytest.fixture(scope="package")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return teach(tmp_path_factory.mktemp("taught"))
