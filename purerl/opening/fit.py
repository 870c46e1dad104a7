"""The lengths of the rows that a run draws, and what its engines can read."""

from __future__ import annotations

from collections.abc import Iterable

from purerl.config.schema import RunConfig
from purerl.data.examples import indices_of_draws
from purerl.data.limits import (
    check_answer_lengths,
    check_lengths,
    check_mismatched_lengths,
    check_problem_lengths,
    min_limit,
)
from purerl.data.open import RunData
from purerl.protocols import Capabilities

__all__ = ["check_row_lengths"]


def check_row_lengths(
    config: RunConfig,
    data: RunData,
    *,
    max_steps: int,
    trainers: Iterable[Capabilities],
    generator: Capabilities | None,
) -> None:
    """Refuse rows that are too long, and prompts that leave no room for a completion. Raises DataError."""
    rollout, max_prompt_tokens, draws = config.rollout, config.data.max_prompt_tokens, max_steps * config.batch_size
    limit = min_limit(*trainers, *([generator] if rollout and generator else []))
    if limit is not None and rollout is None:
        is_labeled = bool(data.examples.example_format.label)
        check = check_mismatched_lengths if is_labeled else check_answer_lengths
        # The mismatched answer of the last draw is that of one of the next two.
        check(data.chat, data.examples, _drawn(data, config.seed, draws + 2 * is_labeled), limit=limit)
        if data.validation is not None:
            check_answer_lengths(data.chat, data.validation, data.validation.indices, limit=limit)
    elif limit is not None and (max_prompt_tokens is None or max_prompt_tokens + rollout.max_tokens > limit):
        room, lower = limit - rollout.max_tokens, "lower rollout.max_tokens"
        do = f"set data.max_prompt_tokens to {room} to leave such rows out, or {lower}" if room > 0 else lower
        indices = _drawn(data, config.seed, draws * (1 + rollout.max_resample_rounds))
        check_lengths(data.chat, data.examples, indices, new_tokens=rollout.max_tokens, limit=limit, do=do)
    if config.evaluate is not None and generator is not None:
        limit, new_tokens = generator.max_sequence_length, config.evaluate.max_tokens
        check_problem_lengths(data.chat, data.problems, new_tokens=new_tokens, limit=limit)


def _drawn(data: RunData, seed: int, draws: int) -> set[int]:
    """The indices of the rows that the first `draws` draws may use."""
    examples = data.examples
    return set(examples.indices if draws >= examples.num_rows else indices_of_draws(examples, seed, 0, draws))
