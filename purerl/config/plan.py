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
    first = [plan(config.start)] if config.start else []
    facts = {label: text for label, text in _facts(config).items() if text}
    width = max(map(len, facts))
    title = f"{config.name}: {kind_of(config.algorithm)}, {config.steps:,} steps"
    return "\n".join([*first, title, *(f"  {label:<{width}}  {text}" for label, text in facts.items())])


def _facts(config: RunConfig) -> dict[str, str | None]:
    """Label -> text, or None where there is nothing to say."""
    rows = config.examples * (config.rollout.samples if config.rollout else 1)
    updates = config.minibatches * config.epochs
    return {
        "prepare": config.prepare,
        "data": _data(config.data),
        "models": ", ".join(f"{role} ({kind_of(_engine(config, role))})" for role in _roles(config)),
        "sampler": config.generator and kind_of(config.generator),
        "a step": f"{_source(config)}: {rows:,} rows; optimiser steps: {updates:,}",
        "in all": f"at most {config.steps * rows:,} rows; optimiser steps: {config.steps * updates:,}",
        "evaluation": config.evaluate and _evaluation(config.evaluate),
        "checkpoints": f"every {config.checkpoint.every} steps; the newest {config.checkpoint.keep} stay",
        "ends early": config.stop and f"when {config.stop.metric} is at least {config.stop.at_least:g}",
    }


def _roles(config: RunConfig) -> tuple[str, ...]:
    return roles(algorithm_of(config), FIELDS)


def _engine(config: RunConfig, role: str) -> object:
    return config.critic or config.trainer if role == "critic" else config.trainer


def _source(config: RunConfig) -> str:
    if config.rollout is None:
        return f"{config.examples:,} examples"
    tokens = f"at most {config.rollout.max_tokens:,} tokens"
    return f"{config.examples:,} prompts x {config.rollout.samples} completions of {tokens}"


def _data(data: Data) -> str:
    shares = [f" ({weight / sum(data.weights):.0%})" for weight in data.weights] or [""] * len(data.files)
    files = ", ".join(file + share for file, share in zip(data.files, shares, strict=True))
    longest = f"; prompts of at most {data.max_prompt_tokens:,} tokens" if data.max_prompt_tokens else ""
    return files + longest + (f"; {data.held_out:.1%} held out" if data.held_out else "")


def _evaluation(evaluate: Evaluate) -> str:
    problems = "all problems" if evaluate.examples is None else f"{evaluate.examples:,} problems"
    return f"every {evaluate.every} steps: {problems} of {evaluate.data or 'those held out'}"


def needs(config: RunConfig) -> list[str]:
    """What has to be there before `config` can run; nothing where it makes its own."""
    models = {"model": config.model, "teacher": config.teacher}
    paths = [(name, model.path) for name, model in models.items() if model]
    paths += [("data", file) for file in config.data.files]
    paths += [("problems", config.evaluate.data)] if config.evaluate and config.evaluate.data else []
    first = needs(config.start) if config.start else []
    named = [f"{name} {path}" for name, path in paths if not path.startswith("{run}")]
    return list(dict.fromkeys([*first, *named]))
