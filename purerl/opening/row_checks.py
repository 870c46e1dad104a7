"""Rows that a reward cannot score, whatever the completion is, found before a model is loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from purerl.data.examples import DataSet, Example, rows_name
from purerl.data.nested import rows_of
from purerl.errors import DataError
from purerl.rewards.runner import RewardRunner
from purerl.system.phases import phase

__all__ = ["check_ground_truths"]

_CHUNK_SIZE = 1024


@phase("checking the ground truths")
def check_ground_truths(runner: RewardRunner, data: DataSet) -> None:
    """Raise DataError that names the rows of `data` whose completions a reward of `runner` can never score.

    Only rewards that declare a check are asked, as those for mathematics do.
    """
    if not runner.checks_rows:
        return
    rows = _rows(data, runner.columns)
    problems = {index: problem for index, row in rows if (problem := runner.find_problem(row)) is not None}
    if not problems:
        return
    name, message = next(iter(problems.values()))
    count = f"{len(problems):,} of {data.num_rows:,} rows"
    raise DataError(
        f"the reward {name!r} cannot score any completion of {count}: {rows_name(data, [*problems])}",
        got=message,
        need="in each row a ground truth that an answer can equal",
        do="correct these rows, or remove them",
    )


def _rows(data: DataSet, columns: Collection[str]) -> Iterator[tuple[int, Example]]:
    """The indices of `data` and their rows, with `columns` only."""
    indices, first = {*data.indices}, 0
    for table in data.tables:
        read = table.select([name for name in table.column_names if name in columns])
        for start in range(0, table.num_rows, _CHUNK_SIZE):
            rows = enumerate(rows_of(read.slice(start, _CHUNK_SIZE)), start=first + start)
            yield from ((index, row) for index, row in rows if index in indices)
        first += table.num_rows
