"""Greedy answers of the real model: those of transformers, before training, after it, and in bfloat16."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from purerl.backends.hf import generator
from purerl.protocols import Request, Sampling, generate
from purerl.recipes import smollm2
from purerl.settings import Model
from tests.real import plain

pytestmark = pytest.mark.real

QUESTIONS = ("What is the capital of France?", "Count to five.", "Hello!", "Write a word that rhymes with cat.")
TOKENS = 20


def _prompts(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    return [plain.ids_of(tokenizer, [{"role": "user", "content": question}]) for question in QUESTIONS]


def _sample(model: Path, prompts: list[list[int]], dtype: str = "float32") -> list[list[int]]:
    """Greedy completions, which are decoded together."""
    requests = [
        Request(str(number), prompt, Sampling(0.0, TOKENS, stop_tokens=(2,)), seed=0)
        for number, prompt in enumerate(prompts)
    ]
    with closing(generator.build(generator.Config(), model=Model(str(model), dtype=dtype), seed=0)) as engine:
        return [[*completion.tokens] for completion in generate(engine, requests)]


def test_the_model_answers(model: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    [answer, *_] = _sample(model, _prompts(tokenizer)[:1])
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
    assert smollm2.directory() == model


def test_greedy_sampling_equals_transformers(model: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    prompts = _prompts(tokenizer)
    assert _sample(model, prompts) == plain.greedy(plain.load(model), prompts, max_tokens=TOKENS)


def test_in_bfloat16_the_model_answers_too(model: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """One prompt alone: in a batch, rounding could decide between two tokens that are nearly as likely."""
    prompts = _prompts(tokenizer)[:1]
    found = _sample(model, prompts, dtype="bfloat16")
    assert found == plain.greedy(plain.load(model, dtype=torch.bfloat16), prompts, max_tokens=TOKENS)
    assert found == _sample(model, prompts)
