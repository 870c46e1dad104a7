"""Log a run to MLflow.

The MLflow run has the identity of the run directory as a tag. A resumed run finds the MLflow run by this tag and
continues it. Steps that MLflow already has are not logged again. Completions are logged as artifacts: one JSON table
per step under ``completions/``, and one per evaluation under ``evaluation_completions/``. A warning is the tag
``purerl.warning.<name>`` of the MLflow run, with its last step.
"""

# Type checks must also pass if mlflow is not installed. Its types are then unknown.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from attrs import define, frozen

from purerl.errors import ConfigError
from purerl.monitoring.trackers.library import require_library
from purerl.monitoring.trackers.protocol import RunInfo, Tracker
from purerl.settings import setting

__all__ = ["Config", "build", "check"]

_TAG = "purerl.run"
_WARNING_TAG = "purerl.warning"
_MAX_PARAMS_PER_CALL = 100  # limit of MLflow
_MAX_PARAM_LENGTH = 500  # characters; the lowest limit among MLflow servers
_MAX_TAG_LENGTH = 5000  # characters


@frozen(kw_only=True)
class Config:
    """Settings of the MLflow run. What is not set here comes from MLflow's environment variables."""

    experiment: str = setting("MLflow experiment of the run", default="purerl")
    name: str | None = setting("display name; if not set, the name of the run", default=None)
    uri: str | None = setting(
        "URL of a server, or a database if the full mlflow package is installed; "
        "if not set, MLFLOW_TRACKING_URI applies",
        default=None,
        credential="set MLFLOW_TRACKING_URI in place of uri; or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, "
        "or MLFLOW_TRACKING_TOKEN",
    )


def check(config: Config) -> None:
    """Raise ConfigError if mlflow is not installed, or if only mlflow-skinny is and no server is configured."""
    require_library("mlflow", extra="mlflow")
    uri = config.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not (_has_full_mlflow() or _is_server(uri or "") or os.environ.get("MLFLOW_ALLOW_FILE_STORE")):
        raise ConfigError(
            "uri",
            got="None, and MLFLOW_TRACKING_URI is not set" if uri is None else repr(uri),
            need="the URL of an MLflow server, such as http://localhost:5000; mlflow-skinny cannot store runs itself",
            do="set uri to a server, or pip install mlflow to store runs in a database",
        )


def _has_full_mlflow() -> bool:
    """Whether the full mlflow package is installed, not only mlflow-skinny, which has no database support."""
    try:
        return bool(version("mlflow"))
    except PackageNotFoundError:
        return False


def _is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://", "databricks"))


def build(config: Config, *, run_info: RunInfo) -> Tracker:
    """Start the MLflow run, or continue it if the run is resumed."""
    from mlflow import MlflowClient
    from mlflow.entities import Param

    client = MlflowClient(tracking_uri=config.uri)
    existing = client.get_experiment_by_name(config.experiment)
    experiment = existing.experiment_id if existing else client.create_experiment(config.experiment)
    matches = client.search_runs([experiment], f"tags.`{_TAG}` = '{run_info.identity}'", max_results=1)
    if matches:
        run = client.get_run(matches[0].info.run_id)
        client.update_run(run.info.run_id, status="RUNNING")
        return _Run(client, run.info.run_id, int(run.data.metrics.get("step", -1)))
    run = client.create_run(experiment, run_name=config.name or run_info.name, tags={_TAG: run_info.identity})
    params = [Param(_valid_key(name), str(value)[:_MAX_PARAM_LENGTH]) for name, value in run_info.settings.items()]
    for start in range(0, len(params), _MAX_PARAMS_PER_CALL):
        client.log_batch(run.info.run_id, params=params[start : start + _MAX_PARAMS_PER_CALL])
    return _Run(client, run.info.run_id, -1)


def _valid_key(name: str) -> str:
    """Replace the characters that MLflow does not allow in a key."""
    return re.sub(r"[^\w\-./: ]", "_", name)


@define
class _Run:
    _client: Any
    _run_id: str
    _last_step: int

    def log(self, record: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        step, now = record["step"], int(time.time() * 1000)
        if step > self._last_step:
            # MLflow's file store has a file for each metric, so a key cannot be the directory of another.
            directories = {name[:k] for name in record for k, char in enumerate(name) if char == "/"}
            keys = {name: _valid_key(f"{name}/mean" if name in directories else name) for name in record}
            metrics = [Metric(keys[name], float(value), now, step) for name, value in record.items()]
            self._client.log_batch(self._run_id, metrics=metrics)

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._log_table("completions", step, rows)

    def evaluation_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._log_table("evaluation_completions", step, rows)

    def _log_table(self, name: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        table = {"columns": list(rows[0]), "data": [list(row.values()) for row in rows]}
        self._client.log_dict(self._run_id, table, f"{name}/{step:06d}.json")

    def warn(self, step: int, name: str, text: str) -> None:
        value = f"step {step}: {text}"[:_MAX_TAG_LENGTH]
        self._client.set_tag(self._run_id, f"{_WARNING_TAG}.{_valid_key(name)}", value)

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self._run_id, status="FAILED" if failed else "FINISHED")
