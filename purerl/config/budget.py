"""The check of `max_tokens_per_microbatch`: a micro-batch has room for the longest row that a run may sample."""

from __future__ import annotations

from purerl.algos.algebra import Algorithm
from purerl.config.roles import model_roles, trainer_key
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError

__all__ = ["check_budgets"]

_NAME = "max_tokens_per_microbatch"


def check_budgets(config: RunConfig, algorithm: Algorithm) -> None:
    """Refuse a trainer whose micro-batches have fewer tokens than a row of the run may have.

    Such a row would be a micro-batch of its own, and need more memory than the setting allows. What a row may have is
    known of one turn: `data.max_prompt_tokens`, or 1 if it is not set, and `rollout.max_tokens`. Rows that are not
    sampled, and later turns of an episode, are not counted.

    Raises: ConfigError.
    """
    if config.rollout is None:
        return
    prompt, completion = config.data.max_prompt_tokens, config.rollout.max_tokens
    longest, of_prompt = (prompt or 1) + completion, prompt or "at least 1"
    for name, role in model_roles(config, algorithm).items():
        trainer = role.settings.trainer
        budget = getattr(trainer, _NAME, longest)
        if budget < longest:
            need = f"{longest} for the longest row: {of_prompt} of its prompt and rollout.max_tokens={completion}"
            others = "rollout.max_tokens" + " or data.max_prompt_tokens" * (prompt is not None)
            do = f"set it to {longest} or more, or lower {others}"
            raise ConfigError(f"{trainer_key(config, name, trainer)}.{_NAME}", got=f"{budget} tokens", need=need, do=do)
