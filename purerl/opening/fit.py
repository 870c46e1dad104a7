"""Checks that a task fits the devices of this computer and its engines, before the first step."""

from __future__ import annotations

from typing import Any

from purerl.backends.plugin import engine_plugin
from purerl.config.schema import RunConfig
from purerl.data.examples import DataSet, indices_of_draws
from purerl.data.limits import (
    check_answer_lengths,
    check_lengths,
    check_mismatched_lengths,
    check_problem_lengths,
    min_limit,
)
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError
from purerl.evaluation.sampling import sampling_of
from purerl.evaluation.settings import Evaluate
from purerl.opening.images import check_images
from purerl.plugins import kind_of
from purerl.protocols import Capabilities
from purerl.rollouts.opened import EngineCapabilities, Task
from purerl.rollouts.settings import Rollout
from purerl.settings import in_section, no_effect

__all__ = ["check_devices", "check_fit", "check_problems_fit", "lengths_of"]


def check_devices(config: RunConfig) -> None:
    """Raise ConfigError if torch cannot use the device of the trainer or the generator, also those of an initial run.

    Actors of Ray may have other devices than this process, so theirs are checked when they start.
    """
    if config.placement.kind == "ray":
        return
    for prefix, phase in (("initial_run.", config.initial_run), ("", config)):
        for name in ("trainer", "generator"):
            settings = getattr(phase, name, None)
            if settings is not None:
                with in_section(f"{prefix}{name}", type(settings)):
                    engine_plugin(name, kind_of(settings)).check_device(settings)


def lengths_of(config: RunConfig, max_steps: int) -> dict[str, Any]:
    """The arguments of `check_fit` that a run of `max_steps` has."""
    return {
        "rollout": config.rollout,
        "evaluate": config.evaluation,
        "environment": config.environment,
        "max_prompt_tokens": config.data.max_prompt_tokens,
        "has_curriculum": config.data.curriculum is not None,
        "draws": max_steps * ((config.rollout and config.rollout.gen_batch_size) or config.batch_size),
        "seed": config.seed,
    }


def check_fit(
    task: Task,
    capabilities: EngineCapabilities,
    *,
    rollout: Rollout | None,
    evaluate: Evaluate | None,
    environment: EnvironmentSettings | None,
    max_prompt_tokens: int | None,
    draws: int,
    seed: int,
    has_curriculum: bool = False,
) -> None:
    """Refuse engines that cannot read the images of `task`, rows that are too long, and prompts without room.

    It also refuses `environment.lockstep` = false if episodes do not wait for each other anyway.

    max_prompt_tokens  longest prompt that is used; None: any
    draws              number of training rows that are drawn, with this `seed`, or with a curriculum in any order

    Raises: ConfigError for engines and temperatures that they do not accept; DataError for rows.
    """
    check_images(task.chat, capabilities.all)
    for section, settings in (("rollout", rollout), ("evaluate", evaluate)):
        _check_temperature(section, settings, capabilities.generator)
    _check_lockstep(environment, rollout, evaluate, capabilities.generator)
    if task.training is not None:
        limit = min_limit(*capabilities.trained, *(capabilities.sampling if rollout else []))
        if limit is not None and rollout is None:
            examples, held_out = task.training.examples, task.training.held_out
            is_labeled = bool(examples.example_format.label)
            check = check_mismatched_lengths if is_labeled else check_answer_lengths
            # The mismatched answer of the last draw is that of one of the next two.
            check(task.chat, examples, _drawn(examples, seed, draws + 2 * is_labeled), limit=limit)
            if held_out is not None:
                check_answer_lengths(task.chat, held_out, held_out.indices, limit=limit)
        elif limit is not None and (max_prompt_tokens is None or max_prompt_tokens + rollout.max_tokens > limit):
            room, lower = limit - rollout.max_tokens, "lower rollout.max_tokens"
            do = f"set data.max_prompt_tokens to {room} to leave such rows out, or {lower}" if room > 0 else lower
            examples = task.training.examples
            draws *= 1 + rollout.max_resample_rounds
            indices = _drawn(examples, seed, draws, has_curriculum=has_curriculum)
            check_lengths(task.chat, examples, indices, new_tokens=rollout.max_tokens, limit=limit, do=do)
    if evaluate is not None:
        check_problems_fit(task, evaluate, capabilities.generator)


def _check_temperature(section: str, settings: Rollout | Evaluate | None, generator: Capabilities | None) -> None:
    """Raise ConfigError if `generator` does not accept the temperature of `settings`."""
    limit = generator and generator.max_temperature
    if settings is not None and limit is not None and settings.temperature > limit:
        need = f"at most {limit:g}, the limit of the generator"
        raise ConfigError(f"{section}.temperature", got=settings.temperature, need=need, do="lower it")


def _check_lockstep(
    environment: EnvironmentSettings | None,
    rollout: Rollout | None,
    evaluate: Evaluate | None,
    generator: Capabilities | None,
) -> None:
    """Raise ConfigError if episodes would not wait for each other anyway, as far as `generator` is known."""
    if environment is None or environment.lockstep or generator is None:
        return
    key = "environment.lockstep"
    if not generator.in_process or (rollout and rollout.background):
        need = "an engine that decodes in the main thread; with any other no episode waits"
        raise no_effect(key, environment.lockstep, need)
    if evaluate is None and rollout is not None and not rollout.is_synchronous:
        need = 'max_staleness = 0 and order = "drawn", or an evaluation; otherwise no episode waits'
        raise no_effect(key, environment.lockstep, need)


def check_problems_fit(task: Task, settings: Evaluate, generator: Capabilities | None) -> None:
    """Refuse problems that leave no room for a completion, as far as `generator` is known. Raises: DataError."""
    limit = generator and generator.max_sequence_length
    check_problem_lengths(task.chat, task.problems, new_tokens=sampling_of(settings, ()).max_tokens, limit=limit)


def _drawn(examples: DataSet, seed: int, draws: int, *, has_curriculum: bool = False) -> set[int]:
    """The indices of the rows that the first `draws` draws may use: any of them with a curriculum."""
    return set(
        examples.indices if has_curriculum or draws >= examples.num_rows else indices_of_draws(examples, seed, 0, draws)
    )
