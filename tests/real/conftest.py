"""SmolLM2-135M-Instruct, which is made once, and its tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from purerl.recipes import smollm2


@pytest.fixture(scope="session")
def model() -> Path:
    return smollm2.directory()


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(model)
