"""Checks of the section `rollout` that depend on the algorithm, and of a workflow of a user."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

from purerl.algos.algebra import Algorithm, keep_all, reads_of, roles
from purerl.batch import FIELDS
from purerl.data.curriculum_settings import Curriculum
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError
from purerl.plugins import locate
from purerl.rewards.loading import readable_signature
from purerl.rollouts.custom import check_workflow_settings
from purerl.rollouts.filtering import NAMED_COMPONENTS
from purerl.rollouts.settings import Rollout, WorkflowSettings
from purerl.settings import in_section, no_effect

__all__ = [
    "DATA_FIELDS",
    "ROLLOUT_FIELDS",
    "check_curriculum",
    "check_rollout",
    "check_source",
    "check_workflow",
    "needs_rollouts",
    "workflow_signature",
]

ROLLOUT_FIELDS = frozenset(
    {
        *("reward", "rollout_logp", "version", "truncated", "score", "components", "greedy_score"),
        *NAMED_COMPONENTS,
    }
)
"""Fields that only completions of the policy have."""

DATA_FIELDS = frozenset({"chosen", "margin", "desirable", "mismatched"})
"""Fields that only preference pairs and labeled completions have."""


def needs_rollouts(algorithm: Algorithm) -> set[str]:
    """The fields that `algorithm` reads and that only completions of the policy have; empty if it can learn from data.

    For preference pairs and labeled completions `old_logp` is no such field: the ratio to it measures how far the
    policy has moved from the start of the update, for completions of any origin.
    """
    reads = {*reads_of(algorithm)}
    return reads & ROLLOUT_FIELDS or (reads & {"old_logp"} if reads.isdisjoint(DATA_FIELDS) else set())


def check_source(settings: Rollout | None, algorithm: Algorithm, kind: str, *, num_epochs: float | None) -> None:
    """Refuse completions if the algorithm, called `kind`, learns from data, and data if it needs completions.

    Raises: ConfigError; also for `num_epochs` of recorded completions.
    """
    fields = needs_rollouts(algorithm)
    if fields and settings is None:
        need = f"completions of the policy: {kind} reads {', '.join(sorted(fields))}"
        raise ConfigError("rollout is missing", need=need, do="set rollout.samples_per_prompt and rollout.max_tokens")
    if settings and not fields and "teacher" not in roles(algorithm, FIELDS):
        need = f"an algorithm that learns from completions of the policy; {kind} learns from data"
        raise no_effect("rollout", settings, need)
    if settings and settings.recorded and num_epochs:
        need, do = "max_steps: recorded completions have no epochs", "set max_steps"
        raise ConfigError("num_epochs", got=num_epochs, need=need, do=do)


def check_rollout(
    settings: Rollout, algorithm: Algorithm, kind: str, *, batch_size: int, has_environment: bool
) -> None:
    """Refuse settings that have no effect with `algorithm`, which is called `kind`. Raises ConfigError."""
    if settings.samples_per_prompt < algorithm.min_group_size:
        need = f"at least {algorithm.min_group_size}: {kind} compares the completions of a prompt"
        raise ConfigError("rollout.samples_per_prompt", got=settings.samples_per_prompt, need=need)
    for name in ("max_resample_rounds", "gen_batch_size", "filter_metric"):
        if getattr(settings, name) and algorithm.select is keep_all:
            need, value = f"an algorithm that drops groups; {kind} keeps all", getattr(settings, name)
            raise no_effect(f"rollout.{name}", value, need, "add the modifier group_filter, or leave it out")
    rounds = 1 + settings.max_resample_rounds
    if settings.gen_batch_size is not None and settings.gen_batch_size * rounds < batch_size:
        got = f"{settings.gen_batch_size} prompts in each of at most {rounds} rounds"
        need = f"at least {batch_size} prompts, which is batch_size"
        do = "raise it, or rollout.max_resample_rounds"
        raise ConfigError("rollout.gen_batch_size", got=got, need=need, do=do)
    if settings.overlong and "reward" not in algorithm.reads:
        need = f"an algorithm that reads the reward; {kind} does not"
        raise no_effect("rollout.overlong", settings.overlong, need)
    if settings.overlong and has_environment:
        need = "completions of one turn; environment.max_episode_tokens limits an episode"
        raise no_effect("rollout.overlong", settings.overlong, need)


def workflow_signature(
    settings: WorkflowSettings | None, functions: Mapping[str, Callable]
) -> inspect.Signature | None:
    """The signature of the function of a workflow; None if there is no workflow, or if it is not known.

    `functions` are used in place of functions that are not imported. Raises: ConfigError if there is no such function.
    """
    if settings is None:
        return None
    if settings.function in functions:
        return getattr(functions[settings.function], "__signature__", None)
    with in_section("rollout.workflow", WorkflowSettings):
        function = locate(settings.function)
    if not callable(function):
        need = "a function that returns a workflow"
        raise ConfigError(f"rollout.workflow {settings.function!r}", got=type(function).__name__, need=need)
    return readable_signature(function)


def check_curriculum(curriculum: Curriculum | None, settings: Rollout | None, algorithm: Algorithm) -> None:
    """Refuse a curriculum without completions whose rewards it can count, and repeated prompts that cannot be chosen.

    Raises: ConfigError.
    """
    if curriculum is None:
        return
    if settings is None or settings.recorded is not None:
        need = "completions that are sampled: a curriculum counts how often they solve their prompt"
        raise no_effect("data.curriculum", curriculum, need)
    if not curriculum.focus:
        return
    later = {name: getattr(settings, name) for name in ("max_staleness", "num_extra_groups", "gen_batch_size")}
    for name, value in later.items():
        if value:
            need = "0 with data.curriculum.focus: the prompts of a step are chosen after the step before it"
            raise ConfigError(f"rollout.{name}", got=value, need=need, do=f"leave rollout.{name} out")
    if algorithm.select is not keep_all:
        need = "an algorithm that keeps all groups, with data.curriculum.focus, which repeats prompts of a whole step"
        raise ConfigError("the algorithm", got="a filter of groups", need=need, do="leave the filter out")


def check_workflow(
    settings: WorkflowSettings | None,
    signature: inspect.Signature | None,
    *,
    environment: EnvironmentSettings | None,
    functions: Sequence[str],
) -> None:
    """Refuse a workflow beside an `environment`, and as `check_workflow_settings`. Raises: ConfigError."""
    if settings is None:
        return
    if environment is not None:
        need = "rollout.workflow or environment, not both: each of them says what happens after a prompt"
        raise no_effect("environment", environment, need)
    with in_section("rollout.workflow", WorkflowSettings):
        check_workflow_settings(settings, signature, functions=functions)
