"""Tables: nested dicts of settings, as they are in a TOML file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from purerl.errors import ConfigError
from purerl.system.nesting import read_toml

__all__ = [
    "SHORT",
    "UNSET",
    "Table",
    "check_same_on_ranks",
    "differences",
    "flat",
    "read_table",
    "show",
    "with_kind",
    "write",
]

Table = dict[str, Any]

_PAIRS = (
    ("max_steps", "num_epochs"),
    ("num_minibatches", "minibatch_size"),
    ("warmup_steps", "warmup_ratio"),
    ("max_tokens_per_microbatch", "max_rows_per_microbatch"),
)

ALTERNATIVES = dict((*_PAIRS, *((b, a) for a, b in _PAIRS)))
"""Settings of one section of which only one can be set: each one, and the other."""

UNSET = object()
"""In a table: a setting that returns to its default."""

SHORT = ""
"""In the table of a section: the key of a string that was given in place of the section."""


def read_table(path: str | Path) -> Table:
    """The content of the TOML file at `path`. Raises ConfigError if it cannot be read or is not TOML."""
    try:
        return read_toml(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read", got=str(error), need="a TOML file") from error


def flat(table: Table) -> dict[str, Any]:
    """The values in `table` and its sub-tables, by dotted key.

    >>> flat({"trainer": {"lr": 0.1, "betas": [0.9, 0.99]}, "seed": 0})
    {'trainer.lr': 0.1, 'trainer.betas': [0.9, 0.99], 'seed': 0}

    The modifiers of an algorithm are a list of tables, with their kinds. Here they are the list of the kinds, and a
    sub-table for each of them.

    >>> flat({"algorithm": {"kind": "grpo", "modifiers": [{"kind": "kl_loss", "coef": 0.1}]}})
    {'algorithm.kind': 'grpo', 'algorithm.modifiers': ['kl_loss'], 'algorithm.kl_loss.coef': 0.1}
    """
    values = {}
    for key, value in table.items():
        if isinstance(value, dict):
            values |= {f"{key}.{k}": v for k, v in flat(value).items()}
        elif key == "modifiers" and isinstance(value, list) and all(map(_has_kind, value)):
            sections = {item["kind"]: {name: part for name, part in item.items() if name != "kind"} for item in value}
            values |= {key: [item["kind"] for item in value], **flat(sections)}
        else:
            values[key] = value
    return values


def differences(a: Table, b: Table) -> list[tuple[str, Any, Any]]:
    """(dotted key, value in `a`, value in `b`) of every setting that differs; None if it is not set.

    >>> differences({"trainer": {"lr": 0.1}, "seed": 0}, {"trainer": {"lr": 0.2}, "seed": 0})
    [('trainer.lr', 0.1, 0.2)]
    """
    in_a, in_b = flat(a), flat(b)
    return [(key, in_a.get(key), in_b.get(key)) for key in in_a | in_b if in_a.get(key) != in_b.get(key)]


def check_same_on_ranks(tables: Sequence[Table]) -> None:
    """Raise ConfigError if the configurations of the ranks differ: it names a setting that differs."""
    different = [(rank, *each) for rank, table in enumerate(tables) for each in differences(tables[0], table)]
    if different:
        rank, key, first, other = different[0]
        raise ConfigError(
            key,
            got=f"{show(first)} on rank 0, {show(other)} on rank {rank}",
            need="the same configuration on every rank",
            do="start every rank with the same command, and let all of them read the same files",
        )


def _has_kind(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("kind"), str)


def with_kind(section: Any) -> Any:
    """The section of a plugin with its `kind`, if a string, the kind, was given in place of the section.

    >>> with_kind("grpo")
    {'kind': 'grpo'}
    """
    if isinstance(section, str):
        return {"kind": section}
    if isinstance(section, Mapping) and isinstance(section.get(SHORT), str):
        return {"kind": section[SHORT]} | {key: value for key, value in section.items() if key != SHORT}
    return section


def show(value: Any) -> str:
    """`value` as JSON, for messages."""
    if isinstance(value, Mapping) and SHORT in value:
        rest = {key: item for key, item in value.items() if key != SHORT}
        return f"{show(value[SHORT])} and {show(rest)}"
    return json.dumps(value, default=str)


def write(value: Any) -> str:
    """`value` as it is written in TOML, in one line; empty if it is None or `UNSET`.

    >>> write({"weight": 0.5, "names": ["a"]}), write(None)
    ('{weight = 0.5, names = ["a"]}', '')
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {write(part)}' for name, part in value.items() if part is not None)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(write, value))}]"
    return "" if value is None or value is UNSET else tomli_w.dumps({"value": value}).strip().removeprefix("value = ")
