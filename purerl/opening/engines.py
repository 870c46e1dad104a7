"""Opening the engines of a task: trainers, models whose scores are rewards, and the generator."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from purerl.backends.plugin import engine_plugin, generator_plugin, trainer_plugin
from purerl.config.generators import is_narrow
from purerl.config.requirements import ModelRole, Requirements
from purerl.config.schema import Role
from purerl.errors import ConfigError
from purerl.models.cache import stored_result
from purerl.models.tokenizer import ordinary_tokens
from purerl.opening.images import use_images
from purerl.opening.model_notes import limit_vocabularies
from purerl.opening.scorers import scorer_of
from purerl.opening.weight_check import check_updates
from purerl.placement.engines import LOCAL_PROCESSES, EngineProcesses, build_engine
from purerl.placement.join import SINGLE_PROCESS, RankContext
from purerl.plugins import kind_of
from purerl.protocols import Capabilities, Generator, SupportsBase, Trainer
from purerl.ranks import Ranks
from purerl.rewards.settings import Gate, Reward
from purerl.rollouts.opened import EngineCapabilities, Engines, Task
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.scoring.models import ModelRewards
from purerl.rollouts.scoring.rows import ScoringModel
from purerl.seeds import derive_seed
from purerl.settings import Model, names_setting, with_key
from purerl.system.garbage import without_collections
from purerl.system.phases import phase

__all__ = [
    "check_role_model",
    "check_running",
    "load_policy",
    "open_engines",
    "open_generator",
    "open_trainer",
    "preview_engine",
    "preview_engines",
]

_NO_ROLES: Mapping[str, Role] = MappingProxyType({})
_NO_UPDATES: Mapping[str, int | None] = MappingProxyType({})


@without_collections()
def open_engines(
    models: Mapping[str, ModelRole],
    task: Task,
    runtime: Runtime,
    stack: ExitStack,
    *,
    generator: tuple[Any, Model] | None,
    shares_weights: bool = False,
    judges: Mapping[str, Role] = _NO_ROLES,
    rewards: Sequence[Reward] = (),
    gates: Sequence[Gate] = (),
    updates: Mapping[str, int | None] = _NO_UPDATES,
    seed: int,
    temperature: float = 1.0,
    background: bool = False,
    context: RankContext = SINGLE_PROCESS,
) -> Engines:
    """Load what is named: trainers, then models whose scores are rewards, then the generator. Collective.

    models       with a trainer, by role: those of an algorithm, and classifiers whose scores are rewards
    runtime      gets the generator
    stack        closes each engine that is open, also if a later one cannot be opened
    generator    the Config of an engine, and the model that it samples; a policy among `models` is compared with it,
                 see `purerl.opening.weight_check`
    shares_weights
                 the generator samples with the weights of the policy among `models`, and loads none, unless they are in
                 actors, as those of an initial run may be
    judges       by role, "rewards.NAME", each with the Config of a generator
    rewards      all rewards and `gates` of the run: functions, and models
    updates      number of optimizer steps of each model; that of others is 0
    temperature  of sampling
    background   whether a generator that works in this process has a thread of its own

    Raises: ConfigError for a model that does not fit its engine or its role; EngineError.
    """
    trainers = _open_trainers(models, updates, seed=seed, processes=context.processes, stack=stack)
    roles = {name: role.settings for name, role in models.items()} | {**judges}
    scorers = _open_scorers(roles, trainers, task, seed=seed, context=context, stack=stack)
    sampler, shares_weights = None, shares_weights and context.processes is LOCAL_PROCESSES
    if generator is not None:
        policy = trainers["policy"] if shares_weights else None
        sampler = open_generator(*generator, seed, context.processes, policy=policy)
        stack.callback(sampler.close)
        stack.callback(runtime.close)  # nothing is in flight when the generator closes
    use_images(task.chat, {**{f"trainer of the {name}": each for name, each in trainers.items()}, "generator": sampler})
    level = None
    if sampler is not None and generator is not None:
        if "policy" in trainers:
            trainer = models["policy"].settings.trainer
            narrow = is_narrow(generator[1], trainer, generator[0])
            # Casts to 16 bits have to follow the weights, and a new adapter that is ignored changes nothing.
            is_shared = shares_weights and not narrow and getattr(trainer, "lora", None) is None
            options = {"seed": seed, "temperature": temperature, "is_narrow": narrow, "is_shared": is_shared}
            with phase("comparing the generator with the trainer"):
                level = _compare(task, trainers["policy"], sampler, ranks=context.ranks, **options)
        runtime.attach(sampler, background=background)
    return Engines(trainers, sampler, ModelRewards(scorers, rewards, gates, task.chat.prompt_format), runtime, level)


def _open_trainers(
    models: Mapping[str, ModelRole],
    updates: Mapping[str, int | None],
    *,
    seed: int,
    processes: EngineProcesses,
    stack: ExitStack,
) -> dict[str, Trainer]:
    """The engine of each role. A reference that is the policy at its start is the policy without its adapter."""
    trainers = dict[str, Trainer]()
    base: Trainer | None = None
    for name in sorted(models, key=lambda name: name != "policy"):
        role = models[name]
        if base is not None and _is_base(role, models["policy"], base.capabilities):
            trainers[name] = base
        else:
            trainers[name] = open_trainer(name, role, updates.get(name) or 0, seed=seed, processes=processes)
        stack.callback(trainers[name].close)
        if name == "policy" and isinstance(policy := trainers[name], SupportsBase):
            base = policy.base()
    limit_vocabularies(models, trainers)
    return {name: trainers[name] for name in models}


def _open_scorers(
    roles: Mapping[str, Role],
    trainers: Mapping[str, Trainer],
    task: Task,
    *,
    seed: int,
    context: RankContext,
    stack: ExitStack,
) -> dict[str, ScoringModel]:
    """The models of `task.readers` that are among `roles`: classifiers, whose trainers are open, and judges."""
    scorers = dict[str, ScoringModel]()
    for name in task.readers:
        key = f"rewards.{name}"
        if (role := roles.get(key)) is not None:
            engine: Trainer | Generator | None = trainers.get(key)
            if engine is None:
                engine = open_generator(role.generator, role.model, seed, context.processes, key)
                stack.callback(engine.close)
            scorers[name] = scorer_of(name, role, engine, task, seed=seed, ranks=context.ranks)
    return scorers


def open_trainer(
    name: str, role: ModelRole, updates: int, *, seed: int, processes: EngineProcesses = LOCAL_PROCESSES
) -> Trainer:
    """The engine of the model `name`, with its initial weights, which is in `processes`. `seed` is that of the run."""
    settings, seed = role.settings, derive_seed(seed, name) % 2**31
    options = {"model": settings.model, "role": name, "outputs": role.outputs, "updates": updates, "seed": seed}
    with _with_keys(name, role, of_model=Model), phase(f"loading the model of the {name}, {settings.model.path}"):
        trainer = processes.trainer(name, partial(build_engine, "trainer", settings.trainer, **options))
    missing = sorted({*role.outputs} - trainer.capabilities.outputs)
    if missing:
        trainer.close()
        need = f"an engine that computes {', '.join(missing)}: the algorithm needs it of the {name}"
        raise ConfigError(f"trainer of the {name}", got=", ".join(sorted(trainer.capabilities.outputs)), need=need)
    return trainer


def check_role_model(name: str, role: ModelRole) -> None:
    """Refuse a model that does not have what the run needs of the `role` called `name`, before any model is loaded.

    Raises: ConfigError. Its key is that of the model, or of the setting of the trainer that the model does not fit.
    """
    model, trainer = role.settings.model, role.settings.trainer
    arguments = {"outputs": role.outputs, "is_trained": role.is_trained}
    key = ("check_model", *arguments.values())

    def is_accepted() -> bool:
        trainer_plugin(trainer).check_model(trainer, model=model, **arguments)
        return True

    with _with_keys(name, role):
        stored_result(bool, is_accepted, model=model, settings=trainer, arguments=key)


@contextmanager
def _with_keys(name: str, role: ModelRole, *, of_model: type | None = None) -> Iterator[None]:
    """Add the key of the trainer to a ConfigError that concerns one of its settings, and that of the model to others.

    With `of_model`, others are those that concern a setting of this class.
    """
    trainer = role.settings.trainer
    try:
        yield
    except ConfigError as error:
        if names_setting(error, type(trainer)):
            raise with_key(role.trainer_key, error, type(trainer)) from error
        if of_model is not None and not names_setting(error, of_model):
            raise
        raise with_key("model" if name == "policy" else f"roles.{name}.model", error, Model) from error


def _is_base(role: ModelRole, policy: ModelRole, capabilities: Capabilities) -> bool:
    """Whether `role` is the model that the policy was at its start, with the same settings."""
    return not role.is_trained and role.settings == policy.settings and {*role.outputs} <= capabilities.outputs


def open_generator(
    settings: Any,
    model: Model,
    seed: int,
    processes: EngineProcesses = LOCAL_PROCESSES,
    name: str = "generator",
    *,
    policy: Trainer | None = None,
) -> Generator:
    """The engine that samples completions of `model`, which is in `processes`.

    `seed` is that of the run, and `name` the engine's. With `policy`, a trainer in this process, it samples with the
    weights of this trainer.
    """
    seed = derive_seed(seed, name) % 2**31
    if policy is not None:
        build: Any = generator_plugin(settings).build_shared
        return build(settings, trainer=policy, model=model, seed=seed)
    with phase(f"loading the model of the {name}, {model.path}, into {kind_of(settings)}"):
        return processes.generator(name, partial(build_engine, "generator", settings, model=model, seed=seed))


def check_running(generator: tuple[Any, Model] | None, judges: Mapping[str, Role]) -> None:
    """Raise EngineError if a generator, that of the policy or of one of `judges`, cannot use servers that run already.

    It is called before models are loaded.
    """
    engines = [*([generator] if generator else []), *((role.generator, role.model) for role in judges.values())]
    for settings, model in engines:
        generator_plugin(settings).check_running(settings, model=model)


def _compare(
    task: Task, policy: Trainer, generator: Generator, *, seed: int, ranks: Ranks, **options: Any
) -> float | None:
    """The mismatch of `generator` and `policy` at the start, in nats. Raises: EngineError as `check_updates`."""
    size = policy.capabilities.vocab_size
    tokens = [token for token in ordinary_tokens(task.chat.tokenizer) if size is None or token < size]
    return check_updates(policy, generator, tokens, ranks=ranks, seed=derive_seed(seed, "weight check"), **options)


def preview_engines(
    needs: Requirements, generator: tuple[Any, Model] | None, *, unreadable: Collection[Model] = ()
) -> EngineCapabilities:
    """The capabilities of engines that can tell them before they load their models, but for models in `unreadable`."""
    trainers = {name: ("trainer", role.settings.trainer, role.settings.model) for name, role in needs.models.items()}
    judges = {name: ("generator", role.generator, role.model) for name, role in needs.judges.items()}
    found = {
        key: {name: each for name, engine in engines.items() if (each := _preview(engine, unreadable)) is not None}
        for key, engines in (("trainers", trainers), ("judges", judges))
    }
    return EngineCapabilities(generator=generator and _preview(("generator", *generator), unreadable), **found)


def _preview(engine: tuple[str, Any, Model], unreadable: Collection[Model]) -> Capabilities | None:
    return None if engine[-1] in unreadable else preview_engine(*engine)


def preview_engine(group: str, settings: Any, model: Model) -> Capabilities | None:
    """The capabilities of an engine of `group` with `model`, which is not loaded; None if the engine cannot tell."""
    preview = engine_plugin(group, kind_of(settings)).preview
    if preview is None:
        return None
    compute = partial(preview, settings, model=model)
    return stored_result(Capabilities, compute, model=model, settings=settings, arguments=(group, "preview"))


def load_policy(needs: Requirements, checkpoint: Path, num_examples: int, *, seed: int) -> Trainer:
    """The policy of `checkpoint`, of a run on `num_examples` training rows with this `seed`."""
    updates = needs.updates(needs.schedule.num_steps(num_examples))["policy"]
    trainer = open_trainer("policy", needs.models["policy"], updates or 0, seed=seed)
    trainer.load(checkpoint / "policy")
    return trainer
