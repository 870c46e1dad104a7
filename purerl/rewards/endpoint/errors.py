"""Errors of a request, and the numbers that are counted."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import asdict, define

__all__ = ["EndpointError", "Meter", "UnusableAnswerError"]


class EndpointError(Exception):
    """There is no answer that can be used. `totals` are the numbers of a `Meter` that was counting."""

    def __init__(self, message: str, totals: Mapping[str, float] | None = None):
        super().__init__(message)
        self.totals = dict(totals or {})


class UnusableAnswerError(Exception):
    """The server has answered, and what it says cannot be used, such as a text without a score."""


@define
class Meter:
    """Counts what the requests for one completion need.

    requests           attempts that were sent
    retries            those of them that follow another attempt
    cached             answers that were in the cache
    prompt_tokens      tokens of prompts, as the server has counted them
    completion_tokens  tokens of answers, likewise
    """

    requests: int = 0
    retries: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def totals(self, *, input_price: float, output_price: float) -> dict[str, float]:
        """All numbers, and their cost; prices are those of a million tokens.

        >>> Meter(requests=1, prompt_tokens=2_000_000).totals(input_price=0.5, output_price=1.0)["cost"]
        1.0
        """
        cost = (self.prompt_tokens * input_price + self.completion_tokens * output_price) / 1e6
        return {**{name: float(number) for name, number in asdict(self).items()}, "cost": cost}
