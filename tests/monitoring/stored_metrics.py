"""Read the metrics of a run back from the files of each tracker library, as metric -> step -> value.

If the files contain a step twice, the value that the library or its server shows is returned. A duplicate that the
library does not resolve is an error.
"""

from __future__ import annotations

import json
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from purerl.monitoring.trackers.protocol import RunInfo

StoredMetrics = Mapping[str, Mapping[int, float]]


def collect_unique(entries: Iterator[tuple[str, int, float]]) -> StoredMetrics:
    """Collect (metric, step, value) entries; a repeated step is an error."""
    metrics: dict[str, dict[int, float]] = defaultdict(dict)
    for name, step, value in entries:
        assert step not in metrics[name], f"step {step} of {name} is stored twice"
        metrics[name][step] = value
    return metrics


def tensorboard(run_info: RunInfo, folder: Path) -> StoredMetrics:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / run_info.label)).Reload()
    names = events.Tags()["scalars"]
    return collect_unique((name, event.step, event.value) for name in names for event in events.Scalars(name))


def mlflow(run_info: RunInfo, folder: Path) -> StoredMetrics:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"file:{folder}")
    experiment = client.get_experiment_by_name("purerl").experiment_id
    (run,) = client.search_runs([experiment], f"tags.`purerl.run` = '{run_info.identity}'")
    return collect_unique(
        (name, metric.step, metric.value)
        for name in run.data.metrics
        for metric in client.get_metric_history(run.info.run_id, name)
    )


def trackio(run_info: RunInfo, folder: Path) -> StoredMetrics:
    import sqlite3

    database = sqlite3.connect(next(folder.rglob("purerl.db")))
    rows = database.execute("select step, metrics from metrics where run_name = ?", [run_info.label])
    logged = [(step, json.loads(metrics)) for step, metrics in rows]
    return collect_unique((name, step, value) for step, metrics in logged for name, value in metrics.items())


def wandb(run_info: RunInfo, folder: Path) -> StoredMetrics:
    """The server reads the files of a run, oldest first, and drops a step that is not newer than the last one."""
    from wandb import teardown

    teardown()  # waits until wandb's service process has written everything
    entries: list[tuple[str, int, float]] = []
    # wandb appends "-1" to the directory of a run that starts within the same second as another start of this run.
    for path in sorted(folder.rglob(f"offline-run-*-{run_info.identity}*/*.wandb")):
        last_step = max((step for _, step, _ in entries), default=-1)
        entries += [(name, step, value) for name, step, value in _wandb_history(path) if step > last_step]
    return collect_unique(iter(entries))


def _wandb_history(path: Path) -> Iterator[tuple[str, int, float]]:
    from wandb.proto.wandb_internal_pb2 import Record

    for data in _leveldb_records(path.read_bytes()):
        record = Record.FromString(data)
        for item in record.history.item:
            yield ".".join(item.nested_key) or item.key, record.history.step.num, json.loads(item.value_json)


def _leveldb_records(data: bytes) -> Iterator[bytes]:
    """Iterate over the records of a LevelDB log.

    The log consists of blocks of 32 KiB. A block contains fragments of records, each after a header with its checksum,
    length and kind (1: a full record, 4: the last fragment of a record).
    """
    position, fragments = 7, b""
    while position + 7 <= len(data):
        remaining = 32768 - position % 32768
        if remaining < 7:
            position += remaining
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        fragments += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield fragments
            fragments = b""


def swanlab(run_info: RunInfo, folder: Path) -> StoredMetrics:
    """The server reads the files of a run, oldest first, and keeps the first value of each step."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    metrics: dict[str, dict[int, float]] = defaultdict(dict)
    for path in sorted(folder.rglob(f"run-*-{run_info.identity}/*.swanlab")):
        reader: Any = DataStoreReader()
        reader.open(path)
        for data in reader:
            scalar = Record.FromString(data).scalar
            if scalar.key:
                metrics[scalar.key].setdefault(scalar.step, scalar.value.number)
    return metrics


# --- the names of the warnings of a run ---------------------------------------------------------------------------


def warnings_of_tensorboard(run_info: RunInfo, folder: Path) -> set[str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tags = EventAccumulator(str(folder / run_info.label)).Reload().Tags()["tensors"]
    return _names(tag.removesuffix("/text_summary") for tag in tags)


def warnings_of_mlflow(run_info: RunInfo, folder: Path) -> set[str]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"file:{folder}")
    experiment = client.get_experiment_by_name("purerl").experiment_id
    (run,) = client.search_runs([experiment], f"tags.`purerl.run` = '{run_info.identity}'")
    return {tag.removeprefix("purerl.warning.") for tag in run.data.tags if tag.startswith("purerl.warning.")}


def warnings_of_trackio(run_info: RunInfo, folder: Path) -> set[str]:
    import sqlite3

    database = sqlite3.connect(next(folder.rglob("purerl.db")))
    rows = database.execute("select metrics from metrics where run_name = ?", [run_info.label])
    return _names(name for (metrics,) in rows for name in json.loads(metrics))


def warnings_of_wandb(run_info: RunInfo, folder: Path) -> set[str]:
    from wandb import teardown
    from wandb.proto.wandb_internal_pb2 import Record

    teardown()
    paths = folder.rglob(f"offline-run-*-{run_info.identity}*/*.wandb")
    alerts = [Record.FromString(data).alert for path in paths for data in _leveldb_records(path.read_bytes())]
    return {alert.title.split()[0] for alert in alerts if alert.title}


def warnings_of_swanlab(run_info: RunInfo, folder: Path) -> set[str]:
    contents = [path.read_bytes() for path in folder.rglob(f"run-*-{run_info.identity}/*.swanlab")]
    return {name.decode() for content in contents for name in re.findall(rb"warnings/(\w+)", content)}


def _names(tags: Iterable[str]) -> set[str]:
    return {tag.removeprefix("warnings/") for tag in tags if tag.startswith("warnings/")}
