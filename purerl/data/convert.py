"""Conversion of published data sets to Parquet files for training and evaluation.

There are two prompt formats. "messages" writes the columns of verl's files; the prompt is a chat message that also says
how to format the answer. "text" is for base models; the prompt is the published text, and the ground truth is written
to a column `answer` unless one of the columns in `keep` already holds it. If the data set has written solutions, they
are in a column `completion`, which SFT learns from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from purerl.data.columns import PromptFormat
from purerl.data.files import read_table
from purerl.data.nested import rows_of
from purerl.errors import ConfigError, DataError, nearest
from purerl.system.files import create

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SOURCES", "check_target", "convert", "write_parquet"]

Row = Mapping[str, Any]

_MAX_SHOWN_CHARACTERS = 60


@frozen
class Source:
    """A published data set and how its rows are converted.

    name           its `data_source` in verl's files
    ability        its `ability` in verl's files
    columns        the columns that it must have
    question       the column of the prompt
    answer         the column of the ground truth
    ground_truth   extracts the ground truth from that column; returns an empty string if there is none
    answer_format  the required format of that column, for error messages
    instruction    format string that makes a chat message from the question
    frame          format string that makes a prompt for a base model from the question
    keep           columns that are copied without changes
    solution       makes a demonstration of the column of the ground truth; None: there are none
    """

    name: str
    ability: str
    columns: tuple[str, ...]
    question: str
    answer: str
    ground_truth: Callable[[str], str]
    answer_format: str
    instruction: str
    frame: str = "{}"
    keep: tuple[str, ...] = ()
    solution: Callable[[str], str] | None = None


def _final_answer(solution: str) -> str:
    """The text after the last #### of a GSM8K solution, without the commas in numbers."""
    _, marker, answer = solution.rpartition("####")
    return answer.strip().replace(",", "") if marker else ""


SOURCES: Mapping[str, Source] = {
    "gsm8k": Source(
        name="openai/gsm8k",
        ability="math",
        columns=("question", "answer"),
        question="question",
        answer="answer",
        ground_truth=_final_answer,
        answer_format="a solution that ends with #### and the result",
        instruction='{}\n\nReason step by step. Give the answer on the last line, as a number after "#### ".',
        solution=lambda solution: re.sub(r"<<[^>]*>>", "", solution),  # calls of a calculator, such as <<2*3=6>>
    ),
    "humaneval": Source(
        name="openai_humaneval",
        ability="code",
        columns=("task_id", "prompt", "entry_point", "canonical_solution", "test"),
        question="prompt",
        answer="test",
        ground_truth=str,
        answer_format="tests",
        instruction=(
            "Complete this Python function. Answer with the whole function in one code block.\n\n```python\n{}\n```"
        ),
        keep=("task_id", "entry_point", "canonical_solution", "test"),
    ),
    "math": Source(
        name="DigitalLearningGmbH/MATH-lighteval",
        ability="math",
        columns=("problem", "answer"),
        question="problem",
        answer="answer",
        ground_truth=str,
        answer_format="a formula",
        instruction="{}\n\nReason step by step. Put the result of the problem into \\boxed{{}}.",
        frame="Solve the problem. Put the result into \\boxed{{}}.\n\nProblem:\n{}\n\nSolution:\n",
    ),
    "reverse_text": Source(
        name="PrimeIntellect/Reverse-Text-RL",
        ability="text",
        columns=("prompt",),
        question="prompt",
        answer="prompt",
        ground_truth=lambda text: text[::-1],
        answer_format="a text",
        instruction=(
            "Write this text in reverse order, from its last character to its first, between <reversed_text> and "
            "</reversed_text>.\n\n{}"
        ),
    ),
}
"""The data sets that can be converted, by name."""


def convert(name: str, source: str, target: str, *, prompt_format: PromptFormat = "messages") -> dict[str, int]:
    """Convert the published data set `name` from `source` to Parquet at `target`.

    `source` and `target` are files, or directories with one file per split (train, test).

    Returns: the number of rows of each file that was written, by its path.

    Raises: ConfigError if `name` is unknown or `target` cannot be written. DataError if `source` cannot be read, is
    another data set, has two files of one split, or has a row without a ground truth. After an error no file is
    written.
    """
    if name not in SOURCES:
        raise ConfigError(f"unknown data set {name!r}", do=nearest(name, SOURCES))
    pairs = _pair_files(Path(source), Path(target))
    for source_file, target_file in pairs:
        check_target(target_file, source_file)
    # Convert all files before writing the first one.
    tables = {
        target_file: _convert_table(SOURCES[name], read_table(source_file), source_file, prompt_format)
        for source_file, target_file in pairs
    }
    for target_file, table in tables.items():
        write_parquet(target_file, table)
    return {str(target_file): table.num_rows for target_file, table in tables.items()}


