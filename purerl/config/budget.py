"""The check of `max_tokens_per_microbatch`: a micro-batch has room for the longest row that a run may sample."""

from __future__ import annotations

from collections.abc import Mapping

from purerl.config.requirements import ModelRole
from purerl.errors import ConfigError

__all__ = ["check_budgets"]

_NAME = "max_tokens_per_microbatch"


def check_budgets(models: Mapping[str, ModelRole], *, prompt: int | None, completion: int) -> None:
    """Refuse a trainer whose micro-batches have fewer tokens than a row of the run may have.

    Such a row would be a micro-batch of its own, and need more memory than the setting allows. What a row may have is
    known of one turn: `prompt`, which is `data.max_prompt_tokens`, or 1 if it is not set, and `completion`, which is
    `rollout.max_tokens`. Rows that are not sampled, and later turns of an episode, are not counted.

    Raises: ConfigError.
    """
    longest, of_prompt = (prompt or 1) + completion, prompt or "at least 1"
    for role in models.values():
        trainer = role.settings.trainer
        budget = getattr(trainer, _NAME, longest)
        if budget < longest:
            need = f"{longest} for the longest row: {of_prompt} of its prompt and rollout.max_tokens={completion}"
            others = "rollout.max_tokens" + " or data.max_prompt_tokens" * (prompt is not None)
            do = f"set it to {longest} or more, or lower {others}"
            raise ConfigError(f"{role.trainer_key}.{_NAME}", got=f"{budget} tokens", need=need, do=do)
