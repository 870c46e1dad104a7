"""A generator that writes given texts: in turn k of an episode the text k, and the last one from then on.

Their log-probabilities are those of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import frozen
from transformers import AutoModelForCausalLM

from purerl.models.tokenizer import load_tokenizer
from purerl.protocols import Capabilities, Completion, Request, Weights
from purerl.settings import Model, setting


@frozen
class Config:
    texts: tuple[str, ...] = setting("what it writes")


def build(config: Config, *, model: Model, seed: int) -> Scripted:
    causal = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32)
    return Scripted(config.texts, load_tokenizer(model), causal)


class Scripted:
    capabilities = Capabilities(batch_invariant=True, seeded=True, in_process=True)

    def __init__(self, texts: Sequence[str], tokenizer: Any, causal: Any) -> None:
        self._tokenizer, self._causal, end = tokenizer, causal, tokenizer.eos_token
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
        return Completion(request.key, tokens, self._logp(request, tokens), [0] * len(tokens), finish)

    @torch.no_grad()
    def _logp(self, request: Request, tokens: Sequence[int]) -> list[float]:
        start = len(request.tokens)
        logits = self._causal(torch.tensor([[*request.tokens, *tokens]])).logits[0, start - 1 : -1]
        logp = (logits / (request.sampling.temperature or 1.0)).log_softmax(-1)
        return logp.gather(-1, torch.tensor(tokens)[:, None])[:, 0].tolist()

    def cancel(self, keys: Sequence[str]) -> None: ...

    def load_weights(self, weights: Weights, *, version: int) -> None:
        self._causal.load_state_dict(dict(weights), strict=False)

    def close(self) -> None: ...
