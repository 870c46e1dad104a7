"""The rewards that apply to a row of the data, by its column `data_source`.

A route is a list of names and patterns, such as ``math_*``. A reward applies to a row if each of its routes has the
value of the column: its own setting `data_source`, and what its kind is for. Without routes it applies to every row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from purerl.errors import ConfigError, nearest
from purerl.plugins import find, kind_of
from purerl.rewards.settings import Gate, Reward

__all__ = ["COLUMN", "Routes", "applies", "check_coverage", "check_effect", "routes_of"]

COLUMN = "data_source"
Routes = tuple[tuple[str, ...], ...]

_MAX_LISTED = 5


def routes_of(reward: Reward | Gate) -> Routes:
    """The routes of `reward`, all of which must have the data source of a row."""
    of_kind = None
    if reward.config is not None:
        of_kind = getattr(find("reward", kind_of(reward.config)), "data_sources", lambda _: None)(reward.config)
    return tuple(tuple(route) for route in (reward.data_source, of_kind) if route is not None)


def applies(routes: Routes, example: Mapping[str, Any]) -> bool:
    """Whether a reward with `routes` applies to the row `example`.

    >>> applies((("gsm8k", "math_*"),), {"data_source": "math_dapo"}), applies((("gsm8k",),), {}), applies((), {})
    (True, False, True)
    """
    return not routes or _matches(routes, str(example.get(COLUMN)))


@lru_cache(maxsize=10_000)
def _matches(routes: Routes, source: str) -> bool:
    return all(any(fnmatchcase(source, pattern) for pattern in route) for route in routes)


def check_coverage(routes: Collection[Routes], sources: Mapping[Any, int], path: str) -> None:
    """Raise ConfigError if no reward applies to a row of the file `path`.

    routes   the routes of each reward whose weight is not 0
    sources  the values of the column `data_source`, with their numbers of rows
    """
    missing = {name: rows for name, rows in sources.items() if not any(applies(r, {COLUMN: name}) for r in routes)}
    if not missing:
        return
    rows = [f"{source!r} ({rows:,} rows)" for source, rows in missing.items()]
    names = sorted({pattern for each in routes for route in each for pattern in route})
    raise ConfigError(
        f"no reward applies to some rows of {path!r}",
        got=f"the data_source {_listed(rows)}",
        need=f"a reward for each row; those of this run are for {_listed(names, 10)}",
        do=f'set data_source = ["{next(iter(missing))}", ...] of a reward, or leave these rows out',
    )


def check_effect(rewards: Iterable[Reward | Gate], sources: Collection[Any]) -> None:
    """Raise ConfigError if a name or pattern in the setting `data_source` of a reward is in none of `sources`."""
    for reward in rewards:
        for pattern in reward.data_source or ():
            if not any(fnmatchcase(str(source), pattern) for source in sources):
                known = sorted(map(str, sources))
                raise ConfigError(
                    f"data_source of the reward {reward.full_name!r} has no effect",
                    got=repr(pattern),
                    need=f"a value, or a pattern of values, in the column data_source: {_listed(known, 10)}",
                    do=nearest(pattern, known),
                )


def _listed(texts: Sequence[str], count: int = _MAX_LISTED) -> str:
    more = [f"and {len(texts) - count} more"] if len(texts) > count else []
    return ", ".join([*texts[:count], *more])
