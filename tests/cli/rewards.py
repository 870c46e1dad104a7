"""Reward functions and an answer extractor for commands."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def starts_with_small_digit(completion: str, example: Mapping[str, Any]) -> float:
    """1 if the first character is a digit below 5. A model with random weights is sometimes correct."""
    return float(completion[:1].isdecimal() and completion[:1] < "5")


def prints_the_example(completion: str, example: Mapping[str, Any]) -> float:
    """Prints the column `text` to stdout and stderr, and in a traceback of a thread."""
    sys.stdout.write(f"{example['text']}\n")
    sys.stderr.write(f"{example['text']}\n")
    thread = threading.Thread(target=int, args=[example["text"]])
    thread.start()
    thread.join()
    raise ValueError(example["text"])


def raises_key_error(completion: str, example: Mapping[str, Any]) -> float:
    """Raises KeyError: the examples have no such column."""
    return float(example["index"])


_CALLS = Counter()
_COMPLETIONS_PER_STEP = 16


def when_released(completion: str, example: Mapping[str, Any]) -> float:
    """The fraction of correct digits, as soon as the file release-STEP exists in the directory $PURERL_TEST_GATE.

    The file waiting-STEP says that the first completion of a step waits. A single worker process counts the steps.
    """
    step = 1 + _CALLS.total() // _COMPLETIONS_PER_STEP
    _CALLS.update(["call"])
    if gate := os.environ.get("PURERL_TEST_GATE"):
        Path(gate, f"waiting-{step}").touch()
        while not Path(gate, f"release-{step}").exists():
            time.sleep(0.01)
    return sum(a == b for a, b in zip(completion, example["answer"], strict=False)) / 3


def first_two_characters(completion: str) -> str | None:
    """The answer in a completion."""
    return completion[:2] or None


def brevity(completion: str, example: Mapping[str, Any]) -> float:
    """A reward that is never 1."""
    return 0.5
