"""What trackers' libraries say of a run, read as the library or its server would: metric -> step -> value.

Where a file holds a step twice, the one that the library shows is taken, and only if the rule for it is the library's.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from purerl.protocols import RunInfo

Shown = Mapping[str, Mapping[int, float]]


def once(pairs: Iterator[tuple[str, int, float]]) -> Shown:
    """Each step once; twice is an error."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for name, step, value in pairs:
        assert step not in found[name], f"step {step} of {name} is there twice"
        found[name][step] = value
    return found


def tensorboard(subject: RunInfo, folder: Path) -> Shown:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / subject.label)).Reload()
    names = events.Tags()["scalars"]
    return once((name, one.step, one.value) for name in names for one in events.Scalars(name))


def mlflow(subject: RunInfo, folder: Path) -> Shown:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"file:{folder}")
    experiment = client.get_experiment_by_name("purerl").experiment_id
    (run,) = client.search_runs([experiment], f"tags.`purerl.run` = '{subject.identity}'")
    metrics = run.data.metrics
    return once(
        (name, one.step, one.value) for name in metrics for one in client.get_metric_history(run.info.run_id, name)
    )


def trackio(subject: RunInfo, folder: Path) -> Shown:
    import sqlite3

    database = sqlite3.connect(next(folder.rglob("purerl.db")))
    rows = database.execute("select step, metrics from metrics where run_name = ?", [subject.label])
    logged = [(step, json.loads(metrics)) for step, metrics in rows]
    return once((name, step, value) for step, metrics in logged for name, value in metrics.items())


def wandb(subject: RunInfo, folder: Path) -> Shown:
    """Of one run's files, oldest first, what the server keeps: no step that is not newer than the last."""
    from wandb import teardown

    teardown()  # its other process is done writing
    kept: list[tuple[str, int, float]] = []
    for path in sorted(folder.rglob(f"offline-run-*-{subject.identity}/*.wandb")):
        last = max((step for _, step, _ in kept), default=-1)
        kept += [(name, step, value) for name, step, value in _history(path) if step > last]
    return once(iter(kept))


def _history(path: Path) -> Iterator[tuple[str, int, float]]:
    from wandb.proto.wandb_internal_pb2 import Record

    for written in _records(path.read_bytes()):
        record = Record.FromString(written)
        for item in record.history.item:
            yield ".".join(item.nested_key) or item.key, record.history.step.num, json.loads(item.value_json)


def _records(data: bytes) -> Iterator[bytes]:
    """LevelDB's log: blocks of 32 KiB, in them pieces of records behind checksum, length and kind (1 whole, 4 last)."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def swanlab(subject: RunInfo, folder: Path) -> Shown:
    """Of one run's files, oldest first, what the server keeps: the first of each step."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    found: dict[str, dict[int, float]] = defaultdict(dict)
    for path in sorted(folder.rglob(f"run-*-{subject.identity}/*.swanlab")):
        reader: Any = DataStoreReader()
        reader.open(path)
        for written in reader:
            scalar = Record.FromString(written).scalar
            if scalar.key:
                found[scalar.key].setdefault(scalar.step, scalar.value.number)
    return found
