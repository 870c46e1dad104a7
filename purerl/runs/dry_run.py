"""A dry run: everything that a run refuses before its first step, without loading a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from purerl.config.check import INITIAL_RUN, check, check_metrics, check_ranks, named_metrics
from purerl.config.metrics import metric_notes
from purerl.config.paths import is_created_by_run, resolve_paths
from purerl.config.requirements import Requirements, requirements_of
from purerl.config.schema import RunConfig
from purerl.config.stored import changes_from, document
from purerl.config.structure import digest
from purerl.config.untrusted import imported_plugins, own_functions, without_code
from purerl.config.user_code import code_digests
from purerl.data.open import file_digests
from purerl.errors import RunDirectoryError
from purerl.models.tokenizer import load_tokenizer
from purerl.opening.base_models import identify_models
from purerl.opening.engines import preview_engines
from purerl.opening.fit import check_devices, check_fit, lengths_of
from purerl.opening.inputs import check_files, created_files, data_files
from purerl.opening.model_notes import attention_notes, model_notes
from purerl.opening.start_checkpoint import check_start_checkpoint, parse_start_checkpoint
from purerl.opening.task import open_task, with_interaction
from purerl.placement.world import find_world
from purerl.planning.check import check_memory
from purerl.planning.plan import describe
from purerl.rewards.adapters import RewardFunction
from purerl.rollouts.runtime import Runtime
from purerl.settings import in_section
from purerl.store.checkpoint import saved_steps
from purerl.store.code import check_code
from purerl.store.directory import check_directory, unlocked

__all__ = ["dry_run"]


def dry_run(
    config: RunConfig,
    directory: Path | None = None,
    *,
    fresh: bool = False,
    resume_from: str | None = None,
    runs_code: bool = True,
    accept_changed_code: bool = False,
) -> list[str]:
    """Refuse what `train` would refuse of `config`; return notes, a line for each kind.

    They are those on the data, the planned memory, unless the models are small, and what could not be checked.

    Data, tokenizers and configurations of models are read. A model is not loaded, and nothing is written, except what
    `purerl.models.cache` stores for the next command. An episode of an environment is started, if code may be run.

    directory    the run directory. If it is not given, and the run cannot use ``runs/<name>``, this is in the result
    resume_from  the checkpoint of another run that the run starts from
    runs_code    whether functions that `config` names, and code that comes with models, may be run. Otherwise only the
                 source code of functions is read
    accept_changed_code
                 whether code of the user may have been edited since the newest checkpoint of the run in the directory

    Raises: the InputErrors and RunDirectoryErrors of `train`, except those that need the weights of a model, or files
    that the run itself creates.
    """
    checked, functions = (config, {}) if runs_code else without_code(config)
    needs = check(checked, functions)
    check_metrics(checked, needs, may_log=False)
    check_devices(checked)
    check_ranks(checked.placement, needs, _num_ranks(checked))
    path = directory or Path("runs") / config.name
    if resume_from is not None:
        check_start_checkpoint(parse_start_checkpoint(resume_from), path, config.max_steps, fresh=fresh)
    changes = partial(changes_from, config)
    taken = _refusal(partial(check_directory, path, document(config), digest(config), changes=changes, fresh=fresh))
    if taken is not None and directory is not None:
        raise taken
    if taken is None and not fresh and _is_unfinished(path, changes):
        _check_stored(resolve_paths(checked, path), path)
        code, saved = code_digests(config, {}), saved_steps(unlocked(path).checkpoints)
        check_code(path, code, saved, is_accepted=accept_changed_code)
    missing, noted = [], {"data": [], "attention": [], "models": []}
    for key, phase in ((INITIAL_RUN, checked.initial_run), ("", checked)):
        if phase is not None:
            with in_section(key, RunConfig):
                missing += _check_phase(phase, needs[key], functions, noted, runs_code=runs_code)
    planned = None if missing else check_memory(checked, needs[""], checked.placement.num_trainers)
    notes = {
        **noted,
        "metrics": metric_notes(named_metrics(checked)),
        "planned memory": [] if planned is None else [describe(planned)],
        "another --directory is needed": [str(taken).partition("\n")[0]] if taken else [],
        "contains a finished run": [str(path)] if not fresh and (path / "summary.json").exists() else [],
        "not checked, because the run creates it": [name for name in missing if is_created_by_run(name)],
        "not checked without running code": [] if runs_code else own_functions(config),
        "not checked without running code of the model": [name for name in missing if not is_created_by_run(name)],
        "imported to read the settings": [] if runs_code else imported_plugins(config),
    }
    return [f"{label}: {', '.join(dict.fromkeys(names))}" for label, names in notes.items() if names]


def _num_ranks(config: RunConfig) -> int:
    """The ranks that a run would have that is started as this command was."""
    world = find_world(os.environ)
    return world.size if world else config.placement.ranks or 1


def _check_stored(resolved: RunConfig, path: Path) -> None:
    """Refuse models and data other than those of the unfinished run in the directory `path`."""
    stored = unlocked(path)
    identify_models(requirements_of(resolved).all_models(), stored)
    stored.check_data(file_digests(data_files(resolved, path)))


def _refusal(check_place: Callable[[], object]) -> RunDirectoryError | None:
    """The error of `check_place`, which checks the directory of a run; None if it can be used."""
    try:
        check_place()
    except RunDirectoryError as error:
        return error
    return None


def _is_unfinished(path: Path, changes: Callable[[Path], Sequence[object]]) -> bool:
    """Whether a run in the directory `path` has opened its data, and would continue with the `changes`."""
    is_finished = (path / "summary.json").exists() and not changes(path / "config.toml")
    return (path / "data.json").exists() and not is_finished


def _check_phase(
    config: RunConfig,
    needs: Requirements,
    functions: Mapping[str, RewardFunction],
    notes: dict[str, list[str]],
    *,
    runs_code: bool,
) -> list[str]:
    """Check the files and models of `config`, and return those that cannot be checked. Adds to the `notes`."""
    missing, models = created_files(config, needs), [*dict.fromkeys(needs.all_models().values())]
    unreadable = [m for m in models if is_created_by_run(m.path) or (m.trust_remote_code and not runs_code)]
    missing += [model.path for model in unreadable]
    if missing:
        check_files(config, needs)  # otherwise `open_task` reads them
    task = None if missing else open_task(config, needs, functions=functions)
    for model in models if missing else ():
        if model not in unreadable:
            load_tokenizer(model)
    generator = config.generator and (config.generator, config.model)
    previews = preview_engines(needs, generator, unreadable=unreadable)
    notes["attention"] += attention_notes(previews.by_role)
    notes["models"] += model_notes(needs.models, previews.trainers)
    if task is not None:
        notes["data"] += task.notes
        if runs_code:
            with closing(Runtime()) as runtime:
                with_interaction(task, config.environment, None, runtime, seed=config.seed)
        max_steps = needs.schedule.num_steps(task.training.examples.num_rows)
        needs.updates(max_steps)
        check_fit(task, previews, **lengths_of(config, max_steps))
    return missing
