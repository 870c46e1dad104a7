"""Opening what a configuration names: files, data, tokenizer, engines, in the order of what is cheap to get wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from purerl.algos.algebra import Algorithm, roles
from purerl.backends.tokenizer import check_same_ids, load_tokenizer
from purerl.batch import FIELDS
from purerl.config.check import algorithm_of, reads_of, updates_of
from purerl.config.schema import RunConfig
from purerl.data.columns import ExampleType
from purerl.data.examples import read_examples
from purerl.files import folder_at_once
from purerl.loop.data import files_of, open_data, read_data
from purerl.loop.lengths import check_lengths
from purerl.loop.run import Run, seed_of
from purerl.loop.sources import demonstrations, preferences, rollouts
from purerl.plugins import find, kind_of, locate
from purerl.protocols import Generator, Trainer
from purerl.rewards.adapters import RewardFunction
from purerl.rewards.runner import RewardRunner
from purerl.store.directory import RunDirectory

__all__ = ["check_inputs", "located", "open_run", "open_trainer", "prepare", "source_of"]

_RUN = "{run}"  # in a path: the run's directory


def prepare(config: RunConfig, place: RunDirectory) -> None:
    """Call what `config.prepare` names to fill ``{run}/prepared``, once."""
    path = place.path / "prepared"
    if config.prepare_data is None or path.exists():
        return
    write = locate(config.prepare_data)
    with folder_at_once(path) as folder:
        write(folder, config.seed)


def located(config: RunConfig, root: Path) -> RunConfig:
    """`config` with ``{run}`` in its paths replaced by the run's directory."""

    def at(path: str) -> str:
        return path.replace(_RUN, str(root))

    return evolve(
        config,
        model=evolve(config.model, path=at(config.model.path)),
        teacher=config.teacher and evolve(config.teacher, path=at(config.teacher.path)),
        data=evolve(config.data, files=tuple(map(at, config.data.files))),
        evaluate=config.evaluate and evolve(config.evaluate, data={k: at(v) for k, v in config.evaluate.data.items()}),
    )


def check_inputs(config: RunConfig) -> None:
    """Look at the data and tokenizers of `config`, and of its start, that no phase of the run is to make itself.

    Raises: DataError and ConfigError, before there is anything to be lost.
    """
    for phase in filter(None, (config.initial_run, config)):
        purpose = source_of(phase, algorithm_of(phase))[1]
        for file in phase.data.files:
            if _RUN not in file:
                read_examples([file], purpose)
        problems = phase.evaluate.data if phase.evaluate else {}
        for file in problems.values():
            if _RUN not in file:
                read_examples([file], "prompts")
        if _RUN not in phase.model.path:
            load_tokenizer(phase.model)


def open_run(config: RunConfig, place: RunDirectory, given: Mapping[str, RewardFunction]) -> Run:
    """Open everything that `config` names; `given` are reward functions that are objects, by name."""
    algorithm = algorithm_of(config)
    source, purpose = source_of(config, algorithm)
    examples, problems = read_data(config, purpose)
    place.check_data(files := files_of(config))
    judge = _judge(config, given)
    for judged in (*([examples] if config.rollout else []), *problems.values()):
        for table in judged.tables:
            judge.check_columns(table.column_names)
    tokenizer = load_tokenizer(config.model)
    if config.teacher is not None and config.teacher != config.model:
        check_same_ids(tokenizer, config.teacher)
    data = open_data(config, examples, problems, tokenizer)
    run = Run(
        config=config,
        place=place,
        algorithm=algorithm,
        reads=frozenset(reads_of(algorithm)),
        source=source,
        data=evolve(data, files=files),
        judge=judge,
        trainers={role: open_trainer(config, role) for role in roles(algorithm, FIELDS)},
        generator=_generator(config),
    )
    check_lengths(run)
    return run


def source_of(config: RunConfig, algorithm: Algorithm) -> tuple[Any, ExampleType]:
    """Where rows come from, and what for."""
    if config.rollout is not None:
        return rollouts, "prompts"
    if any("chosen" in objective.reads for objective in algorithm.objectives):
        return preferences, "preferences"
    return demonstrations, "demonstrations"


def _judge(config: RunConfig, given: Mapping[str, RewardFunction]) -> RewardRunner:
    weights = {reward.function: reward.weight for reward in config.rewards}
    settings = config.reward_workers
    return RewardRunner(
        weights, config.gates, functions=given, timeout=settings.timeout, num_workers=settings.num_workers
    )


def open_trainer(config: RunConfig, role: str) -> Trainer:
    """The engine of the model in `role`, at its first weights."""
    engine = config.critic or config.trainer if role == "critic" else config.trainer
    model = config.teacher or config.model if role == "teacher" else config.model
    build = find("trainer", kind_of(engine)).build
    return build(engine, model=model, role=role, updates=updates_of(config), seed=seed_of(config.seed, role) % 2**31)


def _generator(config: RunConfig) -> Generator | None:
    if config.generator is None:
        return None
    build = find("generator", kind_of(config.generator)).build
    return build(config.generator, model=config.model, seed=seed_of(config.seed, "generator") % 2**31)
