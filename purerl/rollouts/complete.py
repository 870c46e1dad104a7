"""From requests to texts: shared by training, its greedy baseline, and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from purerl.errors import EngineError
from purerl.protocols import Completion, Generator, Request, generate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["complete"]


def complete(
    generator: Generator, tokenizer: PreTrainedTokenizerBase, requests: Sequence[Request]
) -> list[tuple[Completion, str]]:
    """The completion of each request, and its text. Raises EngineError if `generator` failed on a request."""
    completions = generate(generator, requests)
    for completion in completions:
        if completion.finish == "error":
            what = f"the generator failed on request {completion.key!r}"
            raise EngineError(what, got=completion.error, do="see the generator's log; the run can be resumed")
    texts = tokenizer.batch_decode([list(c.tokens) for c in completions], skip_special_tokens=True)
    return list(zip(completions, texts, strict=True))
