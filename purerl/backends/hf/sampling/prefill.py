"""Reading the prompts of requests that are admitted to the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from purerl.backends.hf.decoder.backbone import decoder_of
from purerl.backends.hf.decoder.images import ImageReader, image_inputs
from purerl.backends.hf.model.past_cache import cache_argument
from purerl.backends.hf.sampling.cache import ContinuedCache, PrefillCache
from purerl.backends.hf.sampling.expert_recorder import RouteRecorder
from purerl.backends.hf.sampling.prefix_cache import CachedSequence, PrefixCache
from purerl.backends.hf.sampling.table import Table
from purerl.backends.requests import PendingRequest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Prompt", "batches", "prompt_of", "read"]


class Prompt(NamedTuple):
    """The tokens that are read before the first decoding step: all but the last. `cached` has the first `start`.

    `image` has the content id of the image of each token, 0 for text; it is empty without images.
    """

    tokens: tuple[int, ...]
    start: int = 0
    cached: CachedSequence | None = None
    image: tuple[int, ...] = ()

    @property
    def remaining(self) -> int:
        """Tokens that have to be read."""
        return len(self.tokens) - self.start


def prompt_of(pending: PendingRequest, prefixes: PrefixCache) -> Prompt:
    """The prompt of `pending`. If it continues a sequence in `prefixes`, at least one token is read nevertheless."""
    tokens, image = (*pending.request.tokens, *pending.tokens)[:-1], pending.request.image
    image = (*image, *[0] * (len(tokens) - len(image)))[: len(tokens)] if any(image) else ()
    cached = prefixes.find(pending.content)
    return Prompt(tokens, min(cached.length, len(tokens) - 1) if cached else 0, cached, image)


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


def read(
    model: PreTrainedModel,
    table: Table,
    prefixes: PrefixCache,
    prompts: Sequence[Prompt],
    images: ImageReader | None = None,
    routes: RouteRecorder | None = None,
) -> tuple[slice, list[int]]:
    """Read `prompts` into new rows of the table. Equal prompts are read once. `routes` records the experts of tokens.

    Either all of them continue a kept sequence, or none does.

    Returns these rows, and for each the position of its next token minus the number of tokens that were read: not 0
    only for some models after `images`.
    """
    width, shifts = max(len(prompt.tokens) for prompt in prompts), [0] * len(prompts)
    rows = table.add_rows(len(prompts), before=width)
    if width:
        arguments = (_continued if prompts[0].start else _new)(table, prefixes, rows, prompts, model.device)
        if images is not None and any(prompt.image for prompt in prompts):
            shifts = _add_images(arguments, model, images, prompts)
        decoder, cache = decoder_of(model), arguments.pop("cache")
        recording = {} if routes is None else routes.argument()
        decoder(**cache_argument(decoder, cache), use_cache=True, **arguments, **recording)
        if routes is not None:
            routes.store(cache, rows=len(_numbered(prompts)))
    return rows, shifts


def _new(
    table: Table, prefixes: PrefixCache, rows: slice, prompts: Sequence[Prompt], device: torch.device
) -> dict[str, Any]:
    """The cache, and the arguments of the model that reads whole prompts."""
    numbers = _numbered(prompts)
    width = max(len(prompt.tokens) for prompt in prompts)
    sources = torch.tensor([numbers[prompt] for prompt in prompts], device=device)
    lengths = torch.tensor([len(prompt.tokens) for prompt in prompts], device=device)
    block = torch.tensor([[*prompt.tokens, *[0] * (width - len(prompt.tokens))] for prompt in numbers], device=device)
    return {"input_ids": block, "cache": PrefillCache(table, rows, sources, lengths, width=width)}


def _continued(
    table: Table, prefixes: PrefixCache, rows: slice, prompts: Sequence[Prompt], device: torch.device
) -> dict[str, Any]:
    """The cache, and the arguments of the model that reads what follows kept sequences."""
    numbers = _numbered(prompts)
    width, new = max(len(prompt.tokens) for prompt in prompts), max(prompt.remaining for prompt in prompts)
    tensor = partial(torch.tensor, device=device)
    columns = torch.arange(width, device=device) - width
    starts = tensor([[prompt.start] for prompt in prompts])
    positions = columns + tensor([[len(prompt.tokens)] for prompt in prompts])
    slots = prefixes.slots([prompt.cached for prompt in prompts], positions.clamp(min=0).minimum(starts - 1))
    firsts = tensor([prompts.index(prompt) for prompt in numbers])
    cache = ContinuedCache(
        table,
        rows,
        tensor([numbers[prompt] for prompt in prompts]),
        firsts,
        (positions >= starts)[:, -new:],
        width=width,
        kept=partial(prefixes.read, slots=slots),
    )
    block = [[*[0] * (new - prompt.remaining), *prompt.tokens[prompt.start :]] for prompt in numbers]
    position = positions[firsts]
    return {
        "input_ids": tensor(block),
        "cache": cache,
        "attention_mask": position >= 0,
        "position_ids": position[:, -new:].clamp(min=0),
    }


def _add_images(
    arguments: dict[str, Any], model: PreTrainedModel, images: ImageReader, prompts: Sequence[Prompt]
) -> list[int]:
    """Replace the token ids in `arguments` by embeddings, and the positions. Returns the shift of `read`.

    Positions depend on the whole prompt. Only images of tokens that are read go through the vision tower.
    """
    numbers, tokens = _numbered(prompts), arguments.pop("input_ids").cpu()
    width, new = max(len(prompt.tokens) for prompt in numbers), tokens.shape[1]
    whole = images.rows(
        torch.tensor([_padded(prompt.tokens, width) for prompt in numbers]),
        torch.tensor([_padded(prompt.image, width) for prompt in numbers]),
    )
    lengths = torch.tensor([len(prompt.tokens) for prompt in numbers])
    shifts = (images.next_positions(whole, lengths) - lengths).tolist()
    if prompts[0].start:
        image = [
            [*[0] * (new - prompt.remaining), *_padded(prompt.image, len(prompt.tokens))[prompt.start :]]
            for prompt in numbers
        ]
        times, position = arguments["position_ids"].cpu(), whole.position
        whole = images.rows(tokens, torch.tensor(image))
        if position is not None:
            whole = whole._replace(position=position.gather(2, times.expand(3, -1, -1)))
    arguments |= image_inputs(model, tokens.to(model.device), whole.to(model.device))(lambda values: values)
    return [shifts[numbers[prompt]] for prompt in prompts]


def _padded(values: Sequence[int], width: int) -> list[int]:
    return [*values, *[0] * (width - len(values))]


def _numbered(prompts: Sequence[Prompt]) -> dict[Prompt, int]:
    """The different ones of `prompts`, with their numbers."""
    return {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
