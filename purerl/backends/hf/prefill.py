"""Reading the prompts of requests that are admitted to the table.

This file imports transformers. It is imported when a generator is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from purerl.backends.hf.cache import PrefillCache
from purerl.backends.hf.prefix_cache import CachedSequence, PrefixCache
from purerl.backends.hf.table import Table
from purerl.backends.requests import PendingRequest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Prompt", "batches", "prompt_of", "read"]


class Prompt(NamedTuple):
    """The tokens that are read before the first decoding step: all but the last. `cached` has the first `start`."""

    tokens: tuple[int, ...]
    start: int = 0
    cached: CachedSequence | None = None

    @property
    def remaining(self) -> int:
        """Tokens that have to be read."""
        return len(self.tokens) - self.start


def prompt_of(pending: PendingRequest, prefixes: PrefixCache) -> Prompt:
    """What is read for `pending`. If it continues a sequence in `prefixes`, at least one token is read nevertheless."""
    tokens = (*pending.request.tokens, *pending.tokens)
    cached = prefixes.find(tokens)
    return Prompt(tokens[:-1], min(cached.length, len(tokens) - 2), cached) if cached else Prompt(tokens[:-1])


def batches(prompts: Sequence[Prompt], max_tokens: int) -> Iterator[list[int]]:
    """Indices of the prompts that are read in each forward pass, with at most `max_tokens` tokens, padding included.

    A prompt with more tokens is read alone. Prompts that continue a cached sequence are read after the others, and
    short ones first, because padding would make each as long as the longest.
    """
    new = [k for k, prompt in enumerate(prompts) if not prompt.start]
    continued = sorted((k for k, prompt in enumerate(prompts) if prompt.start), key=lambda k: prompts[k].remaining)
    for indices in (new, continued):
        batch, distinct, width = [], set[Prompt](), 0
        for k in indices:
            distinct.add(prompts[k])
            width = max(width, prompts[k].remaining)
            if batch and len(distinct) * width > max_tokens:
                yield batch
                batch, distinct, width = [], {prompts[k]}, prompts[k].remaining
            batch.append(k)
        if batch:
            yield batch


def read(model: PreTrainedModel, table: Table, prefixes: PrefixCache, prompts: Sequence[Prompt]) -> slice:
    """Read `prompts` into new rows of the table, and return these rows. Equal prompts are read once."""
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    past, read_width = max(prompt.start for prompt in numbers), max(prompt.remaining for prompt in numbers)
    width = max(len(prompt.tokens) for prompt in numbers)
    rows = table.add_rows(len(prompts), before=width)
    if not width:
        return rows
    tensor = partial(torch.tensor, device=model.device)
    slots = prefixes.slots([each.cached for each in numbers], [each.start for each in numbers])[0] if past else None
    cache = PrefillCache(
        table,
        rows,
        tensor([numbers[prompt] for prompt in prompts]),
        tensor([prompt.remaining for prompt in prompts]),
        past=past,
        width=width,
        prefix=partial(prefixes.read, slots=slots),
    )
    block = [[*tokens[start:], *[0] * (read_width - len(tokens) + start)] for tokens, start, _ in numbers]
    origin = torch.arange(past + read_width, device=model.device) - past + tensor([[start] for _, start, _ in numbers])
    positions = {"attention_mask": origin >= 0, "position_ids": origin[:, past:]} if past else {}
    model.base_model(input_ids=tensor(block), past_key_values=cache, use_cache=True, **positions)
    return rows
