"""One Parquet file of completions per evaluation, with the answer, the rewards and the ground truth of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from purerl.store.step_files import step_path, storable_text, write_step

__all__ = ["read_evaluation", "write_evaluation"]

_TYPES = {
    "data_set": "string", "index": "int64", "attempt": "int64", "prompt": "string", "completion": "string",
    "tokens": "int64", "finish": "string", "answer": "string", "correct": "bool", "reward": "float64",
    "ground_truth": "string",
}  # fmt: skip
"""The columns that every file has. Others have the reward components, and what reward functions logged."""


def write_evaluation(folder: Path, step: int, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the completions of an evaluation, a mapping each, atomically; an existing file is replaced.

    data_set      name of the data set
    index         row index of the problem in the data set
    attempt       number of the completion, from 0
    prompt        text of the prompt
    completion    text of the completion
    tokens        number of its tokens
    finish        why it ended
    answer        what the answer extractor returned; None without an answer or without an extractor
    correct       whether it is correct; None if this is not known
    reward        the reward, and ``reward/<name>`` each component; None if there is none
    ground_truth  the ground truth of the row; None if it has none
    messages      the conversation as JSON, if any of the completions is one of several turns; None for the others
    images        content ids of the images of the prompt or the conversation as JSON, if the run has images

    ``logged/<name>`` has the texts that reward functions logged.
    """
    import pyarrow as pa

    names = dict.fromkeys([*_TYPES, *(name for row in rows for name in row)])
    types = {name: "float64" if name.startswith("reward/") else "string" for name in names} | _TYPES
    arrays = [
        pa.array([storable_text(row.get(name)) for row in rows], pa.type_for_alias(types[name])) for name in names
    ]
    return write_step(folder, step, pa.Table.from_arrays(arrays, list(map(storable_text, names))))


def read_evaluation(folder: Path, step: int) -> list[dict[str, Any]]:
    """The completions of the evaluation after `step`; none if there was no evaluation."""
    import pyarrow.parquet

    path = step_path(folder, step)
    return pyarrow.parquet.read_table(path).to_pylist() if path.exists() else []