def _pair_files(source: Path, target: Path) -> list[tuple[Path, Path]]:
    files: dict[str, Path] = {}
    for file in [*sorted(source.glob("*.jsonl")), *sorted(source.glob("*.parquet"))]:
        first = files.setdefault(file.stem, file)
        if first is not file:
            got = f"{first.name} and {file.name}, which would both be converted to {file.stem}.parquet"
            do = "remove one of them, or convert each file with its own command"
            raise DataError(f"data set {str(source)!r}", got=got, need="one file per split", do=do)
    return [(file, target / f"{stem}.parquet") for stem, file in files.items()] or [(source, target)]


def check_target(path: Path, source: Path) -> None:
    """Raise ConfigError if `path` cannot be written, or is the file `source` itself."""
    what = f"target {str(path)!r}"
    if path.is_dir():
        need = f"a file, because {str(source)!r} is not a directory of .parquet or .jsonl files"
        raise ConfigError(what, got="a directory", need=need, do=f"use {path / source.stem}.parquet as the target")
    if path.parent.exists() and not path.parent.is_dir():
        got, need = f"{str(path.parent)!r}, which is a file", "a directory to write to"
        raise ConfigError(what, got=got, need=need, do="use another target, or remove that file")
    if path.exists() and source.exists() and path.samefile(source):
        need, do = "a target that is not the source", "use another file or directory as the target"
        raise ConfigError(what, got="the source file", need=need, do=do)


def _convert_table(source: Source, table: pa.Table, path: Path, prompt_format: PromptFormat) -> pa.Table:
    import pyarrow as pa

    missing = [name for name in source.columns if name not in table.column_names]
    if missing:
        got, need = ", ".join(table.column_names), ", ".join(source.columns)
        raise DataError(f"{str(path)!r} is not {source.name}: it has no column {missing[0]!r}", got=got, need=need)
    convert_row = {"messages": _messages_row, "text": _text_row}[prompt_format]
    rows = rows_of(table.select(source.columns))
    for index, row in enumerate(rows):
        _check_row(source, row, f"row {index} of {str(path)!r}")
    return pa.Table.from_pylist(
        [convert_row(source, row) | _shared_columns(source, row, path.stem, index) for index, row in enumerate(rows)]
    )


def _check_row(source: Source, row: Row, what: str) -> None:
    do = "fix that row, or remove it"
    for name in source.columns:
        if not isinstance(row[name], str):
            got = "no value" if row[name] is None else f"a value of type {type(row[name]).__name__}"
            raise DataError(what, got=f"{got} in column {name!r}", need="a string", do=do)
    if not source.ground_truth(row[source.answer]).strip():
        got = f"no ground truth in column {source.answer!r}: {row[source.answer][-_MAX_SHOWN_CHARACTERS:]!r}"
        raise DataError(what, got=got, need=source.answer_format, do=do)


def _messages_row(source: Source, row: Row) -> dict[str, Any]:
    return {
        "data_source": source.name,
        "prompt": [{"role": "user", "content": source.instruction.format(row[source.question])}],
        "ability": source.ability,
        "reward_model": {"style": "rule", "ground_truth": source.ground_truth(row[source.answer])},
        **_completion(source, row, lambda solution: [{"role": "assistant", "content": solution}]),
    }


def _text_row(source: Source, row: Row) -> dict[str, Any]:
    ground_truth = source.ground_truth(row[source.answer])
    is_kept = ground_truth in [row[name] for name in source.keep]
    answer = {} if is_kept else {"answer": ground_truth}
    prompt = source.frame.format(row[source.question])
    return {"prompt": prompt, **answer, **_completion(source, row, lambda solution: f"\n{solution}")}


def _completion(source: Source, row: Row, write: Callable[[str], Any]) -> dict[str, Any]:
    return {} if source.solution is None else {"completion": write(source.solution(row[source.answer]))}


def _shared_columns(source: Source, row: Row, split: str, index: int) -> dict[str, Any]:
    """The columns of both prompt formats: those in `keep`, and `extra_info` with the origin of the row and the rest."""
    keep = {name: row[name] for name in source.keep}
    rest = {name: row[name] for name in source.columns if name not in source.keep}
    return keep | {"extra_info": {"split": split, "index": index} | rest}


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write `table` to `path` atomically: an interrupted write leaves no file."""
    import pyarrow.parquet

    partial = path.with_name(path.name + ".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with create(partial) as file:
            pyarrow.parquet.write_table(table, file)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
