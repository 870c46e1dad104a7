"""Reward functions for the tests: valid ones, and ones that raise, hang or crash.

Worker processes import this module, so it imports no large libraries.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from purerl.rewards.outcomes import Measured


def length(completion: str, example: Mapping[str, Any]) -> float:
    return len(completion)


def constant(completion: str, example: Mapping[str, Any]) -> float:
    return 1.0


def returns_zero(completion: str, example: Mapping[str, Any]) -> float:
    return 0.0


def number_of_rows(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    return [float(len(completions))] * len(completions)


def logs_tokens(completions, completion_ids, trainer_state, log_metric, log_extra, **columns):
    assert trainer_state.max_steps == 100
    log_metric("tokens", sum(map(len, completion_ids)) / len(completion_ids))
    log_extra("ids", completion_ids)
    return [1.0] * len(completions)


def scaled(completion: str, example: Mapping[str, Any], factor: float = 1.0) -> float:
    return factor * len(completion)


def two_components(completion: str, example: Mapping[str, Any]) -> dict[str, float]:
    return {"format": 0.5, "length": 1}


def returns_none(completion: str, example: Mapping[str, Any]) -> None:
    return None


def process_id(completion: str, example: Mapping[str, Any]) -> float:
    return os.getpid()


def raises_key_error(completion: str, example: Mapping[str, Any]) -> float:
    return example["scores"][completion]


def raises_system_exit(completion: str, example: Mapping[str, Any]) -> float:
    raise SystemExit("bye")


def returns_string(completion: str, example: Mapping[str, Any]) -> str:
    return "good"


# The following functions fail only for the completion "bad".


def loops_forever(completion: str, example: Mapping[str, Any]) -> float:
    while completion == "bad":
        pass
    return 1.0


def hangs_in_regex(completion: str, example: Mapping[str, Any]) -> float:
    """Hangs in C code and does not release the GIL."""
    return float(re.match(r"(a+)+$", "a" * 64 + "b" if completion == "bad" else "a") is not None)


def exits_process(completion: str, example: Mapping[str, Any]) -> float:
    return os._exit(3) if completion == "bad" else 1.0


def crashes(completion: str, example: Mapping[str, Any]) -> float:
    return ctypes.string_at(0) if completion == "bad" else 1.0


def starts_subprocess(completion: str, example: Mapping[str, Any]) -> float:
    """Waits for a subprocess and writes its process id to a file."""
    process = subprocess.Popen(["sleep", "60" if completion == "bad" else "0"])
    Path(example["log"]).write_text(str(process.pid))
    return float(process.wait() == 0)


async def awaits_sleep(completion: str, example: Mapping[str, Any]) -> float:
    await asyncio.sleep(60 if completion == "bad" else 0.2)
    return 1.0


async def blocks_event_loop(completion: str, example: Mapping[str, Any]) -> float:
    """An async function that does not await."""
    time.sleep(60 if completion == "bad" else 0)
    return 1.0


async def raises_async(completion: str, example: Mapping[str, Any]) -> float:
    await asyncio.sleep(0)
    return 1 / (completion != "bad")


# In the style of the documentation of verl and TRL.


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
    pairs = zip(completions, answer, strict=True)
    return [None if expected is None else float(expected in text) for text, expected in pairs]


async def reward_chat(completions: Sequence[list[dict[str, str]]], **kwargs: Any) -> list[float]:
    await asyncio.sleep(0)
    return [float(messages[0]["role"] == "assistant" and len(messages[0]["content"])) for messages in completions]


async def exact_async(completion: str, example: Mapping[str, Any]) -> float:
    await asyncio.sleep(0)
    return float(completion == example["answer"])


def sleeps(completion: str, example: Mapping[str, Any]) -> float:
    time.sleep(0.2)
    return 1.0


def logs_calls(completion: str, example: Mapping[str, Any]) -> float:
    """Appends the completion and the process id to a file. Sleeps for the completions "slow" and "bad"."""
    with Path(example["log"]).open("a", encoding="utf-8") as file:
        file.write(f"{completion} {os.getpid()}\n")
    time.sleep({"slow": 0.3, "bad": 60}.get(completion, 0))
    return 1.0


def random_python(completion: str, example: Mapping[str, Any]) -> float:
    return random.random()


def random_trl(completions: Sequence[str], **kwargs: Any) -> list[float]:
    return [random.random() for _ in completions]


def random_before_await(completion: str, example: Mapping[str, Any]) -> Any:
    """Draws its random number before it returns an awaitable."""
    return asyncio.sleep(0, result=random.random())


# The following functions end their process in different ways, for the completion "bad".


def exits_with_0(completion: str, example: Mapping[str, Any]) -> float:
    return os._exit(0) if completion == "bad" else 1.0


def aborts(completion: str, example: Mapping[str, Any]) -> float:
    return os.abort() if completion == "bad" else 1.0


def kills_itself(completion: str, example: Mapping[str, Any]) -> float:
    if completion == "bad":
        os.kill(os.getpid(), 9)
    return 1.0


def kills_its_guard(completion: str, example: Mapping[str, Any]) -> float:
    """Kills the parent process of the worker, and hangs."""
    if completion == "bad":
        os.kill(os.getppid(), 9)
        time.sleep(60)
    return 1.0


def raises_keyboard_interrupt(completion: str, example: Mapping[str, Any]) -> float:
    if completion == "bad":
        raise KeyboardInterrupt("not by the user")
    return 1.0


async def raises_keyboard_interrupt_async(completion: str, example: Mapping[str, Any]) -> float:
    await asyncio.sleep(0)
    return raises_keyboard_interrupt(completion, example)


def uses_memory(completion: str, example: Mapping[str, Any]) -> float:
    """Needs 1 GiB of memory for the completion "bad"."""
    return float(len(bytearray(2**30 if completion == "bad" else 10)) > 0)


def waits_for_file(completion: str, example: Mapping[str, Any]) -> float:
    """Writes its process id to a file, and waits until the file "go" exists."""
    folder = Path(example["folder"])
    (folder / f"{completion}.{os.getpid()}").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    return 1.0


def starts_daemon(completion: str, example: Mapping[str, Any]) -> float:
    """Starts a process in a session of its own, whose parent ends, and which writes its process id to a file.

    Then it hangs for the completion "bad", and ends its own process for "dies".
    """
    sleeps = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(120)"
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], start_new_session=True)"
    subprocess.run([sys.executable, "-c", code, sleeps, example["log"]], check=True, start_new_session=True)
    while not (Path(example["log"]).exists() and Path(example["log"]).read_text()):
        time.sleep(0.02)
    time.sleep(60 if completion == "bad" else 0)
    return os._exit(3) if completion == "dies" else 1.0


# The following functions depend on the other inputs of a call, or on files that a test creates.


def batch_size(completions: Sequence[str], **kwargs: Any) -> list[float]:
    return [float(len(completions))] * len(completions)


def raises_on_batch(completions: Sequence[str], **kwargs: Any) -> list[float]:
    return [1 / ("bad" not in completions)] * len(completions)


class _BilledError(Exception):
    totals: Mapping[str, float] = {"tokens": 5}


def bills_on_batch(completions: Sequence[str], **kwargs: Any) -> list[float]:
    """As `raises_on_batch`, but its exception has totals."""
    if "bad" in completions:
        raise _BilledError("refused")
    return [1.0] * len(completions)


def exits_on_batch(completions: Sequence[str], **kwargs: Any) -> list[float]:
    return [os._exit(3) if "bad" in completions else 1.0 for _ in completions]


async def awaits_file(completion: str, example: Mapping[str, Any]) -> float:
    """Waits until the file with the name of the completion exists; "free" does not wait."""
    (Path(example["folder"]) / f"{completion}.started").touch()
    while completion != "free" and not (Path(example["folder"]) / completion).exists():
        await asyncio.sleep(0.02)
    return 1.0


async def exits_async(completion: str, example: Mapping[str, Any]) -> float:
    await asyncio.sleep(0.1)
    return os._exit(3) if completion == "bad" else 1.0


def measured(completion: str, example: Mapping[str, Any]) -> Measured:
    return Measured(1.0, {"tokens": len(completion)})


async def measured_later(completion: str, example: Mapping[str, Any]) -> Measured:
    return Measured({"good": 1.0}, {"tokens": len(completion), "calls": 1})


def measured_and_failed(completion: str, example: Mapping[str, Any]) -> float:
    error = ValueError("no answer")
    error.totals = {"calls": 2}  # type: ignore[attr-defined]
    raise error


def measured_wrongly(completion: str, example: Mapping[str, Any]) -> Measured:
    return Measured(1.0, {"tokens": float("nan")})


def raises_with_other_totals(completion: str, example: Mapping[str, Any]) -> float:
    error = ValueError("no answer")
    error.totals = 3  # type: ignore[attr-defined]
    raise error
