"""Whether all prompts that a run will draw fit into its engines, which is asked before the first step.

A prompt that does not would end the run when it is drawn, and again whenever the run goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from purerl.data.chat import Chat
from purerl.data.examples import DataSet, indices_of_draws, iterate_chunks, prompts_at, row_name, rows_at
from purerl.errors import DataError
from purerl.loop.run import Run

__all__ = ["check_lengths", "check_problems", "longest_of"]


def longest_of(*engines: Any) -> int | None:
    """How many tokens a sequence may have in all `engines`; None where none of them says."""
    return min((one for engine in engines if (one := getattr(engine, "longest", None)) is not None), default=None)


def check_lengths(run: Run) -> None:
    """Refuse prompts to sample from that leave no room for the completion, and problems likewise. Raises DataError."""
    rollout, evaluate, data = run.config.rollout, run.config.evaluate, run.data
    if rollout is not None:
        longest, most = longest_of(run.generator, *run.trainers.values()), run.config.data.max_prompt_tokens
        if longest is not None and (most is None or most + rollout.max_tokens > longest):
            room, lower = longest - rollout.max_tokens, "lower rollout.max_tokens"
            do = f"set data.max_prompt_tokens to {room} to leave such rows out, or {lower}" if room > 0 else lower
            _check(data.chat, data.examples, _to_be_drawn(run), new=rollout.max_tokens, longest=longest, do=do)
    if evaluate is not None:
        check_problems(data.chat, data.problems, new=evaluate.max_tokens, longest=longest_of(run.generator))


def check_problems(chat: Chat, problems: Mapping[str, DataSet], *, new: int, longest: int | None) -> None:
    """Refuse problems whose prompt and `new` tokens are more than `longest`. Raises DataError."""
    if longest is not None:
        for data in problems.values():
            do = "leave the row out, or lower max_tokens of the evaluation"
            _check(chat, data, data.indices, new=new, longest=longest, do=do)


def _to_be_drawn(run: Run) -> Collection[int]:
    """Indices of what the run can draw."""
    data, config = run.data.examples, run.config
    draws = config.max_steps * config.batch_size * (1 + config.rollout.max_resample_rounds)
    return data.indices if draws >= len(data.indices) else set(indices_of_draws(data, config.seed, 0, draws))


def _check(chat: Chat, data: DataSet, indices: Iterable[int], *, new: int, longest: int, do: str) -> None:
    for chunk in iterate_chunks(sorted(indices)):
        for index, prompt in zip(chunk, prompts_at(chat, data, chunk, rows_at(data, chunk)), strict=True):
            if len(prompt.tokens) + new > longest:
                got = f"a prompt of {len(prompt.tokens):,} tokens, and up to {new:,} new ones"
                raise DataError(row_name(data, index), got=got, need=f"at most {longest:,} together", do=do)
