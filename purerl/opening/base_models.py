"""The models that a run starts from: each is loaded from one commit of the hub, and a changed directory is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from purerl.config.paths import map_models, resolve_paths
from purerl.config.requirements import requirements_of
from purerl.config.schema import RunConfig
from purerl.errors import RunDirectoryError
from purerl.models.fingerprint import changed_files, fingerprint
from purerl.settings import Model
from purerl.store.directory import RunDirectory
from purerl.store.objects import read_facts
from purerl.system.phases import phase

__all__ = ["identify_models", "pin_commits", "pin_recorded"]


@phase("reading the files of the models")
def identify_models(models: Mapping[str, Model], directory: RunDirectory) -> dict[str, dict[str, Any]]:
    """The fingerprint of each of `models`, by role.

    If the run has started, a model on the hub keeps its recorded commit.

    Raises: RunDirectoryError if the files of a model have changed since the run started, ConfigError if there is no
    such model.
    """
    recorded = directory.models
    commits = {name: facts["commit"] for name, facts in recorded.items() if "commit" in facts}
    models = {name: evolve(model, revision=commits.get(name, model.revision)) for name, model in models.items()}
    by_model = {model: fingerprint(model) for model in dict.fromkeys(models.values())}
    for name, model in models.items():
        if name in recorded and recorded[name] != by_model[model]:
            what = f"the model of the {name}, {model.path!r}, has changed since the run in {str(directory.path)!r}"
            got = "other files: " + ", ".join(changed_files(recorded[name], by_model[model])[:5])
            do = "restore it, name another directory, or discard the run with --fresh"
            raise RunDirectoryError(f"{what} started", got=got, need="the same model, to resume the run", do=do)
    return {name: by_model[model] for name, model in models.items()}


def pin_commits(
    config: RunConfig, models: Mapping[str, Model], fingerprints: Mapping[str, Mapping[str, Any]]
) -> RunConfig:
    """`config` with the commit in `fingerprints` as the revision of each of `models` that is on the hub."""
    commits = {model: fingerprints[name].get("commit") for name, model in models.items()}
    return map_models(config, lambda model: evolve(model, revision=commits.get(model) or model.revision))


def pin_recorded(config: RunConfig, run: Path) -> RunConfig:
    """`config` with the paths of the run in the directory `run`, and its recorded commits. Nothing is compared."""
    config = resolve_paths(config, run)
    models, recorded = requirements_of(config).all_models(), read_facts(run).get("models", {})
    return pin_commits(config, models, {name: recorded.get(name, {}) for name in models})
