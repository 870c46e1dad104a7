"""A generator that writes given texts: in turn k of an episode the text k, and the last one from then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from purerl.models.tokenizer import load_tokenizer
from purerl.protocols import Capabilities, Completion, Request, Weights
from purerl.settings import Model, setting


@frozen
class Config:
    texts: tuple[str, ...] = setting("what it writes")


def build(config: Config, *, model: Model, seed: int) -> Scripted:
    return Scripted(config.texts, load_tokenizer(model))


class Scripted:
    capabilities = Capabilities(batch_invariant=True, seeded=True, in_process=True)

    def __init__(self, texts: Sequence[str], tokenizer: Any) -> None:
        self._tokenizer, end = tokenizer, tokenizer.eos_token
        self._texts = [tokenizer.encode(text + end, add_special_tokens=False) for text in texts]
        self._requests: list[Request] = []

    def submit(self, requests: Sequence[Request]) -> None:
        self._requests += requests

    def collect(self, timeout: float | None = None) -> list[Completion]:
        requests, self._requests = self._requests, []
        return [self._complete(request) for request in requests]

    def _complete(self, request: Request) -> Completion:
        turn = self._tokenizer.decode(request.tokens).count("<|im_start|>assistant") - 1
        text = self._texts[min(turn, len(self._texts) - 1)]
        tokens = text[: request.sampling.max_tokens]
        finish = "stop" if len(tokens) == len(text) else "length"
        return Completion(request.key, tokens, [-1.0] * len(tokens), [0] * len(tokens), finish)

    def cancel(self, keys: Sequence[str]) -> None: ...

    def load_weights(self, weights: Weights, *, version: int) -> None: ...

    def close(self) -> None: ...
