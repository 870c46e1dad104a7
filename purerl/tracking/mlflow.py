"""MLflow.

A run that goes on is found by a tag, its identity, and goes on in the same MLflow run. Steps that MLflow has are not
told again. Completions are JSON files under ``completions/`` of the run's artifacts, a table each.
"""

# The checks run without the library too; its types are then unknown.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from attrs import define, field, frozen

from purerl.errors import ConfigError
from purerl.protocols import RunInfo, Tracker
from purerl.tracking.library import needs

__all__ = ["Config", "build", "check"]

_TAG = "purerl.run"
_AT_ONCE = 100  # settings that MLflow takes in one call
_LONGEST = 500  # characters of a setting's value that every MLflow server takes


@frozen(kw_only=True)
class Config:
    """Where MLflow keeps the run. Whatever is not set here is as MLflow's environment variables say."""

    experiment: str = field(default="purerl", metadata={"help": "the experiment that the run belongs to"})
    name: str | None = field(default=None, metadata={"help": "how the run is shown; its name if not given"})
    uri: str | None = field(
        default=None,
        metadata={"help": "a server, or with all of mlflow a database; MLFLOW_TRACKING_URI if not given"},
    )


def check(config: Config) -> None:
    """Refuse a machine without mlflow, and one whose mlflow has no database where no server is named."""
    needs("mlflow", extra="mlflow")
    uri = config.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not (_is_whole() or _is_served(uri or "") or os.environ.get("MLFLOW_ALLOW_FILE_STORE")):
        got = "nothing, and no MLFLOW_TRACKING_URI" if uri is None else repr(uri)
        need = "the address of a server, such as http://localhost:5000; mlflow-skinny alone keeps no runs"
        raise ConfigError("uri", got=got, need=need, do="name a server, or pip install mlflow for a database")


def _is_whole() -> bool:
    """Whether all of mlflow is installed, and not only mlflow-skinny, which is without databases."""
    try:
        return bool(version("mlflow"))
    except PackageNotFoundError:
        return False


def _is_served(uri: str) -> bool:
    return uri.startswith(("http://", "https://", "databricks"))


def build(config: Config, *, subject: RunInfo) -> Tracker:
    """Begin the MLflow run, or go on with it."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=config.uri)
    known = client.get_experiment_by_name(config.experiment)
    experiment = known.experiment_id if known else client.create_experiment(config.experiment)
    runs = client.search_runs([experiment], f"tags.`{_TAG}` = '{subject.identity}'", max_results=1)
    if runs:
        run = client.get_run(runs[0].info.run_id)
        client.update_run(run.info.run_id, status="RUNNING")
        return _Run(client, run.info.run_id, int(run.data.metrics.get("step", -1)))
    begun = client.create_run(experiment, run_name=config.name or subject.name, tags={_TAG: subject.identity})
    _tell_settings(client, begun.info.run_id, subject.settings)
    return _Run(client, begun.info.run_id, -1)


def _tell_settings(client: Any, run: str, settings: Mapping[str, Any]) -> None:
    from mlflow.entities import Param

    params = [Param(_key(name), str(value)[:_LONGEST]) for name, value in settings.items()]
    for begin in range(0, len(params), _AT_ONCE):
        client.log_batch(run, params=params[begin : begin + _AT_ONCE])


def _key(name: str) -> str:
    """`name` with nothing in it but what MLflow allows."""
    return re.sub(r"[^\w\-./: ]", "_", name)


@define
class _Run:
    _client: Any
    _run: str
    _last: int

    def log(self, record: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        step, now = record["step"], int(time.time() * 1000)
        if step > self._last:
            self._client.log_batch(
                self._run, metrics=[Metric(_key(name), float(value), now, step) for name, value in record.items()]
            )

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        table = {"columns": list(rows[0]), "data": [list(row.values()) for row in rows]}
        self._client.log_dict(self._run, table, f"completions/{step:06d}.json")

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self._run, status="FAILED" if failed else "FINISHED")
