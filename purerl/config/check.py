"""Checks of a whole configuration: everything that the algorithm needs is set, and every setting has an effect.

They run before a model, a tokenizer or a data set is read. Checks of one section are in the package that defines it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from attrs import evolve

from purerl.algos.algebra import Algorithm, reads_of
from purerl.backends.plugin import TrainerPlugin, trainer_plugin
from purerl.batch import FIELDS
from purerl.composition import Composition
from purerl.config.budget import check_budgets
from purerl.config.generators import (
    check_adapter_rank,
    check_copy_weights,
    check_generator,
    check_mismatch_growth,
    check_serving,
)
from purerl.config.keys import joined
from purerl.config.metrics import NamedMetrics, check_names
from purerl.config.missing import missing_section
from purerl.config.modifiers import key_of
from purerl.config.replayed_routes import check_routes
from purerl.config.requirements import Requirements, requirements_of
from purerl.config.reuse import check_reuse
from purerl.config.roles import adapter_rank, check_models, check_placement, check_roles
from purerl.config.schema import RunConfig
from purerl.config.servers import check_servers
from purerl.config.structure import dumps
from purerl.config.untrusted import check_functions, check_prepare_data
from purerl.data.settings import check_truncation
from purerl.envs.check import check_environment_settings
from purerl.envs.settings import EnvironmentSettings, written_fields
from purerl.errors import ConfigError
from purerl.evaluation.accuracy import select_accuracy_rewards
from purerl.evaluation.sampling import check_sampling
from purerl.evaluation.settings import Evaluate, check_evaluation, check_validation
from purerl.monitoring.debugging.settings import check_debug
from purerl.monitoring.trackers.settings import check_trackers
from purerl.placement.settings import Placement
from purerl.plugins import kind_of, locate
from purerl.rewards.adapters import RewardFunction
from purerl.rewards.check import check_models_as_rewards, check_rewards, check_weights
from purerl.rewards.components import short_name
from purerl.rewards.settings import RewardWorkers, by_name
from purerl.rollouts.check import (
    DATA_FIELDS,
    ROLLOUT_FIELDS,
    check_curriculum,
    check_rollout,
    check_source,
    check_workflow,
    workflow_signature,
)
from purerl.rollouts.custom import WORKFLOW, requires_score
from purerl.rollouts.episode_rows import ENVIRONMENT
from purerl.rollouts.settings import Rollout
from purerl.settings import in_section, no_effect

__all__ = [
    "INITIAL_RUN",
    "accuracy_rewards_of",
    "check",
    "check_metrics",
    "check_ranks",
    "check_settings",
    "learns_from_rewards",
    "named_metrics",
]

INITIAL_RUN = "initial_run"
"""The key of the requirements of an initial run."""

_LOOP_FIELDS = {"tokens", "example", "temperature", "noise", "draw_weight", "optimal_value"}
_LOOP_FIELDS |= {*DATA_FIELDS, *ROLLOUT_FIELDS}

_SETTINGS_OF_FIELDS = {
    "anchor": "environment.has_states=true",
    "progress": "environment.has_scores=true",
    "role": "environment.players",
}


def accuracy_rewards_of(config: RunConfig) -> tuple[str, ...]:
    """The full names of the functions that decide which completions of an evaluation are correct.

    Empty without an evaluation or without any function. Raises: ConfigError as `select_accuracy_rewards`.
    """
    names, gates = [*by_name(config.rewards, ())], [*by_name((), config.gates)]
    models = [reward.full_name for reward in config.rewards if reward.role is not None]
    others = [ENVIRONMENT] if config.environment and config.environment.gives_rewards else []
    others += [WORKFLOW] if config.rollout and config.rollout.workflow else []
    return select_accuracy_rewards(config.evaluate, names, [*others, *gates], models) if config.evaluate else ()


def learns_from_rewards(algorithm: Algorithm) -> bool:
    """Whether `algorithm` reads rewards. If not, reward functions only measure it."""
    return not {"reward", "score", "components"}.isdisjoint(reads_of(algorithm))


def check(config: RunConfig, functions: Mapping[str, RewardFunction] | None = None) -> dict[str, Requirements]:
    """Refuse a configuration as `check_settings`, and one whose engines are not installed or do not fit its ranks.

    Returns and raises as `check_settings`.
    """
    needs = check_settings(config, functions)
    for key, generator in (("", config.generator), (INITIAL_RUN, config.initial_run and config.initial_run.generator)):
        if key in needs:
            with in_section(key, RunConfig):
                _check_trainers(needs[key], attrgetter("check_installed"), lambda name: ())
                if generator is not None:
                    check_generator(generator)
    check_ranks(config.placement, needs)
    return needs


def check_ranks(placement: Placement, needs: Mapping[str, Requirements], ranks: int | None = None) -> None:
    """Refuse trainers whose settings do not fit their number of ranks: `ranks`, or that of their actors of Ray.

    `needs` is the result of `check_settings`. `ranks` is `placement.ranks` if it is not given. If neither is, nothing
    is refused: torchrun decides.

    Raises: ConfigError. The keys of an `initial_run` start with ``initial_run.``.
    """
    ranks = ranks or placement.ranks
    if ranks is None and placement.kind == "local":
        return
    for key, each in needs.items():
        with in_section(key, RunConfig):
            _check_trainers(each, attrgetter("check_ranks"), lambda name: (placement.num_ranks(name, ranks or 1),))


def _check_trainers(
    needs: Requirements,
    check_of: Callable[[TrainerPlugin], Callable[..., None]],
    arguments: Callable[[str], tuple[Any, ...]],
) -> None:
    """Call a check of each trainer, with its settings and the `arguments` for its role."""
    for name, role in needs.models.items():
        trainer = role.settings.trainer
        check_trainer = check_of(trainer_plugin(trainer))
        with in_section(role.trainer_key, type(trainer)):
            check_trainer(trainer, *arguments(name))


def check_settings(config: RunConfig, functions: Mapping[str, RewardFunction] | None = None) -> dict[str, Requirements]:
    """Refuse a configuration in which something is missing or has no effect, on whatever computer it runs.

    `functions` are reward functions that were passed as objects, by name. Returns the requirements of the run, by the
    key "", and those of its initial run, if there is one, by the key "initial_run".

    Raises: ConfigError for the first problem. The keys of an `initial_run` start with ``initial_run.``.
    """
    check_functions(config)
    needs, rollout = requirements_of(config), config.rollout
    algorithm, kind, phases = needs.algorithm, needs.kind, {"": needs}
    workflow, rewards = rollout and rollout.workflow, (*config.rewards, *config.gates)
    check_source(rollout, algorithm, kind, num_epochs=config.num_epochs)
    check_validation(config.validation, reads_of(algorithm), kind, is_sampling=rollout is not None)
    check_truncation(config.data, renders_messages=config.environment is not None or workflow is not None)
    check_evaluation(config.evaluation, config.data.validation_fraction, config.validation)
    check_curriculum(config.data.curriculum, rollout, algorithm)
    _check_fields(needs, rollout, config.environment)
    check_routes(needs, rollout, config.generator)
    check_roles(config.roles, needs, rewards, is_sampling=rollout is not None or config.evaluate is not None)
    check_models(needs.all_models())
    check_placement(config.placement, needs, has_generator=config.generator is not None)
    _check_steps(needs, rollout)
    check_names(named_metrics(config), algorithm, may_log=True)
    if rollout is not None:
        check_budgets(needs.models, prompt=config.data.max_prompt_tokens, completion=rollout.max_tokens)
    signature = workflow_signature(workflow, functions or {})
    _check_sampling(config, needs, requires_rewards=requires_score(signature))
    named = [reward.full_name for reward in rewards if reward.role is None]
    check_workflow(workflow, signature, environment=config.environment, functions=named)
    check_trackers(config.trackers)
    check_debug(config.debug, config.max_steps)
    check_rewards(config.rewards, config.gates, config.reward_workers, functions or {})
    if config.environment is not None:
        with in_section("environment", EnvironmentSettings):
            check_environment_settings(
                config.environment, num_rewards=len(config.rewards), not_imported={*(functions or ())}
            )
    accuracy_rewards_of(config)
    if config.prepare_data is not None:
        check_prepare_data(config.prepare_data, locate(config.prepare_data))
    if config.initial_run is not None:
        phases[INITIAL_RUN] = _check_initial_run(config, config.initial_run)
    check_reuse(needs, rollout)  # the last one, because it may compute gradients
    return phases


def _check_fields(needs: Requirements, rollout: Rollout | None, environment: EnvironmentSettings | None) -> None:
    """Every field that the algorithm reads is written by something in the run."""
    workflow = rollout and rollout.workflow
    written = written_fields(environment) if environment and rollout else ()
    written = workflow.fields if workflow else written
    for name in sorted({*reads_of(needs.algorithm)} - _LOOP_FIELDS - {*written}):
        field = FIELDS[name]
        if field.is_input:
            need = f"the field {name!r} ({field.meaning}), which is written by {field.writer}"
            do = f"set {_SETTINGS_OF_FIELDS[name]}" if name in _SETTINGS_OF_FIELDS else None
            do = "if the workflow writes it, add it to rollout.workflow.fields" if workflow else do
            raise ConfigError(
                f"algorithm {needs.kind!r} cannot be used here", got="no such field in the run", need=need, do=do
            )


def _check_steps(needs: Requirements, rollout: Rollout | None) -> None:
    algorithm, schedule = needs.algorithm, needs.schedule
    objectives = (*algorithm.before, *algorithm.objectives)
    unit = "groups" if any(objective.unit == "group" for objective in objectives) else "rows"
    count = schedule.batch_size * (rollout.samples_per_prompt if rollout and unit == "rows" else 1)
    numbers = {"num_minibatches": schedule.minibatches}
    numbers |= {f"roles.{role}.num_minibatches": passes.minibatches for role, passes in schedule.of_roles.items()}
    for key, number in numbers.items():
        if number > count:
            need, do = f"at most {count}, the {unit} of a step", "raise batch_size or lower num_minibatches"
            raise ConfigError(key, got=number, need=need, do=do)
    if schedule.critic_warmup and not any(objective.role == "critic" for objective in objectives):
        raise no_effect("critic_warmup", schedule.critic_warmup, f"an algorithm with a critic; {needs.kind} has none")


def named_metrics(config: RunConfig) -> NamedMetrics:
    """The metrics that the settings of a run name, and what decides which ones it has."""
    named = {
        "stop_when.metric": config.stop_when and config.stop_when.metric,
        "checkpoint.best": config.checkpoint.best,
    }
    parts = (config.algorithm.base, *config.algorithm.modifiers, config.trainer, config.generator)
    is_own = any(part is not None and not type(part).__module__.startswith("purerl.") for part in parts)
    has_workflow = config.rollout is not None and config.rollout.workflow is not None
    data = config.evaluate.data if config.evaluate else {}
    return NamedMetrics(
        {key: metric for key, metric in named.items() if metric},
        filter_metric=config.rollout and config.rollout.filter_metric,
        rewards=[short_name(each.full_name) for each in (*config.rewards, *config.gates)],
        data_sets=[*data] if len(data) > 1 else [],
        absent=[name for name in ("evaluate", "validation") if getattr(config, name) is None],
        has_own_code=is_own or config.environment is not None or has_workflow,
    )


def check_metrics(config: RunConfig, needs: Mapping[str, Requirements], *, may_log: bool) -> None:
    """Refuse metrics in settings of a run and of its initial run, in which no callback logs, as `check_names`.

    `needs` is the result of `check_settings`; `may_log` is whether callbacks may log metrics of their own.
    """
    for key, each in needs.items():
        with in_section(key, RunConfig):
            part = getattr(config, key) if key else config
            check_names(named_metrics(part), each.algorithm, may_log=may_log and not key)


def _check_sampling(config: RunConfig, needs: Requirements, *, requires_rewards: bool) -> None:
    algorithm, kind = needs.algorithm, needs.kind
    is_sampling = config.rollout is not None or config.evaluate is not None
    workers = config.reward_workers if config.reward_workers != RewardWorkers() else None
    has_workflow = config.rollout is not None and config.rollout.workflow is not None
    gives_rewards = config.environment is not None and config.environment.gives_rewards
    gives_rewards = not requires_rewards if has_workflow else gives_rewards
    rewards, gates = (tuple(each.full_name for each in section) for section in (config.rewards, config.gates))
    is_generating = _needs_generator(config.rollout, config.evaluate, config.generator)
    needed = {"generator": config.generator} if is_generating else {}
    needed |= {} if gives_rewards else {"rewards": rewards}
    optional = {"rewards": rewards, "gates": gates, "environment": config.environment}
    for key, value in {**needed, **optional, "reward_workers": workers}.items():
        if value and not is_sampling:
            raise no_effect(key, value, "rollout or evaluate")
    if is_sampling and (errors := [missing_section(key) for key, value in needed.items() if not value]):
        raise joined(errors)
    if config.generator is not None:
        check_adapter_rank(config.generator, adapter_rank(config.trainer))
        check_serving(config.generator, config.rollout, config.placement)
        check_mismatch_growth(config.generator, config.rollout)
        options = {"rollout": config.rollout, "placement": config.placement}
        check_copy_weights(config.generator, model=config.model, trainer=config.trainer, **options)
        check_servers(config.generator, needs.judges, config.placement)
        if config.evaluate is not None:
            with in_section("evaluate", Evaluate):
                check_sampling(config.evaluate, config.generator)
    if config.rollout is not None:
        if config.rewards:
            check_weights(config.rewards, algorithm, _weights_of(config.algorithm))
        check_models_as_rewards((*config.rewards, *config.gates), reads_of(algorithm), kind)
        has_environment = config.environment is not None
        size = config.batch_size
        check_rollout(config.rollout, algorithm, kind, batch_size=size, has_environment=has_environment)


def _needs_generator(rollout: Rollout | None, evaluate: Evaluate | None, generator: Any) -> bool:
    """Whether anything is sampled. Raises ConfigError for a generator that recorded completions leave nothing to do."""
    is_recorded = rollout is not None and rollout.recorded is not None
    if is_recorded and evaluate is None and generator:
        need = "evaluate: completions of rollout.recorded are not sampled"
        raise no_effect("generator", kind_of(generator), need)
    return not is_recorded or evaluate is not None


def _weights_of(composition: Composition) -> dict[str, Sequence[float]]:
    """The weights of reward components in the settings of an algorithm and of its modifiers, by their keys."""
    keys = {"algorithm": composition.base}
    keys |= {f"algorithm.{key_of(kind_of(modifier))}": modifier for modifier in composition.modifiers}
    return {f"{key}.weights": settings.weights for key, settings in keys.items() if hasattr(settings, "weights")}


def _check_initial_run(config: RunConfig, initial: RunConfig) -> Requirements:
    """The requirements of the `initial` run, which is checked."""
    if "{run}/initial_run" not in dumps(evolve(config, initial_run=None)):
        do = "set model to {run}/initial_run/final"
        raise no_effect("initial_run", initial.name, "a model or a file in {run}/initial_run", do)
    if initial.prepare_data is not None:
        need = "the run itself: what it prepares is available to its initial run"
        raise no_effect("initial_run.prepare_data", initial.prepare_data, need, "set prepare_data instead")
    if initial.initial_run is not None:
        do = "do that run separately, and set initial_run.model to its directory final/"
        raise no_effect("initial_run.initial_run", initial.initial_run.name, "only one initial run", do)
    with in_section("initial_run", RunConfig):
        return check_settings(initial)[""]
