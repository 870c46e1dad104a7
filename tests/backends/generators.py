"""Builders, weights and reference implementations of the generators under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from purerl.backends.fake import generator as fake
from purerl.backends.fake.model import BIGRAM, text_of
from purerl.backends.hf.generator import Config, build
from purerl.backends.hf.sampling.engine import HFGenerator
from purerl.settings import Model
from tests.backends.tiny import VOCAB_SIZE, write_model


def fake_generator() -> fake.FakeGenerator:
    return fake.build(fake.Config(vocab_size=VOCAB_SIZE), model=Model("nowhere"), seed=3)


def fake_weights(seed: int) -> dict[str, Tensor]:
    """Peaked: logits with a standard deviation of 2."""
    rng = torch.Generator().manual_seed(seed)
    return {BIGRAM: 2.0 * torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=rng)}


def fake_score(weights: Mapping[str, Tensor], tokens: Sequence[int], temperature: float) -> list[float]:
    logp = (weights[BIGRAM].double() / (temperature or 1.0)).log_softmax(-1)
    return [0.0, *(float(logp[before, token]) for before, token in pairwise(tokens))]


def fake_logits(weights: Mapping[str, Tensor], tokens: Sequence[int]) -> list[float]:
    return weights[BIGRAM][tokens[-1]].tolist()


FAKE = dict(
    weights=[fake_weights(0), fake_weights(1)],
    score=fake_score,
    vocabulary=VOCAB_SIZE,
    text=text_of,
    logits=fake_logits,
)
"""The arguments of `check_generator` for the fake generator."""


def tiny_model(directory: Path, family: str = "qwen3", letters: str = "", **changes: Any) -> Model:
    """A random model of `family` with a tokenizer of one letter per token; by default "a", "b", ..."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    path = write_model(directory, family, **changes)
    letters = letters or text_of(range(VOCAB_SIZE))
    tokenizer = Tokenizer(models.WordLevel({text: token for token, text in enumerate(letters)}, unk_token=letters[0]))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    return Model(path, attention="eager" if family == "gemma2" else "sdpa")


def make_generator(model: Model, **settings: Any) -> HFGenerator:
    return build(Config(device="cpu", **settings), model=model, seed=0)


def _reference(model: Model) -> Callable[[Mapping[str, Tensor], Sequence[int]], Tensor]:
    """The logits [time, vocab] of a plain forward pass of the whole sequence, in float64, without a cache."""
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float64, attn_implementation="eager").eval()

    loaded = []

    @torch.no_grad()
    def forward(weights: Mapping[str, Tensor], tokens: Sequence[int]) -> Tensor:
        if loaded != [id(weights)]:
            plain.load_state_dict(weights)
            loaded[:] = [id(weights)]
        return plain(torch.tensor([list(tokens)]), use_cache=False).logits[0]

    return forward


def reference_score(model: Model) -> Callable[[Mapping[str, Tensor], Sequence[int], float], list[float]]:
    forward = _reference(model)

    def score(weights: Mapping[str, Tensor], tokens: Sequence[int], temperature: float) -> list[float]:
        logp = (forward(weights, tokens) / (temperature or 1.0)).log_softmax(-1)
        return [0.0, *logp[:-1].gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()]

    return score


def reference_logits(model: Model) -> Callable[[Mapping[str, Tensor], Sequence[int]], list[float]]:
    forward = _reference(model)
    return lambda weights, tokens: forward(weights, tokens)[-1].tolist()


def weights_in_files(model: Model) -> dict[str, Tensor]:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float64).state_dict()


def suite_arguments(first: Model, second: Model) -> dict[str, Any]:
    """The arguments of `check_generator` for an engine that samples from `first`, and gets the weights of both."""
    return {
        "weights": [weights_in_files(first), weights_in_files(second)],
        "score": reference_score(first),
        "vocabulary": VOCAB_SIZE,
        "text": text_of,
        "logits": reference_logits(first),
        "samples": 400,
    }
