"""From requests to texts: what training, its greedy baselines and evaluation have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from purerl.errors import EngineError
from purerl.protocols import Completion, Generator, Heard, Request, generate, unheard

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["complete"]


def complete(
    generator: Generator,
    tokenizer: PreTrainedTokenizerBase,
    requests: Sequence[Request],
    heard: Heard = unheard,
) -> list[tuple[Completion, str]]:
    """The completion of each of `requests`, and its text. Raises EngineError where `generator` failed on one."""
    completions = generate(generator, requests, heard)
    for completion in completions:
        if completion.finish == "error":
            do = "see the generator's own messages; a run resumes"
            raise EngineError(f"the generator failed on request {completion.key!r}", got=completion.error, do=do)
    texts = tokenizer.batch_decode([list(c.tokens) for c in completions], skip_special_tokens=True)
    return list(zip(completions, texts, strict=True))
