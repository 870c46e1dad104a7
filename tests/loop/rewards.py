"""Reward functions and answer extractors of runs in tests. Worker processes import them, so imports are few."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

NOT_CALLABLE = "a string"


def digits(completion: str, example: Mapping[str, Any]) -> float:
    """The fraction of correct digits: a reward that a model with random weights sometimes gets."""
    return sum(a == b for a, b in zip(completion, example["answer"], strict=False)) / 3


def fraction_of_digits(completion: str, example: Mapping[str, Any]) -> float:
    """The fraction of characters that are digits."""
    return sum(character.isdigit() for character in completion) / max(1, len(completion))


def fraction_of_sevens(completion: str, example: Mapping[str, Any]) -> float:
    return completion.count("7") / 2


def slow_digits(completion: str, example: Mapping[str, Any]) -> float:
    """The same after a moment, so that a step off policy ends before all groups have their rewards."""
    time.sleep(0.005)
    return digits(completion, example)


def first_is_even(completion: str, example: Mapping[str, Any]) -> float:
    """1 if the first digit is even: a gate."""
    return float(completion[:1] in set("02468"))


def starts_with_a_digit(completion: str, example: Mapping[str, Any]) -> float:
    """1 if the completion starts with a digit below 5: correct completions of a model with random weights."""
    return float(completion[:1].isdecimal() and completion[:1] < "5")


def sum_of(completion: str, example: Mapping[str, Any]) -> float:
    """The correct answer itself, which identifies the problem that a completion belongs to."""
    return float(example["answer"][::-1])


def fails_on_odd_answers(completion: str, example: Mapping[str, Any]) -> float:
    if int(example["answer"]) % 2:
        raise ValueError("odd")
    return 1.0


def fails_on_index_3(completion: str, example: Mapping[str, Any]) -> float:
    if example["index"] == 3:
        raise ValueError("index 3")
    return 1.0


def logs_progress(completions: Any, trainer_state: Any, log_metric: Any, log_extra: Any, **kwargs: Any) -> list[float]:
    """A function of TRL: logs the progress of the run, and the number of tokens of each completion."""
    log_metric("progress", trainer_state.global_step / max(trainer_state.max_steps, 1))
    log_metric("epoch", trainer_state.epoch)
    log_extra("tokens", list(map(len, kwargs["completion_ids"])))
    return [1.0] * len(completions)


def grades(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> dict[str, Any]:
    """A function of verl: logs an accuracy and a text beside the score."""
    return {"score": 0.5, "acc": solution_str[:1] < "5", "pred": solution_str}


def query_length(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    """A function of OpenRLHF."""
    return {"rewards": float(queries[0].endswith("<eos>")), "scores": 1.0, "extra_logs": {"queries": queries[0]}}


def index_of(completion: str, example: Mapping[str, Any]) -> float:
    return float(example["extra_info"]["index"])


def constant(completion: str, example: Mapping[str, Any]) -> float:
    return 1.0


def check_columns(completion: str, example: Mapping[str, Any]) -> float:
    """A reward that reads columns of the data set, with the types that they have in the file."""
    assert example["prompt"][0]["role"] == "user"
    assert example["extra_info"]["index"] is not None
    return float(completion[:1] < example["reward_model"]["ground_truth"])


def check_messages(completion: str, example: Mapping[str, Any]) -> float:
    assert example["messages"]
    return 1.0


def first_two(completion: str) -> str | None:
    """An answer extractor."""
    return completion[:2] or None


def second_word(completion: str) -> str:
    """An answer extractor that raises if there is only one word."""
    return completion.split()[1]


def returns_none(completion: str, example: Any) -> None:
    """A reward function, which is not an answer extractor."""
    return


def hangs(completion: str, example: Any) -> float:
    time.sleep(60.0)
    return 1.0
