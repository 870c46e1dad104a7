"""Requirements of a run, computed from its configuration alone: algorithm, models, data and numbers of steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from attrs import evolve, field, frozen

from purerl.algos.algebra import Algorithm, outputs_of, reads_of, roles
from purerl.batch import FIELDS
from purerl.composition import Composition, build_algorithm, with_modifiers
from purerl.config.modifiers import key_of
from purerl.config.schema import Role, RunConfig
from purerl.data.columns import ExampleType
from purerl.data.open import NUMBER_COLUMNS
from purerl.errors import ConfigError
from purerl.plugins import find, kind_of
from purerl.rollouts.settings import with_draw_weights, with_length_penalty
from purerl.settings import Model, NoEffectError, in_section

__all__ = [
    "REWARDS",
    "TEACHERS",
    "ModelRole",
    "Passes",
    "Requirements",
    "StepSchedule",
    "is_reward",
    "requirements_of",
    "role_settings",
    "schedule_of",
]

REWARDS = "rewards"
"""The name of the table in `roles` of models whose scores are rewards."""

TEACHERS = "teachers"
"""The name of the table in `roles` of several teachers."""


class ModelRole(NamedTuple):
    """A model that a run loads.

    settings     its model and its trainer; what is not set is taken from the run
    outputs      the outputs that the algorithm needs from it
    is_trained   whether an objective trains it
    trainer_key  the key of its trainer in the configuration
    """

    settings: Role
    outputs: tuple[str, ...]
    is_trained: bool
    trainer_key: str = "trainer"


class Passes(NamedTuple):
    """The optimizer steps of a model in a step: passes over the rows, and mini-batches of each pass."""

    ppo_epochs: int
    minibatches: int

    @property
    def updates(self) -> int:
        """The number of optimizer steps."""
        return self.ppo_epochs * self.minibatches


@frozen(kw_only=True)
class StepSchedule:
    """The number of steps of a run, `max_steps` or `num_epochs` passes, and of the optimizer steps of each.

    A step has `ppo_epochs` passes over `minibatches` mini-batches of its `batch_size` examples. The models
    in `of_roles` have passes of their own.
    """

    max_steps: int | None
    num_epochs: float | None
    batch_size: int
    minibatches: int
    minibatch_size: int | None
    ppo_epochs: int
    critic_warmup: int
    of_roles: Mapping[str, Passes] = field(factory=dict)

    @property
    def updates_per_step(self) -> int:
        """The optimizer steps of the policy in each step."""
        return self.passes("policy").updates

    def passes(self, role: str) -> Passes:
        """The optimizer steps of the model in `role`, in each step in which it is trained."""
        return self.of_roles.get(role, Passes(self.ppo_epochs, self.minibatches))

    def num_steps(self, num_examples: int) -> int:
        """The number of steps: `max_steps`, or what `num_epochs` passes over the examples need."""
        return self.max_steps or math.ceil((self.num_epochs or 0) * num_examples / self.batch_size)


@frozen(kw_only=True)
class Requirements:
    """The requirements of a run. They hold no configuration.

    algorithm       with the penalty for long completions, if it is set
    kind            of the algorithm, for messages
    models          every model with a trainer, by its role: "policy", "critic", ... Several teachers are
                    "teachers.NAME", and classifiers whose scores are rewards "rewards.NAME"
    scorers         settings of the models whose scores are rewards, by their names; those of judges have a generator
    example_type    what the training data are used as
    number_columns  the columns of numbers that are fields of the rows, because the algorithm reads them
    teachers        the names of several teachers; empty if there is at most one
    schedule        the numbers of its steps
    """

    algorithm: Algorithm
    kind: str
    models: Mapping[str, ModelRole]
    scorers: Mapping[str, Role]
    example_type: ExampleType
    number_columns: tuple[str, ...]
    teachers: tuple[str, ...]
    schedule: StepSchedule

    @property
    def judges(self) -> dict[str, Role]:
        """The settings of the judges by their roles, "rewards.NAME". None of them has a trainer."""
        return {f"{REWARDS}.{name}": role for name, role in self.scorers.items() if role.judge is not None}

    @property
    def classifiers(self) -> dict[str, ModelRole]:
        """The models with a trainer whose scores are rewards, by their roles, "rewards.NAME"."""
        return {name: role for name, role in self.models.items() if is_reward(name)}

    @property
    def trains_classifier(self) -> bool:
        """Whether the model that is trained is a classifier, which scores a whole conversation."""
        return "classifier_score" in outputs_of(self.algorithm, "policy", FIELDS)

    def all_models(self) -> dict[str, Model]:
        """Every model of the run by its role: those with a trainer, and the judges."""
        settings = {**{name: role.settings for name, role in self.models.items()}, **self.judges}
        return {name: role.model for name, role in settings.items() if role.model is not None}

    def updates(self, max_steps: int | None) -> dict[str, int | None]:
        """The optimizer steps of each model in a run of `max_steps`: 0 if it is not trained, None if not known.

        Raises: ConfigError if the warm-up of the critic is as long as the run.
        """
        warmup = self.schedule.critic_warmup
        if max_steps is not None and warmup >= max_steps:
            raise ConfigError("critic_warmup", got=warmup, need=f"less than the {max_steps} steps of the run")
        updates = {}
        for name, role in self.models.items():
            steps = max_steps and max_steps - (0 if name == "critic" else warmup)
            updates[name] = (steps and steps * self.schedule.passes(name).updates) if role.is_trained else 0
        return updates

    def without_scorers(self) -> Requirements:
        """The same without the models whose scores are rewards."""
        models = {name: role for name, role in self.models.items() if not is_reward(name)}
        return evolve(self, models=models, scorers={})


def is_reward(role: str) -> bool:
    """Whether `role`, a name in `Requirements.models`, is that of a model whose scores are rewards."""
    return role.startswith(f"{REWARDS}.")


def requirements_of(config: RunConfig) -> Requirements:
    """The requirements of a run of `config`; those of its initial run are not in them.

    Raises: ConfigError for a modifier that changes no part of the algorithm.
    """
    algorithm = _build(config.algorithm)
    if config.rollout is not None:
        algorithm = with_length_penalty(algorithm, config.rollout)
        if config.data.curriculum is not None and config.data.curriculum.is_weighted:
            algorithm = with_draw_weights(algorithm)
    teachers, scorers = config.roles.get(TEACHERS), dict(_scorers_of(config.roles.get(REWARDS, {}), config.model))
    return Requirements(
        algorithm=algorithm,
        kind=kind_of(config.algorithm.base),
        models=dict(_models_of(algorithm, config.roles, scorers, Role(model=config.model, trainer=config.trainer))),
        scorers=scorers,
        example_type="prompts" if config.rollout is not None else _example_type(algorithm),
        number_columns=tuple(name for name in NUMBER_COLUMNS if name in reads_of(algorithm)),
        teachers=tuple(teachers) if isinstance(teachers, Mapping) else (),
        schedule=schedule_of(config),
    )


def schedule_of(config: RunConfig) -> StepSchedule:
    """The numbers of steps of a run of `config`."""
    return StepSchedule(
        max_steps=config.max_steps,
        num_epochs=config.num_epochs,
        batch_size=config.batch_size,
        minibatches=config.minibatches,
        minibatch_size=config.minibatch_size,
        ppo_epochs=config.ppo_epochs,
        critic_warmup=config.critic_warmup,
        of_roles={name: _passes(role, config) for name, role in config.roles.items() if isinstance(role, Role)},
    )


def _passes(role: Role, config: RunConfig) -> Passes:
    """The optimizer steps of `role` in a step, if it is trained: those of the run, if it has no settings of its own."""
    minibatches = role.num_minibatches or config.minibatches
    if role.minibatch_size is not None:
        minibatches = config.batch_size // role.minibatch_size
    return Passes(role.ppo_epochs or config.ppo_epochs, minibatches)


def _build(composition: Composition) -> Algorithm:
    """The algorithm of `composition`. Raises: ConfigError for a modifier that changes no part of it."""
    with in_section("algorithm", type(composition.base)):
        algorithm = build_algorithm(Composition(composition.base))
    for modifier in composition.modifiers:
        try:
            algorithm = with_modifiers(algorithm, modifier)
        except ConfigError as error:
            key, message = f"algorithm.{key_of(kind_of(modifier))}", str(error).removeprefix(kind_of(modifier))
            if not message.startswith(" has no effect"):
                raise ConfigError(f"{key}{message}") from error
            do = None if "\n  do:" in message else f"leave {key} out"
            raise NoEffectError(f"{key}{message}", do=do).at(key) from error
    return algorithm


def _example_type(algorithm: Algorithm) -> ExampleType:
    """The type of the examples of an algorithm that learns from data."""
    reads = {name for objective in algorithm.objectives for name in objective.reads}
    return "preferences" if "chosen" in reads else "labels" if "desirable" in reads else "demonstrations"


def _models_of(
    algorithm: Algorithm, table: Mapping[str, Role | Mapping[str, Role]], scorers: Mapping[str, Role], default: Role
) -> Iterator[tuple[str, ModelRole]]:
    """Every model with a trainer, by its role: those of the algorithm, then the classifiers among `scorers`.

    Settings that are missing in `table` are those of `default`.
    """

    def completed(name: str, own: Role, outputs: tuple[str, ...], *, is_trained: bool) -> tuple[str, ModelRole]:
        trainer = own.trainer or default.trainer
        key = "trainer" if trainer is default.trainer else f"roles.{name}.trainer"
        settings = evolve(own, model=own.model or default.model, trainer=trainer)
        return name, ModelRole(settings, outputs, is_trained, key)

    trained = {objective.role for objective in (*algorithm.before, *algorithm.objectives)}
    for role in roles(algorithm, FIELDS):
        outputs = outputs_of(algorithm, role, FIELDS)
        for name, own in role_settings(table, role).items():
            yield completed(name, own, outputs, is_trained=role in trained)
    for name, own in scorers.items():
        if own.judge is None:
            yield completed(f"{REWARDS}.{name}", own, ("classifier_score",), is_trained=False)


def role_settings(table: Mapping[str, Role | Mapping[str, Role]], role: str) -> dict[str, Role]:
    """The settings in `table` of the models in `role`, by name: one model, or several teachers."""
    teachers = table.get(TEACHERS)
    if role == "teacher" and isinstance(teachers, Mapping) and teachers:
        return {f"{TEACHERS}.{name}": settings for name, settings in teachers.items()}
    settings = table.get(role)
    return {role: settings if isinstance(settings, Role) else Role()}


def _scorers_of(table: Role | Mapping[str, Role], model: Model) -> Iterator[tuple[str, Role]]:
    """The settings in `table` of the models whose scores are rewards, by their names; of `model` if they name none."""
    for name, own in table.items() if isinstance(table, Mapping) else ():
        settings = evolve(own, model=own.model or model)
        if own.judge is not None:
            settings = evolve(settings, generator=own.generator or find("generator", "hf").Config())
        yield name, settings
