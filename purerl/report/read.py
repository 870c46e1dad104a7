"""Run directories as plain data. Nothing is locked or changed, so a run may be read while it goes on."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from purerl.errors import DataError
from purerl.report.completions import evenly
from purerl.report.numbers import short
from purerl.store.lines import read_lines

__all__ = ["checked", "labels", "read_run"]

_NO_PHASES = {"time/step", "time/cpu", "time/tokens_per_second"}
_BESIDE_STEPS = ("evaluate", "store")


def checked(paths: Sequence[Path]) -> list[Path]:
    """`paths`, if each is a run that has metrics. Raises: DataError for one that is none, is empty, or comes twice."""
    for path in paths:
        if not (path / "config.toml").exists():
            need = "a run directory: one with a config.toml"
            raise DataError(f"{str(path)!r} is no run", got="no config.toml in it", need=need, do=_runs_near(path))
        if not read_lines(path / "metrics.jsonl"):
            do = "wait for its first evaluation or step"
            raise DataError(f"the run in {str(path)!r} has no metrics yet", do=do)
    places = [path.resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise DataError(f"the run in {str(path)!r} is given twice", need="each run once")
    return list(paths)


def _runs_near(path: Path) -> str | None:
    """The runs within `path`, one folder down, for who names the folder of all runs."""
    runs = sorted(str(config.parent) for config in path.glob("*/config.toml"))
    return "did you mean " + " ".join(runs[:4]) + "?" if runs else None


def labels(paths: Sequence[Path]) -> list[str]:
    """A name for each run: as much of the end of its path as tells it from the others.

    >>> labels([Path("runs/a"), Path("runs/b")]), labels([Path("one/run"), Path("two/run")])
    (['a', 'b'], ['one/run', 'two/run'])
    """
    parts = [path.resolve().parts for path in paths]
    ends = (["/".join(one[-count:]) for one in parts] for count in range(1, max(map(len, parts)) + 1))
    return next(names for names in ends if len(set(names)) == len(names))


def read_run(path: Path, *, lines: int) -> dict[str, Any]:
    """What the run at `path` is and how far it is, and its metrics at about `lines` of its steps.

    It began when its config.toml was written. Raises: DataError for a file of it that is broken.
    """
    config = _config(path / "config.toml")
    records = read_lines(path / "metrics.jsonl")
    began = datetime.fromtimestamp((path / "config.toml").stat().st_mtime, UTC)
    return {
        "path": str(path),
        "began": began.isoformat(timespec="seconds"),
        "finished": (path / "summary.json").exists(),
        "done": records[-1]["step"],
        "steps": config["max_steps"],
        "config": _flat(config),
        "first": _ends(reversed(records)),
        "last": _ends(records),
        "seconds": {name: short(total) for name, total in _seconds(records).items()},
        **_curves(records, lines),
    }


def _config(path: Path) -> dict[str, Any]:
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{str(path)!r} is broken", got=error, need="TOML", do="mend the file") from error
    if not isinstance(config.get("max_steps"), int):
        got, need = repr(config.get("max_steps")), "a whole number: the steps of the run"
        raise DataError(f"max_steps in {str(path)!r}", got=got, need=need, do="mend the file")
    return config


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted key."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: _told(value)}
    return found


def _told(value: Any) -> Any:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _ends(records: Any) -> dict[str, Any]:
    """The value of every metric in the last of `records` that has it."""
    return {name: short(value) for record in records for name, value in record.items()}


def _seconds(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds of the whole run by phase; what of the steps belongs to no phase is called other."""
    timed = dict.fromkeys(name for record in records for name in record if name.startswith("time/"))
    phases = [name.removeprefix("time/") for name in timed if name not in _NO_PHASES]
    totals = {name: sum(record.get(f"time/{name}", 0.0) for record in records) for name in phases}
    steps = sum(record.get("time/step", 0.0) for record in records)
    other = steps - sum(seconds for name, seconds in totals.items() if name not in _BESIDE_STEPS)
    return totals | {"other": max(other, 0.0)}


def _curves(records: Sequence[dict[str, Any]], lines: int) -> dict[str, Any]:
    """Every metric at the chosen steps, None where it has no value; and what may stand on the horizontal axis.

    Steps are left out evenly, first among those without an evaluation.
    """
    evaluated = [k for k, record in enumerate(records) if any(name.startswith("eval/") for name in record)]
    chosen = sorted({*evenly(range(len(records)), lines), *evenly(evaluated, lines // 2)})
    seconds = accumulate(
        sum(record.get(f"time/{name}", 0.0) for name in ("step", *_BESIDE_STEPS)) for record in records
    )
    tokens = accumulate(record.get("time/tokens_per_second", 0.0) * record.get("time/step", 0.0) for record in records)
    axes = {"step": [record["step"] for record in records], "seconds": list(seconds), "tokens": list(tokens)}
    names = dict.fromkeys(name for record in records for name in record if name != "step")
    return {
        "axes": {axis: [short(float(values[k])) for k in chosen] for axis, values in axes.items()},
        "metrics": {name: [short(records[k].get(name)) for k in chosen] for name in names},
        "lines": {"shown": len(chosen), "all": len(records)},
    }
