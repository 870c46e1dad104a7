"""What a run will do, in numbers, worked out from its configuration alone."""

from __future__ import annotations

from purerl.algos.algebra import roles
from purerl.batch import FIELDS
from purerl.config.check import algorithm_of
from purerl.config.schema import Data, Evaluate, RunConfig
from purerl.plugins import kind_of

__all__ = ["needs", "plan"]


def plan(config: RunConfig) -> str:
    """The plan of `config`, in lines for people: its `start` run first, what each step does, and what it adds up to."""
    first = [plan(config.initial_run)] if config.initial_run else []
    facts = {label: text for label, text in _facts(config).items() if text}
    width = max(map(len, facts))
    title = f"{config.name}: {kind_of(config.algorithm)}, {config.max_steps:,} steps"
    return "\n".join([*first, title, *(f"  {label:<{width}}  {text}" for label, text in facts.items())])


def _facts(config: RunConfig) -> dict[str, str | None]:
    """Label -> text, or None where there is nothing to say."""
    rows = config.batch_size * (config.rollout.samples_per_prompt if config.rollout else 1)
    updates = config.num_minibatches * config.ppo_epochs
    return {
        "prepare": config.prepare_data,
        "data": _data(config.data),
        "models": ", ".join(f"{role} ({kind_of(_engine(config, role))})" for role in _roles(config)),
        "sampler": config.generator and kind_of(config.generator),
        "a step": f"{_source(config)}: {rows:,} rows; optimizer steps: {updates:,}",
        "in all": f"at most {config.max_steps * rows:,} rows; optimizer steps: {config.max_steps * updates:,}",
        "evaluation": config.evaluate and _evaluation(config.evaluate),
        "checkpoints": f"every {config.checkpoint.every} steps; the newest {config.checkpoint.keep} stay",
        "ends early": config.stop_when and f"when {config.stop_when.metric} is at least {config.stop_when.at_least:g}",
    }


def _roles(config: RunConfig) -> tuple[str, ...]:
    return roles(algorithm_of(config), FIELDS)


def _engine(config: RunConfig, role: str) -> object:
    return config.critic or config.trainer if role == "critic" else config.trainer


def _source(config: RunConfig) -> str:
    if config.rollout is None:
        return f"{config.batch_size:,} examples"
    tokens = f"at most {config.rollout.max_tokens:,} tokens"
    return f"{config.batch_size:,} prompts x {config.rollout.samples_per_prompt} completions of {tokens}"


def _data(data: Data) -> str:
    shares = [f" ({weight / sum(data.weights):.0%})" for weight in data.weights] or [""] * len(data.files)
    files = ", ".join(file + share for file, share in zip(data.files, shares, strict=True))
    longest = f"; prompts of at most {data.max_prompt_tokens:,} tokens" if data.max_prompt_tokens else ""
    return files + longest + (f"; {data.validation_fraction:.1%} held out" if data.validation_fraction else "")


def _evaluation(evaluate: Evaluate) -> str:
    problems = "all problems" if evaluate.max_examples is None else f"{evaluate.max_examples:,} problems"
    files = ", ".join(evaluate.data.values()) or "those held out"
    several = f" x {evaluate.samples_per_prompt} completions" if evaluate.samples_per_prompt > 1 else ""
    return f"every {evaluate.every} steps: {problems} of {files}{several}"


def needs(config: RunConfig) -> list[str]:
    """What has to be there before `config` can run; nothing where it makes its own."""
    models = {"model": config.model, "teacher": config.teacher}
    paths = [(name, model.path) for name, model in models.items() if model]
    paths += [("data", file) for file in config.data.files]
    paths += [("problems", file) for file in (config.evaluate.data.values() if config.evaluate else ())]
    first = needs(config.initial_run) if config.initial_run else []
    named = [f"{name} {path}" for name, path in paths if not path.startswith("{run}")]
    return list(dict.fromkeys([*first, *named]))
