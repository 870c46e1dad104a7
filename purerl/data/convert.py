"""Data sets as they are published, made into files that a run can learn from.

Two forms of each. `messages`: the columns that verl's files have, the prompt a chat message that says how to answer.
`text`: for a model that continues texts, the prompt as it is published, and the right answer as a column `answer` where
it is not one of the columns that are kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from purerl.data.columns import Form
from purerl.data.files import read_table
from purerl.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SOURCES", "convert"]

Row = Mapping[str, Any]


@frozen
class Source:
    """A published data set: what verl calls it, the columns it has, and what becomes of a row.

    question   the column of the prompt
    truth      what is right
    ask        the question as a chat message
    kept       columns that stay as they are
    """

    name: str
    ability: str
    columns: tuple[str, ...]
    question: str
    truth: Callable[[Row], str]
    ask: str
    kept: tuple[str, ...] = ()


def _final_answer(row: Row) -> str:
    """What follows the last #### of a worked solution, without commas in numbers."""
    return row["answer"].rpartition("####")[2].strip().replace(",", "")


SOURCES: Mapping[str, Source] = {
    "gsm8k": Source(
        name="openai/gsm8k",
        ability="math",
        columns=("question", "answer"),
        question="question",
        truth=_final_answer,
        ask='{}\n\nReason step by step. Give the answer on the last line, as a number after "#### ".',
    ),
    "humaneval": Source(
        name="openai_humaneval",
        ability="code",
        columns=("task_id", "prompt", "entry_point", "canonical_solution", "test"),
        question="prompt",
        truth=lambda row: row["test"],
        ask="Complete this Python function. Answer with the whole function in one code block.\n\n```python\n{}\n```",
        kept=("task_id", "entry_point", "canonical_solution", "test"),
    ),
}
"""The data sets that can be converted, by name."""


def convert(name: str, source: str, target: str, *, form: Form = "messages") -> dict[str, int]:
    """Write the data set that is called `name`, from `source`, as Parquet to `target`; rows of each file written.

    `source` is a file, and so is `target`; or both are directories, with a file for each split: train, test.

    Raises: ConfigError for an unknown name, DataError where `source` cannot be read or is another data set.
    """
    if name not in SOURCES:
        raise ConfigError(f"no data set is called {name!r}", do=nearest(name, SOURCES))
    files = sorted(Path(source).glob("*.jsonl")) + sorted(Path(source).glob("*.parquet"))
    pairs = [(file, Path(target) / f"{file.stem}.parquet") for file in files] or [(Path(source), Path(target))]
    # All are read before any is written.
    tables = {to: _converted(SOURCES[name], read_table(file), file, form) for file, to in pairs}
    for to, table in tables.items():
        _write(to, table)
    return {str(to): table.num_rows for to, table in tables.items()}


def _converted(source: Source, table: pa.Table, path: Path, form: Form) -> pa.Table:
    import pyarrow as pa

    missing = [name for name in source.columns if name not in table.column_names]
    if missing:
        got, need = ", ".join(table.column_names), ", ".join(source.columns)
        raise DataError(f"{str(path)!r} is not {source.name}: no column {missing[0]!r}", got=got, need=need)
    made = {"messages": _messages, "text": _text}[form]
    rows = enumerate(table.select(source.columns).to_pylist())
    return pa.Table.from_pylist([made(source, row) | _about(source, row, path.stem, index) for index, row in rows])


def _messages(source: Source, row: Row) -> dict[str, Any]:
    return {
        "data_source": source.name,
        "prompt": [{"role": "user", "content": source.ask.format(row[source.question])}],
        "ability": source.ability,
        "reward_model": {"style": "rule", "ground_truth": source.truth(row)},
    }


def _text(source: Source, row: Row) -> dict[str, Any]:
    truth = source.truth(row)
    told = truth in [row[name] for name in source.kept]
    return {"prompt": row[source.question]} | ({} if told else {"answer": truth})


def _about(source: Source, row: Row, split: str, index: int) -> dict[str, Any]:
    """What both forms have: the columns that are kept, and where a row comes from, with all else that it said."""
    others = {name: row[name] for name in source.columns if name not in source.kept}
    return {name: row[name] for name in source.kept} | {"extra_info": {"split": split, "index": index} | others}


def _write(path: Path, table: pa.Table) -> None:
    """Write `table` to `path`; the file appears whole, or not."""
    import pyarrow.parquet

    partial = path.with_name(path.name + ".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, partial)
    os.replace(partial, path)
