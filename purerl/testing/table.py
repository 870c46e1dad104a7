"""A batch as a table that a person can read."""

from __future__ import annotations

from collections.abc import Iterable

from tensordict import TensorDict
from torch import Tensor

from purerl.batch import ROW_FIELDS, STRUCTURE

__all__ = ["batch_table"]

_MAX_ROWS = 12
_MARK = "*"


def batch_table(batch: TensorDict, fields: Iterable[str], position: tuple[int, ...] = ()) -> str:
    """A table of the rows and tokens of `batch` with the values of `fields`, rounded to four digits.

    Each row has a line with a letter for each token: a (counted), x (an action token that is not counted) or . (another
    token). `position` is marked with *: a row, or a row and a token. At most 12 rows are shown, the marked one and its
    group first.

    >>> from purerl.testing import example_batch
    >>> print(batch_table(example_batch(["reward"], ((4, ".ax"), (4, ".a")), seed=1), ["reward"], (0, 1)))
    2 rows; a: counted, x: not counted, .: not an action; * marks the difference
    * row 0, group 4
                   0       1       2
                   .      *a       x
      reward       0    -0.5   0.875
      row 1, group 4
                   0       1
                   .       a
      reward      -1       0
    """
    names = [name for name in dict.fromkeys(fields) if name in batch.keys() and name not in (*STRUCTURE, "tokens")]
    group = batch["group"].tolist()
    wanted = group[position[0]] if position else None
    order = sorted(range(len(group)), key=lambda row: (row not in position[:1], group[row] != wanted, row))
    shown = sorted(order[:_MAX_ROWS])
    marked = f"; {_MARK} marks the difference" if position else ""
    title = f"{len(batch)} rows; a: counted, x: not counted, .: not an action{marked}"
    lines = [line for row in shown for line in _row_lines(batch, names, row, position)]
    hidden = len(batch) - len(shown)
    return "\n".join([title, *lines, *([f"  and {hidden} more rows"] if hidden else [])])


def _row_lines(batch: TensorDict, names: list[str], row: int, position: tuple[int, ...]) -> list[str]:
    is_marked = position[:1] == (row,)
    of_row = [f"{name} {_number(batch[name][row])}" for name in names if name in ROW_FIELDS]
    title = ", ".join([f"row {row}", f"group {int(batch['group'][row])}", *of_row])
    length = int(batch["attention_mask"][row].sum())
    columns = {n: [_number(value) for value in batch[n][row, :length]] for n in names if n not in ROW_FIELDS}
    kinds = [_kind(batch, row, time) for time in range(length)]
    if is_marked and position[1:] and position[1] < length:
        kinds[position[1]] = _MARK + kinds[position[1]]
    cells = {"": [str(time) for time in range(len(kinds))], " ": kinds} | columns
    width = max(7, *(len(cell) for line in cells.values() for cell in line))
    margin = max(map(len, cells))
    lines = [
        f"  {name.strip():<{margin}} {' '.join(cell.rjust(width) for cell in line)}".rstrip()
        for name, line in cells.items()
    ]
    return [f"{_MARK if is_marked else ' '} {title}", *lines]


def _kind(batch: TensorDict, row: int, time: int) -> str:
    masks = {"a": "mask", "x": "action", ".": "attention_mask"}
    return next(kind for kind, mask in masks.items() if batch[mask][row, time])


def _number(value: Tensor) -> str:
    """`value` with four digits; the values of an additional axis with / between them."""
    return "/".join(f"{float(item):.4g}" for item in value.reshape(-1))
