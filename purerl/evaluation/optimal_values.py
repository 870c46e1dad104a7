"""The column `optimal_value` of a data set, from an evaluation of the reference model on its prompts.

`purerl.algos.a_star_po` learns from this column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen

from purerl.algos.estimators.optimal_value import optimal_value
from purerl.data.convert import check_target, write_parquet
from purerl.data.files import read_table
from purerl.data.nested import as_arrow, rows_of
from purerl.errors import ConfigError, DataError, nearest
from purerl.rewards.ground_truth import find_ground_truth
from purerl.system.nesting import read_json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COLUMN", "AddedValues", "add_optimal_values"]

COLUMN = "optimal_value"


@frozen
class AddedValues:
    """The result of `add_optimal_values`.

    model        the model whose completions were evaluated
    values       of the rows, in units of reward
    completions  the number of completions with a reward
    """

    model: str
    values: Sequence[float]
    completions: int


def add_optimal_values(source: str, results: str, target: str, *, beta: float, data_set: str | None) -> AddedValues:
    """Write the rows of `source` with a column `optimal_value` to the Parquet file `target`.

    results   a file of `purerl eval --json`, of an evaluation on all rows of `source`
    beta      of `purerl.algos.optimal_value`
    data_set  the name of `source` in that evaluation; not needed if it has one data set

    Completions without a reward are left out.

    Raises: ConfigError if `target` cannot be written, if `beta` is not above 0, or if `data_set` is not in the
    evaluation. DataError if a file cannot be read, if the evaluation has other rows than `source`, if its completions
    are those of greedy decoding, or if none of a row has a reward. After an error no file is written.
    """
    if not 0 < beta < float("inf"):
        raise ConfigError("beta", got=beta, need="a finite number above 0")
    _check_files(Path(source), Path(results), Path(target))
    table, evaluation = read_table(source), _read_evaluation(results)
    if COLUMN in table.column_names:
        do = "remove the column, or name a file without it"
        raise DataError(f"data set {source!r}", got=f"a column {COLUMN!r}", need="a file without it", do=do)
    problems = _problems_of(evaluation, results, data_set)
    _check_same_rows(table, source, problems, results)
    rewards = [_rewards_of(problem, results) for problem in problems]
    values = [optimal_value(torch.tensor(group, dtype=torch.float64), beta=beta).item() for group in rewards]
    write_parquet(Path(target), as_arrow(table).append_column(COLUMN, [values]))
    return AddedValues(evaluation["model"], values, sum(map(len, rewards)))


def _check_files(source: Path, results: Path, target: Path) -> None:
    """Raise ConfigError if `target` cannot be written."""
    check_target(target, source)
    what = f"target {str(target)!r}"
    if target.suffix != ".parquet":
        raise ConfigError(what, got=f"the suffix {target.suffix!r}", need="a file .parquet")
    if target.exists() and results.exists() and target.samefile(results):
        raise ConfigError(what, got="the evaluation", need="another file")


def _read_evaluation(path: str) -> Mapping[str, Any]:
    what, need = f"evaluation {path!r}", "a file of `purerl eval --json`"
    try:
        content = read_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(what, got=f"{type(error).__name__}: {error}", need=need) from error
    if not isinstance(content, dict) or not {"model", "settings", "data"} <= content.keys():
        raise DataError(what, got="another content", need=need)
    settings, data = content["settings"], content["data"]
    if not (isinstance(settings, dict) and "temperature" in settings and isinstance(data, dict) and data):
        raise DataError(what, got="no temperature or no data", need=need)
    if settings["temperature"] == 0:
        do = "evaluate with --temperature 1 and several --samples-per-prompt"
        raise DataError(what, got="greedy decoding", need="completions that the model has sampled", do=do)
    return content


def _problems_of(evaluation: Mapping[str, Any], path: str, name: str | None) -> Sequence[Mapping[str, Any]]:
    """The problems of the data set `name`, or of the only one, in the order of their rows."""
    every = evaluation["data"]
    if name is None and len(every) > 1:
        got = f"the data sets {', '.join(every)}"
        raise ConfigError(f"evaluation {path!r}", got=got, need="one of them", do="name it: --data-set NAME")
    name = next(iter(every)) if name is None else name
    if name not in every:
        raise ConfigError(f"--data-set {name!r}", got=f"only {', '.join(every)}", do=nearest(name, every))
    return sorted(every[name]["problems"], key=lambda problem: problem["index"])


def _check_same_rows(table: pa.Table, source: str, problems: Sequence[Mapping[str, Any]], path: str) -> None:
    what, do = f"evaluation {path!r}", f"evaluate all rows of {source!r}, without --max-examples"
    if [problem["index"] for problem in problems] != [*range(table.num_rows)]:
        got, need = f"{len(problems):,} problems", f"the {table.num_rows:,} rows of {source!r}"
        raise DataError(what, got=got, need=need, do=do)
    for row, (example, problem) in enumerate(zip(rows_of(table), problems, strict=True)):
        expected, got = find_ground_truth(example), problem["ground_truth"]
        if expected != got:
            need = f"{expected!r}, as in {source!r}"
            raise DataError(f"{what}: ground truth of row {row}", got=repr(got), need=need, do=do)


def _rewards_of(problem: Mapping[str, Any], path: str) -> list[float]:
    rewards = [attempt["reward"] for attempt in problem["attempts"] if attempt["reward"] is not None]
    if not rewards:
        what, do = f"evaluation {path!r}: row {problem['index']}", "remove the row, or evaluate again"
        raise DataError(what, got="no completion with a reward", need="at least one", do=do)
    return rewards
