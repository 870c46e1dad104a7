"""The check of the budget of micro-batches: a micro-batch has room for the longest row that a run may sample."""

from __future__ import annotations

from collections.abc import Mapping

from purerl.backends.training import Budget
from purerl.config.requirements import ModelRole
from purerl.errors import ConfigError

__all__ = ["check_budgets"]


def check_budgets(models: Mapping[str, ModelRole], *, prompt: int | None, completion: int) -> None:
    """Refuse a trainer whose micro-batches have fewer tokens than a row of the run may have.

    Such a row would be a micro-batch of its own, and need more memory than the setting allows. What a row may have is
    known of one turn: `prompt`, which is `data.max_prompt_tokens`, or 1 if it is not set, and `completion`, which is
    `rollout.max_tokens`. Rows that are not sampled, and later turns of an episode, are not counted. A budget in rows
    has room for any row.

    Raises: ConfigError.
    """
    longest, of_prompt = (prompt or 1) + completion, prompt or "at least 1"
    for role in models.values():
        trainer = role.settings.trainer
        budget: Budget | None = getattr(trainer, "budget", None)
        if budget is not None and budget.counted == "tokens" and budget.maximum < longest:
            need = f"{longest} for the longest row: {of_prompt} of its prompt and rollout.max_tokens={completion}"
            others = "rollout.max_tokens" + " or data.max_prompt_tokens" * (prompt is not None)
            key, do = f"{role.trainer_key}.max_tokens_per_microbatch", f"set it to {longest} or more, or lower {others}"
            raise ConfigError(key, got=f"{budget.maximum} tokens", need=need, do=do)
