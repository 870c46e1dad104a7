"""A summary of a run in numbers, computed from its configuration alone."""

from __future__ import annotations

from collections.abc import Mapping

from purerl.config.check import accuracy_rewards_of
from purerl.config.preset_names import name_with_preset
from purerl.config.requirements import requirements_of
from purerl.config.roles import shares_weights
from purerl.config.schema import RunConfig
from purerl.data.settings import Data
from purerl.evaluation.accuracy import describe_accuracy
from purerl.evaluation.settings import Evaluate, Validation
from purerl.plugins import kind_of
from purerl.rollouts.settings import Rollout

__all__ = ["plan"]


def plan(config: RunConfig) -> str:
    """A summary of `config` in lines: its initial run, then the contents of a step, and the totals of all steps."""
    initial = [plan(config.initial_run)] if config.initial_run else []
    facts = {label: text for label, text in _facts(config).items() if text}
    width = max(map(len, facts))
    length = f"{config.max_steps:,} steps" if config.max_steps else f"epochs: {config.num_epochs:g}"
    title = f"{config.name}: {name_with_preset(config.algorithm)}, {length}"
    return "\n".join([*initial, title, *(f"  {label:<{width}}  {text}" for label, text in facts.items())])


def _facts(config: RunConfig) -> dict[str, str | None]:
    """Label -> text, or None if there is nothing to show."""
    rows = config.batch_size * (config.rollout.samples_per_prompt if config.rollout else 1)
    needs, steps = requirements_of(config), config.max_steps
    updates = {name: needs.schedule.passes(name).updates for name, role in needs.models.items() if role.is_trained}
    policy = needs.models["policy"]
    shared = [name for name, role in needs.models.items() if name != "policy" and shares_weights(role, policy)]
    without = {"policy": f"; without its adapter: {', '.join(shared)}"} if shared else {}
    engines = {name: role.settings.trainer for name, role in needs.models.items() if name not in shared}
    engines |= {name: role.generator for name, role in needs.judges.items()}
    return {
        "prepare data": config.prepare_data,
        "data": _data(config.data),
        "models": ", ".join(f"{name} ({kind_of(engine)}{without.get(name, '')})" for name, engine in engines.items()),
        "generator": config.generator and kind_of(config.generator),
        "step": f"{_source(config.batch_size, config.rollout)}: {rows:,} rows; optimizer steps: {_updates(updates)}",
        "total": f"at most {steps * rows:,} rows; optimizer steps: {_updates(updates, steps)}" if steps else None,
        "evaluation": config.evaluate and _evaluation(config.evaluate),
        "accuracy": describe_accuracy(accuracy_rewards_of(config)),
        "validation": config.validation and _validation(config.validation),
        "checkpoints": f"every {config.checkpoint.every} steps; the newest {config.checkpoint.keep} are kept",
        "stops early": config.stop_when and f"if {config.stop_when.metric} is at least {config.stop_when.at_least:g}",
    }


def _updates(numbers: Mapping[str, int], steps: int = 1) -> str:
    """The optimizer steps of each model that is trained, in so many `steps`; one number if they are equal."""
    if len({*numbers.values()}) == 1:
        return f"{steps * next(iter(numbers.values())):,}"
    return ", ".join(f"{steps * number:,} of the {role}" for role, number in numbers.items())


def _source(batch_size: int, rollout: Rollout | None) -> str:
    if rollout is None:
        return f"{batch_size:,} examples"
    if rollout.recorded is not None:
        return f"{batch_size:,} groups that {rollout.recorded} has recorded"
    tokens = f"at most {rollout.max_tokens:,} tokens"
    return f"{batch_size:,} prompts x {rollout.samples_per_prompt} completions of {tokens}"


def _data(data: Data) -> str:
    weights = [f" ({weight / sum(data.weights):.0%})" for weight in data.weights] or [""] * len(data.files)
    files = ", ".join(file + weight for file, weight in zip(data.files, weights, strict=True))
    limit = f"; prompts of at most {data.max_prompt_tokens:,} tokens" if data.max_prompt_tokens else ""
    return files + limit + (f"; {data.validation_fraction:.1%} for validation" if data.validation_fraction else "")


def _evaluation(evaluate: Evaluate) -> str:
    problems = "all problems" if evaluate.max_examples is None else f"the first {evaluate.max_examples:,} problems"
    files = ", ".join(evaluate.data.values()) or "the validation set"
    samples = f" x {evaluate.samples_per_prompt} completions" if evaluate.samples_per_prompt > 1 else ""
    return f"every {evaluate.every} steps: {problems} of {files}{samples}"


def _validation(validation: Validation) -> str:
    examples = "all examples" if validation.max_examples is None else f"the first {validation.max_examples:,} examples"
    return f"every {validation.every} steps: {examples} of {', '.join(validation.data) or 'the validation set'}"
