"""The copies of the weights that a generator has: one in each server, actor or rank.

A mean over all copies can hide one with old weights. So the check before the first step asks each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from purerl.protocols import Completion, Generator, Request, collect_all

__all__ = ["SupportsCopies", "copies_of", "generate_on_copies"]


@runtime_checkable
class SupportsCopies(Protocol):
    """Optional methods of a generator that divides requests among several copies of the weights."""

    def copies(self) -> list[str]:
        """The names of the copies that this rank checks, at least one, for messages.

        Copies that ranks share are divided among these.
        """
        ...

    def submit_to(self, copy: int, requests: Sequence[Request]) -> None:
        """As `submit`, but the copy with this index in `copies` samples all of `requests`."""
        ...


def copies_of(generator: Generator) -> list[str]:
    """The names of the copies of `generator` that this rank checks. A single one has the name ""."""
    return generator.copies() if isinstance(generator, SupportsCopies) else [""]


def generate_on_copies(generator: Generator, requests: Sequence[Sequence[Request]]) -> list[list[Completion]]:
    """The completions of `requests[k]`, which copy k of `copies_of(generator)` samples.

    Raises: EngineError as `generate`.
    """
    for copy, own in enumerate(requests):
        if isinstance(generator, SupportsCopies):
            generator.submit_to(copy, own)
        else:
            generator.submit(own)
    completions = iter(collect_all(generator, [request for own in requests for request in own]))
    return [[next(completions) for _ in own] for own in requests]
