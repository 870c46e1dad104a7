"""Data sets of reasoning-gym: procedures that write problems, and score answers.

For example::

    def prepare(directory, seed):                       # prepare_data = "my_data.py:prepare"
        write(directory / "train.parquet", {"leg_counting": {"max_animals": 5}, "gcd": {}}, size=2000, seed=seed)

`write` stores problems in a file for `data` and `evaluate.data`. The reward function
``purerl.adapters.reasoning_gym:score`` scores an answer with the function of the data set that the problem is from.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from purerl.adapters.packages import load
from purerl.data.chat import TextOrMessages
from purerl.errors import ConfigError, nearest
from purerl.rewards.adapters import needs_one_of
from purerl.seeds import derive_seed

__all__ = ["as_message", "read_entry", "score", "score_text", "write"]

_COLUMN = "reasoning_gym"


def as_message(question: str) -> TextOrMessages:
    """The prompt of a chat: one message of the user."""
    return [{"role": "user", "content": question}]


def write(
    path: str | Path,
    data_sets: Mapping[str, Mapping[str, Any]],
    *,
    size: int,
    seed: int,
    prompt: Callable[[str], TextOrMessages] = as_message,
) -> None:
    """Write `size` problems of each of `data_sets`, in random order, into the Parquet file `path`.

    data_sets  the settings of each data set of reasoning-gym, by its name
    seed       determines the problems and their order. Another seed gives other problems, for evaluation
    prompt     what makes a prompt of a question; `str` for plain text

    The columns are `prompt`, `answer` (None where any correct solution counts), `data_source` (the name of the data
    set), and `reasoning_gym`, what `score` needs. The same arguments give the same file with the same version of
    reasoning-gym, except for data sets that iterate over sets of strings, whose order depends on PYTHONHASHSEED.

    Raises: ConfigError if reasoning-gym is not installed, there is no such data set or setting, or `size` is below 1.
    """
    import pyarrow as pa
    import pyarrow.parquet

    if size < 1 or not data_sets:
        raise ConfigError("data of reasoning-gym", got=f"{size} problems of {len(data_sets)} data sets", need="any")
    rows = []
    for name, settings in data_sets.items():
        own_seed = derive_seed(seed, "reasoning_gym", name) % 2**32
        data = _create(name, json.dumps({"size": size, "seed": own_seed, **settings}, sort_keys=True))
        rows += [_row(name, settings, data[k], prompt) for k in range(len(data))]
    random.Random(derive_seed(seed, "reasoning_gym order")).shuffle(rows)
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)


@needs_one_of(_COLUMN)
def score(completion: str, example: Mapping[str, Any]) -> float:
    """The score, from 0 to 1, of the text in the last ``<answer>...</answer>`` of the completion; 0 without one.

    `reasoning_gym.utils.SYSTEM_PROMPTS` has prompts that ask for this form, for `data.system_prompt`.
    """
    return _score(load("reasoning_gym.utils", "reasoning-gym").extract_answer(completion), example)


@needs_one_of(_COLUMN)
def score_text(completion: str, example: Mapping[str, Any]) -> float:
    """The score, from 0 to 1, of the whole completion, without spaces around it."""
    return _score(completion.strip(), example)


def _score(answer: str | None, example: Mapping[str, Any]) -> float:
    stored = json.loads(example[_COLUMN])
    data = _create(stored["data_set"], json.dumps(stored["settings"], sort_keys=True))
    return float(data.score_answer(answer, entry=read_entry(example)))


def read_entry(example: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of reasoning-gym that a row of `write` is from."""
    return _decode(json.loads(example[_COLUMN])["entry"])


@cache
def _create(name: str, settings: str) -> Any:
    """The data set called `name` with these settings, as JSON."""
    reasoning_gym = load("reasoning_gym", "reasoning-gym")
    known = reasoning_gym.factory.DATASETS
    if name not in known:
        raise ConfigError(f"unknown data set {name!r} of reasoning-gym", do=nearest(name, known))
    try:
        return reasoning_gym.create_dataset(name, **json.loads(settings))
    except (TypeError, ValueError, AssertionError) as error:
        what = f"settings of the data set {name!r} of reasoning-gym"
        raise ConfigError(what, got=settings, need=f"what {known[name][1].__name__} accepts: {error}") from error


def _row(
    name: str, settings: Mapping[str, Any], entry: Mapping[str, Any], prompt: Callable[[str], TextOrMessages]
) -> dict[str, Any]:
    answer = entry["answer"]
    return {
        "prompt": prompt(entry["question"]),
        "answer": None if answer is None else str(answer),
        "data_source": name,
        _COLUMN: json.dumps({"data_set": name, "settings": {**settings}, "entry": _encode(entry)}),
    }


def _encode(value: Any) -> Any:
    """`value` as JSON that `_decode` reads without loss: JSON has no tuples, and only strings as keys.

    >>> _decode(json.loads(json.dumps(_encode({1: ("a", [2.5, None])}))))
    {1: ('a', [2.5, None])}
    """
    if isinstance(value, Mapping):
        return {"dict": [[_encode(key), _encode(inner)] for key, inner in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_encode(inner) for inner in value]}
    return [_encode(inner) for inner in value] if isinstance(value, list) else value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(map(_decode, value["tuple"]))
    return {_decode(key): _decode(inner) for key, inner in value["dict"]}
