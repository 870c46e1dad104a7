"""A dry run: everything that a run refuses before its first step, without loading a model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

from purerl.config.check import algorithm_of, check, updates_of
from purerl.config.paths import is_created_by_run
from purerl.config.reward_roles import is_reward, judge_roles
from purerl.config.roles import model_roles, models_by_role, models_of
from purerl.config.schema import RunConfig
from purerl.config.structure import digest, dumps
from purerl.config.untrusted import imported_plugins, own_functions, without_code
from purerl.data.open import RunData, file_digests
from purerl.errors import RunDirectoryError
from purerl.loop.devices import check_devices
from purerl.loop.model_rewards import reward_chats
from purerl.loop.paths import resolve_paths
from purerl.loop.run import check_files, max_steps_of, reward_runner
from purerl.loop.run_data import first_example, open_run_data
from purerl.loop.train import changes_from
from purerl.models.tokenizer import load_tokenizer
from purerl.opening.base_models import identify_models
from purerl.opening.fit import check_row_lengths
from purerl.opening.images import check_images
from purerl.opening.model_notes import attention_notes, model_notes
from purerl.opening.recorded import recorded_files
from purerl.opening.start_checkpoint import check_origin, to_origin
from purerl.planning.check import check_memory
from purerl.planning.plan import describe
from purerl.plugins import find, kind_of
from purerl.protocols import Capabilities
from purerl.rewards.adapters import RewardFunction
from purerl.rollouts.interaction import open_interaction
from purerl.rollouts.runtime import Runtime
from purerl.settings import Model, in_section
from purerl.store.directory import check_directory, unlocked

__all__ = ["dry_run"]


def dry_run(
    config: RunConfig,
    directory: Path | None = None,
    *,
    fresh: bool = False,
    resume_from: str | None = None,
    runs_code: bool = True,
) -> list[str]:
    """Refuse what `train` would refuse of `config`; return notes, a line for each kind.

    They are those on the data, the planned memory, unless the models are small, and what could not be checked.

    Data, tokenizers and configurations of models are read. A model is not loaded, and nothing is written. An episode of
    an environment is started, if code may be run.

    directory    the run directory. If it is not given, and the run cannot use ``runs/<name>``, this is in the result
    resume_from  the checkpoint of another run that the run starts from
    runs_code    whether functions that `config` names, and code that comes with models, may be run. Otherwise only the
                 source code of functions is read

    Raises: the InputErrors and RunDirectoryErrors of `train`, except those that need the weights of a model, or files
    that the run itself creates.
    """
    checked, functions = (config, {}) if runs_code else without_code(config)
    check(checked, functions)
    check_devices(checked)
    path = directory or Path("runs") / config.name
    if resume_from is not None:
        check_origin(to_origin(resume_from), path, config, fresh=fresh)
    taken = _refusal(config, path, fresh=fresh)
    if taken is not None and directory is not None:
        raise taken
    if taken is None and not fresh and _is_unfinished(config, path):
        _check_inputs_of_run(resolve_paths(checked, path), path)
    missing, data_notes, models = [], [], {"attention": [], "models": []}
    for phase in filter(None, (checked.initial_run, checked)):
        with in_section("initial_run" if phase is checked.initial_run else "", RunConfig):
            missing += _check_phase(phase, functions, data_notes, models, runs_code=runs_code)
    planned = None if missing else check_memory(checked, checked.placement.num_trainers)
    notes = {
        "data": data_notes,
        **models,
        "planned memory": [] if planned is None else [describe(planned)],
        "another --directory is needed": [str(taken).partition("\n")[0]] if taken else [],
        "contains a finished run": [str(path)] if not fresh and (path / "summary.json").exists() else [],
        "not checked, because the run creates it": [name for name in missing if is_created_by_run(name)],
        "not checked without running code": [] if runs_code else own_functions(config),
        "not checked without running code of the model": [name for name in missing if not is_created_by_run(name)],
        "imported to read the settings": [] if runs_code else imported_plugins(config),
    }
    return [f"{label}: {', '.join(dict.fromkeys(names))}" for label, names in notes.items() if names]


def _refusal(config: RunConfig, directory: Path, *, fresh: bool) -> RunDirectoryError | None:
    """The error of a run in `directory`; None if it can be used."""
    try:
        check_directory(directory, dumps(config), digest(config), changes=partial(changes_from, config), fresh=fresh)
    except RunDirectoryError as error:
        return error
    return None


def _is_unfinished(config: RunConfig, path: Path) -> bool:
    """Whether a run in the directory `path` has opened its data, and would continue with `config`."""
    is_finished = (path / "summary.json").exists() and not changes_from(config, path / "config.toml")
    return (path / "data.json").exists() and not is_finished


def _check_inputs_of_run(config: RunConfig, path: Path) -> None:
    """Refuse models and data that have changed since the run in the directory `path` started."""
    directory, problems = unlocked(path), config.evaluate.data.values() if config.evaluate else ()
    identify_models(models_by_role(config, algorithm_of(config)), directory)
    held_out = config.validation.data if config.validation else ()
    recorded = recorded_files(config, path)
    directory.check_data(file_digests([*config.data.files, *problems, *held_out, *recorded]))


def _check_phase(
    config: RunConfig,
    functions: Mapping[str, RewardFunction],
    data_notes: list[str],
    model_lines: dict[str, list[str]],
    *,
    runs_code: bool,
) -> list[str]:
    """Check the files and models of `config`, and return those that cannot be checked. Adds to the notes."""
    algorithm, missing = algorithm_of(config), check_files(config)
    models = models_of(config, algorithm)
    unreadable = [
        model for model in models if is_created_by_run(model.path) or (model.trust_remote_code and not runs_code)
    ]
    missing += [model.path for model in unreadable]
    data = None
    if not missing:
        data = open_run_data(config, algorithm, model_roles(config, algorithm), reward_runner(config, functions))
    for model in models if missing else ():
        if model not in unreadable:
            load_tokenizer(model)
    previews = _preview(config, unreadable)
    roles = model_roles(config, algorithm)
    model_lines["attention"] += attention_notes({name or "generator": each for name, each in previews.items()})
    model_lines["models"] += model_notes(roles, {name: each for name, each in previews.items() if name in roles})
    if data is not None:
        data_notes += data.notes
        reward_chats(config, data.chat)
        names = {name: f"trainer of the {name}" if name else "generator" for name in previews}
        check_images(data.chat, {names[name]: each for name, each in previews.items()})
        if runs_code:
            _start_episode(config, data)
        max_steps, generator = max_steps_of(config, data.examples.num_rows), previews.pop("", None)
        updates_of(config, algorithm, max_steps)
        trainers = [preview for name, preview in previews.items() if not is_reward(name)]
        check_row_lengths(config, data, max_steps=max_steps, trainers=trainers, generator=generator)
    return missing


def _start_episode(config: RunConfig, data: RunData) -> None:
    """Refuse an environment that cannot start. Raises RolloutError and ConfigError as `open_interaction`."""
    with closing(Runtime()) as runtime:
        open_interaction(config.environment, None, runtime, data.chat, first_example(data), seed=config.seed)


def _preview(config: RunConfig, unreadable: list[Model]) -> dict[str, Capabilities]:
    """The capabilities of the engines with their models: of the trainers by role, and of the generator as ""."""
    roles = model_roles(config, algorithm_of(config))
    engines = {name: ("trainer", role.settings.trainer, role.settings.model) for name, role in roles.items()}
    engines |= {name: ("generator", role.generator, role.model) for name, role in judge_roles(config).items()}
    if config.generator is not None:
        engines[""] = ("generator", config.generator, config.model)
    found = {}
    for name, (group, settings, model) in engines.items():
        preview = getattr(find(group, kind_of(settings)), "preview", None)
        if preview is not None and model not in unreadable:
            found[name] = preview(settings, model=model)
    return found
