"""Reward functions that do what reward functions do: tell, fail, hang, die. Light, for worker processes import it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def length(completion: str, example: Mapping[str, Any]) -> float:
    return len(completion)


def parts(completion: str, example: Mapping[str, Any]) -> dict[str, float]:
    return {"format": 0.5, "length": 1}


def unsure(completion: str, example: Mapping[str, Any]) -> None:
    return None


def process(completion: str, example: Mapping[str, Any]) -> float:
    return os.getpid()


def raises(completion: str, example: Mapping[str, Any]) -> float:
    return example["scores"][completion]


def leaves(completion: str, example: Mapping[str, Any]) -> float:
    raise SystemExit("bye")


def no_reward(completion: str, example: Mapping[str, Any]) -> str:
    return "good"


# Each of these is well for every completion but "bad".


def loops(completion: str, example: Mapping[str, Any]) -> float:
    while completion == "bad":
        pass
    return 1.0


def backtracks(completion: str, example: Mapping[str, Any]) -> float:
    """Hangs in C, and never lets another thread run."""
    return float(re.match(r"(a+)+$", "a" * 64 + "b" if completion == "bad" else "a") is not None)


def exits(completion: str, example: Mapping[str, Any]) -> float:
    return os._exit(3) if completion == "bad" else 1.0


def crashes(completion: str, example: Mapping[str, Any]) -> float:
    return ctypes.string_at(0) if completion == "bad" else 1.0


def starts(completion: str, example: Mapping[str, Any]) -> float:
    """Waits for a process of its own, whose number it leaves in a file."""
    process = subprocess.Popen(["sleep", "60" if completion == "bad" else "0"])
    Path(example["log"]).write_text(str(process.pid))
    return float(process.wait() == 0)


async def waits(completion: str, example: Mapping[str, Any]) -> float:
    await asyncio.sleep(60 if completion == "bad" else 0.2)
    return 1.0


async def blocks(completion: str, example: Mapping[str, Any]) -> float:
    """Async by name only."""
    time.sleep(60 if completion == "bad" else 0)
    return 1.0


async def fails(completion: str, example: Mapping[str, Any]) -> float:
    await asyncio.sleep(0)
    return 1 / (completion != "bad")


# As verl's documentation has them, and TRL's.


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {
        "score": float(solution_str == ground_truth),
        "pred": solution_str,
        "acc": True,
        "index": extra_info["index"],
    }


def reward_len(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def reward_answer(prompts, completions, answer, **kwargs):
    return [None if gold is None else float(gold in text) for text, gold in zip(completions, answer, strict=True)]


async def reward_chat(completions: Sequence[list[dict[str, str]]], **kwargs: Any) -> list[float]:
    await asyncio.sleep(0)
    return [float(messages[0]["role"] == "assistant" and len(messages[0]["content"])) for messages in completions]


def sleeps(completion: str, example: Mapping[str, Any]) -> float:
    time.sleep(0.2)
    return 1.0


def noted(completion: str, example: Mapping[str, Any]) -> float:
    """Writes down that it is called, and where; slow for "slow", without end for "bad"."""
    with Path(example["log"]).open("a", encoding="utf-8") as file:
        file.write(f"{completion} {os.getpid()}\n")
    time.sleep({"slow": 0.3, "bad": 60}.get(completion, 0))
    return 1.0
