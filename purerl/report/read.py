"""Read run directories. No file is locked or changed, so a run can be read while it trains."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from purerl.errors import DataError
from purerl.evaluation.problem_results import is_measurement
from purerl.monitoring.console.phases import step_phases
from purerl.monitoring.warnings.monitor import diagnose
from purerl.monitoring.warnings.run import facts_of_run
from purerl.report.completions import evenly_spaced
from purerl.report.numbers import round_number
from purerl.store.code import code_changes
from purerl.store.lines import read_lines
from purerl.system.nesting import read_json, read_toml

__all__ = ["check_runs", "max_steps", "read_run", "run_labels"]

_PHASES_OUTSIDE_STEPS = ("evaluate", "validate", "store")


def check_runs(paths: Sequence[Path]) -> None:
    """Check that each path is a different run directory with metrics.

    Raises: DataError if a path is not a run directory, if a run has no metrics yet, or if a run is given twice.
    """
    for path in paths:
        if not (path / "config.toml").exists():
            raise DataError(
                f"{str(path)!r} is not a run directory",
                got="no config.toml in it",
                need="a directory that purerl train has written",
                do=_suggest_runs(path),
            )
        if not read_lines(path / "metrics.jsonl"):
            need, do = "at least one finished step or evaluation", "wait until the first one is finished"
            raise DataError(f"run {str(path)!r} has no metrics yet", need=need, do=do)
    resolved = [path.resolve() for path in paths]
    for path, target in zip(paths, resolved, strict=True):
        if resolved.count(target) > 1:
            raise DataError(f"run {str(path)!r} is given twice", need="each run once", do="remove one of them")


def _suggest_runs(path: Path) -> str:
    """Suggest the runs in `path`, in case it is the directory that contains all runs."""
    runs = sorted(str(config.parent) for config in path.glob("*/config.toml"))
    return "did you mean " + " ".join(runs[:4]) + "?" if runs else "give the directory of a run, such as runs/NAME"


def run_labels(paths: Sequence[Path]) -> list[str]:
    """Return a label for each run: the shortest end of its path that is different for all runs.

    >>> run_labels([Path("runs/a"), Path("runs/b")]), run_labels([Path("one/run"), Path("two/run")])
    (['a', 'b'], ['one/run', 'two/run'])
    """
    parts = [path.resolve().parts for path in paths]
    max_parts = max(map(len, parts))
    candidates = (["/".join(path_parts[-count:]) for path_parts in parts] for count in range(1, max_parts + 1))
    return next(labels for labels in candidates if len(set(labels)) == len(labels))


def read_run(path: Path, *, max_records: int) -> dict[str, Any]:
    """Read the configuration and progress of a run, and its metrics at about `max_records` steps.

    The start time of the run is the modification time of its config.toml.

    Raises: DataError if a file of the run cannot be parsed; RunDirectoryError if the record of its code is damaged.
    """
    file = path / "config.toml"
    try:
        config = read_toml(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"cannot parse {str(file)!r}", got=error, need="valid TOML", do="fix the file") from error
    records = _read_metrics(path / "metrics.jsonl")
    started = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    return {
        "path": str(path),
        "started": started.isoformat(timespec="seconds"),
        "finished": (path / "summary.json").exists(),
        "last_step": records[-1]["step"],
        "max_steps": max_steps(path, config),
        "config": _flatten(config),
        "first_values": _last_values(reversed(records)),
        "last_values": _last_values(records),
        "phase_seconds": {name: round_number(total) for name, total in _phase_seconds(records).items()},
        "warnings": [{**one.warning._asdict(), "end": one.end} for one in diagnose(records, facts_of_run(path))],
        "accuracy": _fact(path, "accuracy"),
        "preset": _fact(path, "preset"),
        "code_changes": [{"step": step, "text": text} for step, text in code_changes(path)],
        **_curves(records, max_records),
    }


def _fact(path: Path, name: str) -> str | None:
    """The text `name` in data.json: `accuracy`, when a completion is correct, or `preset`; None if it has none."""
    try:
        text = read_json((path / "data.json").read_text(encoding="utf-8"))[name]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return text if isinstance(text, str) else None


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a run. Raises: DataError for a line with a metric that is neither a number nor null."""
    records = read_lines(path)
    for number, record in enumerate(records, start=1):
        name = next((name for name, value in record.items() if not isinstance(value, int | float | None)), None)
        if name is not None:
            what, got = f"line {number} of {str(path)!r}", f"{name}: {record[name]!r:.60}"
            raise DataError(what, got=got, need="a number or null for each metric", do="fix or remove the line")
    return records


def max_steps(path: Path, config: dict[str, Any]) -> int:
    """The number of steps of the run at `path`, whose configuration is `config`.

    If the length of the run was given in epochs, the number is in its data.json.

    Raises: DataError if neither of them has the number.
    """
    if isinstance(config.get("max_steps"), int):
        return config["max_steps"]
    try:
        return int(read_json((path / "data.json").read_text(encoding="utf-8"))["max_steps"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        got, need = repr(config.get("max_steps")), "an integer; data.json has it if config.toml has num_epochs instead"
        raise DataError(f"max_steps of {str(path / 'config.toml')!r}", got=got, need=need, do="fix the file") from error


def _flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: _as_string(value)}
    return flat


def _as_string(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _last_values(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The value of each metric in the last record that contains it. In the files, null stands for NaN and infinity."""
    values = {name: value for record in records for name, value in record.items()}
    return {name: "not finite" if value is None else round_number(value) for name, value in values.items()}


def _phase_seconds(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds of the full run by phase. Time of the steps that belongs to no phase is called other."""
    phases = step_phases(dict.fromkeys(name for record in records for name in record))
    totals = {name: sum(record.get(f"time/{name}") or 0.0 for record in records) for name in phases}
    steps = sum(record.get("time/step") or 0.0 for record in records)
    unassigned = steps - sum(seconds for name, seconds in totals.items() if name not in _PHASES_OUTSIDE_STEPS)
    return totals | {"other": max(unassigned, 0.0)}


def _curves(records: Sequence[dict[str, Any]], max_records: int) -> dict[str, Any]:
    """Every metric and the axes at evenly spaced steps, and at up to half as many steps with an evaluation."""
    evaluated = [k for k, record in enumerate(records) if any(map(is_measurement, record))]
    selected = sorted({*evenly_spaced(range(len(records)), max_records), *evenly_spaced(evaluated, max_records // 2)})
    seconds = accumulate(
        sum(record.get(f"time/{name}") or 0.0 for name in ("step", *_PHASES_OUTSIDE_STEPS)) for record in records
    )
    tokens = accumulate((row.get("time/tokens_per_second") or 0.0) * (row.get("time/step") or 0.0) for row in records)
    axes = {"step": [record["step"] for record in records], "seconds": list(seconds), "tokens": list(tokens)}
    names = dict.fromkeys(name for record in records for name in record if name != "step")
    return {
        "axes": {axis: [round_number(float(values[k])) for k in selected] for axis, values in axes.items()},
        "metrics": {name: [round_number(records[k].get(name)) for k in selected] for name in names},
        "records": {"shown": len(selected), "total": len(records)},
    }
