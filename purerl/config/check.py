"""Checks of a whole configuration: everything that the algorithm needs is set, and every setting has an effect.

They run before a model, a tokenizer or a data set is read. Checks of one section are in the package that defines it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from purerl.algos.algebra import Algorithm, reads_of, roles
from purerl.batch import FIELDS
from purerl.composition import Composition, build_algorithm, with_modifiers
from purerl.config.aliases import suggestion
from purerl.config.budget import check_budgets
from purerl.config.generators import (
    check_adapter_rank,
    check_generator,
    check_mismatch_growth,
    check_updates_in_flight,
)
from purerl.config.modifiers import key_of
from purerl.config.paths import is_created_by_run
from purerl.config.replayed_routes import check_routes
from purerl.config.reuse import check_reuse
from purerl.config.roles import adapter_rank, check_placement, check_roles, model_roles, models_by_role, trainer_key
from purerl.config.schema import RunConfig
from purerl.config.servers import check_servers
from purerl.config.structure import dumps
from purerl.data.settings import TRUNCATED_SIDES
from purerl.envs.check import check_environment_settings
from purerl.envs.settings import EnvironmentSettings, written_fields
from purerl.errors import ConfigError
from purerl.evaluation.accuracy import select_accuracy_rewards
from purerl.evaluation.sampling import check_sampling
from purerl.evaluation.settings import Evaluate, check_evaluation
from purerl.monitoring.debugging.settings import check_debug
from purerl.monitoring.trackers.settings import check_trackers
from purerl.plugins import find, kind_of, locate
from purerl.rewards.adapters import RewardFunction
from purerl.rewards.check import check_rewards, check_weights
from purerl.rewards.settings import RewardWorkers, by_name
from purerl.rollouts.custom import WORKFLOW, check_workflow_settings, requires_score
from purerl.rollouts.episode_rows import ENVIRONMENT
from purerl.rollouts.settings import WorkflowSettings, check_rollout, with_length_penalty
from purerl.settings import in_section, no_effect

__all__ = [
    "accuracy_rewards_of",
    "algorithm_of",
    "check",
    "check_ranks",
    "check_settings",
    "learns_from_rewards",
    "needs_rollouts",
    "updates_of",
]

_MEASURED = {"eval/": ("evaluate", "an evaluation"), "validation/": ("validation", "a validation")}
_ROLLOUT_FIELDS = {"reward", "rollout_logp", "version", "truncated", "score", "components", "greedy_score"}
_DATA_FIELDS = {"chosen", "margin", "desirable", "mismatched"}
_LOOP_FIELDS = {"tokens", "example", "temperature", "noise", "optimal_value", *_DATA_FIELDS, *_ROLLOUT_FIELDS}

_SETTINGS_OF_FIELDS = {"anchor": "environment.has_states=true", "role": "environment.players"}


def algorithm_of(config: RunConfig) -> Algorithm:
    """The algorithm of `config`. The penalty for long completions, if it is set, is applied before the advantage.

    Raises: ConfigError for a modifier that changes no part of the algorithm.
    """
    with in_section("algorithm", type(config.algorithm.base)):
        algorithm = build_algorithm(Composition(config.algorithm.base))
    for modifier in config.algorithm.modifiers:
        try:
            algorithm = with_modifiers(algorithm, modifier)
        except ConfigError as error:
            key, message = f"algorithm.{key_of(kind_of(modifier))}", str(error).removeprefix(kind_of(modifier))
            has_remedy = not message.startswith(" has no effect") or "\n  do:" in message
            raise ConfigError(f"{key}{message}", do=None if has_remedy else f"leave {key} out") from error
    return algorithm if config.rollout is None else with_length_penalty(algorithm, config.rollout)


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


def updates_of(config: RunConfig, algorithm: Algorithm, max_steps: int | None) -> dict[str, int | None]:
    """The optimizer steps of each model in a run of `max_steps`: 0 if it is not trained, None if they are not known.

    Raises: ConfigError if the warm-up of the critic is as long as the run.
    """
    if max_steps is not None and config.critic_warmup >= max_steps:
        raise ConfigError("critic_warmup", got=config.critic_warmup, need=f"less than the {max_steps} steps of the run")
    updates = {}
    for name, role in model_roles(config, algorithm).items():
        steps = max_steps and max_steps - (0 if name == "critic" else config.critic_warmup)
        updates[name] = (steps and steps * config.ppo_epochs * config.minibatches) if role.is_trained else 0
    return updates


def check(config: RunConfig, functions: Mapping[str, RewardFunction] | None = None) -> None:
    """Refuse a configuration as `check_settings`, and one whose engines are not installed or do not fit its ranks.

    Raises: ConfigError for the first problem. The keys of an `initial_run` start with ``initial_run.``.
    """
    check_settings(config, functions)
    for key, phase in _phases(config):
        with in_section(key, RunConfig):
            _check_trainers(phase, "check_installed", lambda name: ())
            if phase.generator is not None:
                check_generator(phase.generator)
    check_ranks(config)


def check_ranks(config: RunConfig, ranks: int | None = None) -> None:
    """Refuse trainers whose settings do not fit their number of ranks: `ranks`, or that of their actors of Ray.

    `ranks` is `placement.ranks` if it is not given. If neither is, nothing is refused: torchrun decides.

    Raises: ConfigError. The keys of an `initial_run` start with ``initial_run.``.
    """
    ranks = ranks or config.placement.ranks
    if ranks is None and config.placement.kind == "local":
        return
    for key, phase in _phases(config):
        with in_section(key, RunConfig):
            _check_trainers(phase, "check_ranks", lambda name: (config.placement.num_ranks(name, ranks or 1),))


def _phases(config: RunConfig) -> list[tuple[str, RunConfig]]:
    """The run and its initial run, each with the key of its settings."""
    return [("", config), *([("initial_run", config.initial_run)] if config.initial_run else [])]


def _check_trainers(config: RunConfig, function: str, arguments: Callable[[str], tuple[Any, ...]]) -> None:
    """Call `function` of each trainer that has it, with its settings and the `arguments` for its role."""
    for name, role in model_roles(config, algorithm_of(config)).items():
        trainer = role.settings.trainer
        check_trainer = getattr(find("trainer", kind_of(trainer)), function, None)
        if check_trainer is not None:
            with in_section(trainer_key(config, name, trainer), type(trainer)):
                check_trainer(trainer, *arguments(name))


def check_settings(config: RunConfig, functions: Mapping[str, RewardFunction] | None = None) -> None:
    """Refuse a configuration in which something is missing or has no effect, on whatever computer it runs.

    `functions` are reward functions that were passed as objects, by name.

    Raises: ConfigError for the first problem. The keys of an `initial_run` start with ``initial_run.``.
    """
    algorithm, kind = algorithm_of(config), kind_of(config.algorithm.base)
    _check_source(config, algorithm, kind)
    _check_truncation(config)
    check_evaluation(config.evaluate, config.data.validation_fraction, config.validation)
    _check_fields(config, algorithm, kind)
    check_routes(config, algorithm, kind)
    _check_models(config, algorithm)
    check_placement(config, algorithm)
    _check_steps(config, algorithm, kind)
    check_budgets(config, algorithm)
    signature = _signature_of_workflow(config, functions or {})
    _check_sampling(config, algorithm, kind, requires_rewards=requires_score(signature))
    _check_workflow(config, signature)
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
        locate(config.prepare_data)
    if config.initial_run is not None:
        _check_initial_run(config, config.initial_run)
    check_reuse(config, algorithm, kind)  # the last one, because it may compute gradients


def needs_rollouts(algorithm: Algorithm) -> set[str]:
    """The fields that `algorithm` reads and that only completions of the policy have; empty if it can learn from data.

    For preference pairs and labeled completions `old_logp` is no such field: the ratio to it measures how far the
    policy has moved from the start of the update, for completions of any origin.
    """
    reads = {*reads_of(algorithm)}
    return reads & _ROLLOUT_FIELDS or (reads & {"old_logp"} if reads.isdisjoint(_DATA_FIELDS) else set())


def _check_source(config: RunConfig, algorithm: Algorithm, kind: str) -> None:
    fields = needs_rollouts(algorithm)
    if fields and config.rollout is None:
        need = f"completions of the policy: {kind} reads {', '.join(sorted(fields))}"
        raise ConfigError("rollout is missing", need=need, do="set rollout.samples_per_prompt and rollout.max_tokens")
    if config.rollout and not fields and "teacher" not in roles(algorithm, FIELDS):
        need = f"an algorithm that learns from completions of the policy; {kind} learns from data"
        raise no_effect("rollout", config.rollout, need)
    if config.rollout and config.rollout.recorded and config.num_epochs:
        do = "set max_steps"
        raise ConfigError(
            "num_epochs", got=config.num_epochs, need="max_steps: recorded completions have no epochs", do=do
        )
    if config.validation is not None and config.rollout is not None:
        need = "an algorithm that learns from data: completions of the policy have no held-out loss"
        raise no_effect("validation", config.validation, need, "leave it out, and set evaluate")
    if config.validation is not None and "old_logp" in reads_of(algorithm):
        need = f"a loss that is relative to a fixed model; {kind} compares the policy with itself before an update"
        raise no_effect("validation", config.validation, need)


def _check_fields(config: RunConfig, algorithm: Algorithm, kind: str) -> None:
    """Every field that the algorithm reads is written by something in the run."""
    workflow = config.rollout and config.rollout.workflow
    written = written_fields(config.environment) if config.environment and config.rollout else ()
    written = workflow.fields if workflow else written
    for name in sorted({*reads_of(algorithm)} - _LOOP_FIELDS - {*written}):
        field = FIELDS[name]
        if field.is_input:
            need = f"the field {name!r} ({field.meaning}), which is written by {field.writer}"
            do = f"set {_SETTINGS_OF_FIELDS[name]}" if name in _SETTINGS_OF_FIELDS else None
            do = "if the workflow writes it, add it to rollout.workflow.fields" if workflow else do
            raise ConfigError(
                f"algorithm {kind!r} cannot be used here", got="no such field in the run", need=need, do=do
            )


def _check_models(config: RunConfig, algorithm: Algorithm) -> None:
    check_roles(config, algorithm, updates=updates_of(config, algorithm, config.max_steps))
    for name, model in models_by_role(config, algorithm).items():
        key = "model" if model == config.model else f"roles.{name}.model"
        is_directory = is_created_by_run(model.path) or Path(model.path).is_dir()
        if model.revision is not None and is_directory:
            need = f"the name of a model on the hub; {model.path!r} is a directory"
            raise no_effect(f"{key}.revision", model.revision, need)
        if model.fingerprint == "full" and not is_directory:
            need = f"a directory; of a model on the hub, such as {model.path!r}, the commit is recorded"
            raise no_effect(f"{key}.fingerprint", model.fingerprint, need)


def _check_steps(config: RunConfig, algorithm: Algorithm, kind: str) -> None:
    objectives = (*algorithm.before, *algorithm.objectives)
    unit = "groups" if any(objective.unit == "group" for objective in objectives) else "rows"
    count = config.batch_size * (config.rollout.samples_per_prompt if config.rollout and unit == "rows" else 1)
    if config.minibatches > count:
        need, do = f"at most {count}, the {unit} of a step", "raise batch_size or lower num_minibatches"
        raise ConfigError("num_minibatches", got=config.minibatches, need=need, do=do)
    if config.critic_warmup and not any(objective.role == "critic" for objective in objectives):
        raise no_effect("critic_warmup", config.critic_warmup, f"an algorithm with a critic; {kind} has none")
    metrics = {
        "stop_when.metric": config.stop_when.metric if config.stop_when else "",
        "checkpoint.best": config.checkpoint.best or "",
    }
    for key, metric in metrics.items():
        for prefix, (section, need) in _MEASURED.items():
            if metric.startswith(prefix) and getattr(config, section) is None:
                setting = key.removesuffix(".metric")
                raise no_effect(setting, metric, need, f"set {section}, or leave {setting} out")
        if do := suggestion(metric):  # other names are checked in the run, when there are records
            raise ConfigError(key, got=metric, need="a metric of the run", do=do)


def _signature_of_workflow(config: RunConfig, functions: Mapping[str, Callable]) -> inspect.Signature | None:
    """The signature of the function of `rollout.workflow`; None if there is none, or if it is not known.

    Raises: ConfigError if there is no such function.
    """
    if config.rollout is None or config.rollout.workflow is None:
        return None
    name = config.rollout.workflow.function
    if name in functions:  # in place of a function that is not imported
        return getattr(functions[name], "__signature__", None)
    with in_section("rollout.workflow", WorkflowSettings):
        function = locate(name)
    if not callable(function):
        need = "a function that returns a workflow"
        raise ConfigError(f"rollout.workflow {name!r}", got=type(function).__name__, need=need)
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _check_workflow(config: RunConfig, signature: inspect.Signature | None) -> None:
    workflow = config.rollout and config.rollout.workflow
    if workflow is None:
        return
    if config.environment is not None:
        need = "rollout.workflow or environment, not both: each of them says what happens after a prompt"
        raise no_effect("environment", config.environment, need)
    functions = [name for name, each in by_name(config.rewards, config.gates).items() if each.role is None]
    with in_section("rollout.workflow", WorkflowSettings):
        check_workflow_settings(workflow, signature, functions=functions)


def _check_sampling(config: RunConfig, algorithm: Algorithm, kind: str, *, requires_rewards: bool) -> None:
    is_sampling = config.rollout is not None or config.evaluate is not None
    workers = config.reward_workers if config.reward_workers != RewardWorkers() else None
    has_workflow = config.rollout is not None and config.rollout.workflow is not None
    gives_rewards = config.environment is not None and config.environment.gives_rewards
    gives_rewards = not requires_rewards if has_workflow else gives_rewards
    models = [each.full_name for each in (*config.rewards, *config.gates) if each.role is not None]
    rewards, gates = (tuple(each.full_name for each in section) for section in (config.rewards, config.gates))
    needed = {"generator": config.generator} if _needs_generator(config) else {}
    needed |= {} if gives_rewards else {"rewards": rewards}
    optional = {"rewards": rewards, "gates": gates, "environment": config.environment}
    for key, value in {**needed, **optional, "reward_workers": workers}.items():
        if value and not is_sampling:
            raise no_effect(key, value, "rollout or evaluate")
        if is_sampling and not value and key in needed:
            need = "completions are sampled and rewarded, because rollout or evaluate is set"
            raise ConfigError(f"{key} is missing", need=need, do=f"set {key}")
    if config.generator is not None:
        check_adapter_rank(config.generator, adapter_rank(config.trainer))
        check_updates_in_flight(config)
        check_mismatch_growth(config)
        check_servers(config)
        if config.evaluate is not None:
            with in_section("evaluate", Evaluate):
                check_sampling(config.evaluate, config.generator)
    if config.rollout is not None:
        if config.rewards:
            check_weights(config.rewards, algorithm, _weights_of(config.algorithm))
        if models and "greedy_score" in reads_of(algorithm):
            need = f"functions and kinds only: {kind} compares with a greedy completion, which models do not score"
            raise ConfigError("rewards or gates", got=", ".join(models), need=need, do="use another algorithm")
        check_rollout(config.rollout, algorithm, kind)
        if config.rollout.overlong and config.environment:
            need = "completions of one turn; environment.max_episode_tokens limits an episode"
            raise no_effect("rollout.overlong", config.rollout.overlong, need)


def _needs_generator(config: RunConfig) -> bool:
    """Whether anything is sampled. Raises ConfigError for a generator that recorded completions leave nothing to do."""
    is_recorded = config.rollout is not None and config.rollout.recorded is not None
    if is_recorded and config.evaluate is None and config.generator:
        need = "evaluate: completions of rollout.recorded are not sampled"
        raise no_effect("generator", kind_of(config.generator), need)
    return not is_recorded or config.evaluate is not None


def _weights_of(composition: Composition) -> dict[str, Sequence[float]]:
    """The weights of reward components in the settings of an algorithm and of its modifiers, by their keys."""
    keys = {"algorithm": composition.base}
    keys |= {f"algorithm.{key_of(kind_of(modifier))}": modifier for modifier in composition.modifiers}
    return {f"{key}.weights": settings.weights for key, settings in keys.items() if hasattr(settings, "weights")}


def _check_truncation(config: RunConfig) -> None:
    """Refuse truncated prompts where a conversation is rendered again: its tokens would not be the truncated ones."""
    has_workflow = config.rollout is not None and config.rollout.workflow is not None
    if config.data.truncation in TRUNCATED_SIDES and (config.environment is not None or has_workflow):
        need, do = "drop or error with an environment or a workflow, which render messages themselves", "leave it out"
        raise ConfigError("data.truncation", got=config.data.truncation, need=need, do=do)


def _check_initial_run(config: RunConfig, initial: RunConfig) -> None:
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
        check_settings(initial)
