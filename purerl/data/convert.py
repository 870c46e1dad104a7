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

_SHOWN = 60


@frozen
class Source:
    """A published data set: what verl calls it, the columns it has, and what becomes of a row.

    question   the column of the prompt
    answer     the column of what is right
    truth      what is right, from that column's text; nothing where that does not say it
    need       what that text has to be
    ask        the question as a chat message
    kept       columns that stay as they are
    """

    name: str
    ability: str
    columns: tuple[str, ...]
    question: str
    answer: str
    truth: Callable[[str], str]
    need: str
    ask: str
    kept: tuple[str, ...] = ()


def _final_answer(solution: str) -> str:
    """What follows the last #### of a worked solution, without commas in numbers."""
    _, mark, answer = solution.rpartition("####")
    return answer.strip().replace(",", "") if mark else ""


SOURCES: Mapping[str, Source] = {
    "gsm8k": Source(
        name="openai/gsm8k",
        ability="math",
        columns=("question", "answer"),
        question="question",
        answer="answer",
        truth=_final_answer,
        need="a solution, #### and the result",
        ask='{}\n\nReason step by step. Give the answer on the last line, as a number after "#### ".',
    ),
    "humaneval": Source(
        name="openai_humaneval",
        ability="code",
        columns=("task_id", "prompt", "entry_point", "canonical_solution", "test"),
        question="prompt",
        answer="test",
        truth=str,
        need="tests",
        ask="Complete this Python function. Answer with the whole function in one code block.\n\n```python\n{}\n```",
        kept=("task_id", "entry_point", "canonical_solution", "test"),
    ),
}
"""The data sets that can be converted, by name."""


def convert(name: str, source: str, target: str, *, form: Form = "messages") -> dict[str, int]:
    """Write the data set that is called `name`, from `source`, as Parquet to `target`; rows of each file written.

    `source` is a file, and so is `target`; or both are directories, with a file for each split: train, test.

    Raises: ConfigError for an unknown name, and for a `target` that cannot be written to; DataError where `source`
    cannot be read or is another data set, has two files of one split, or a row that says no right answer.
    """
    if name not in SOURCES:
        raise ConfigError(f"no data set is called {name!r}", do=nearest(name, SOURCES))
    pairs = _pairs(Path(source), Path(target))
    for file, to in pairs:
        _check_target(to, file)
    # All are read before any is written.
    tables = {to: _converted(SOURCES[name], read_table(file), file, form) for file, to in pairs}
    for to, table in tables.items():
        _write(to, table)
    return {str(to): table.num_rows for to, table in tables.items()}


def _pairs(source: Path, target: Path) -> list[tuple[Path, Path]]:
    """Which file becomes which."""
    files: dict[str, Path] = {}
    for file in [*sorted(source.glob("*.jsonl")), *sorted(source.glob("*.parquet"))]:
        other = files.setdefault(file.stem, file)
        if other is not file:
            got = f"{other.name} and {file.name}, which would both become {file.stem}.parquet"
            do = "take one of them out, or convert them one by one"
            raise DataError(f"data set {str(source)!r}", got=got, need="one file for each split", do=do)
    return [(file, target / f"{stem}.parquet") for stem, file in files.items()] or [(source, target)]


def _check_target(path: Path, source: Path) -> None:
    what = f"target {str(path)!r}"
    if path.is_dir():
        need = f"a file, for {str(source)!r} is no directory of .parquet or .jsonl files"
        raise ConfigError(what, got="a directory", need=need, do=f"name {path / source.stem}.parquet, say")
    if path.parent.exists() and not path.parent.is_dir():
        need, do = "a directory to write to", "name another, or remove that file"
        raise ConfigError(what, got=f"{str(path.parent)!r}, a file", need=need, do=do)
    if path.exists() and source.exists() and path.samefile(source):
        raise ConfigError(what, got="the file that is read", need="another", do="name another file or directory")


def _converted(source: Source, table: pa.Table, path: Path, form: Form) -> pa.Table:
    import pyarrow as pa

    missing = [name for name in source.columns if name not in table.column_names]
    if missing:
        got, need = ", ".join(table.column_names), ", ".join(source.columns)
        raise DataError(f"{str(path)!r} is not {source.name}: no column {missing[0]!r}", got=got, need=need)
    made = {"messages": _messages, "text": _text}[form]
    rows = table.select(source.columns).to_pylist()
    for index, row in enumerate(rows):
        _check_row(source, row, f"row {index} of {str(path)!r}")
    about = (_about(source, row, path.stem, index) for index, row in enumerate(rows))
    return pa.Table.from_pylist([made(source, row) | others for row, others in zip(rows, about, strict=True)])


def _check_row(source: Source, row: Row, what: str) -> None:
    do = "mend that row, or take it out"
    for name in source.columns:
        if not isinstance(row[name], str):
            got = "nothing" if row[name] is None else f"a value of type {type(row[name]).__name__}"
            raise DataError(what, got=f"{got} in column {name!r}", need="a text", do=do)
    if not source.truth(row[source.answer]).strip():
        got = f"no right answer in column {source.answer!r}: {row[source.answer][-_SHOWN:]!r}"
        raise DataError(what, got=got, need=source.need, do=do)


def _messages(source: Source, row: Row) -> dict[str, Any]:
    return {
        "data_source": source.name,
        "prompt": [{"role": "user", "content": source.ask.format(row[source.question])}],
        "ability": source.ability,
        "reward_model": {"style": "rule", "ground_truth": source.truth(row[source.answer])},
    }


def _text(source: Source, row: Row) -> dict[str, Any]:
    truth = source.truth(row[source.answer])
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
    try:
        pyarrow.parquet.write_table(table, partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
