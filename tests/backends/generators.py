"""What the tests of generators share: how each is made, its weights, and its oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from purerl.backends.fake import generator as fake
from purerl.backends.fake.model import BIGRAM, text_of
from purerl.backends.hf import generator as embedded
from purerl.protocols import Model
from tests.backends.tiny import VOCABULARY, write_model


def fake_generator() -> fake.FakeGenerator:
    return fake.build(fake.Config(vocabulary=VOCABULARY), model=Model("nowhere"), seed=3)


def fake_weights(seed: int) -> dict[str, Tensor]:
    """Peaked: logits with a standard deviation of 2."""
    draw = torch.Generator().manual_seed(seed)
    return {BIGRAM: 2.0 * torch.randn(VOCABULARY, VOCABULARY, generator=draw)}


def fake_score(weights: Mapping[str, Tensor], tokens: Sequence[int], temperature: float) -> list[float]:
    logp = (weights[BIGRAM].double() / (temperature or 1.0)).log_softmax(-1)
    return [0.0, *(float(logp[one, two]) for one, two in pairwise(tokens))]


FAKE = dict(weights=[fake_weights(0), fake_weights(1)], score=fake_score, vocabulary=VOCABULARY, text=text_of)
"""What `check_generator` has to know about the fake."""


def tiny_model(folder: Path, family: str = "qwen3", **changes: Any) -> Model:
    """A random model of `family` with a tokenizer of one letter per token."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    path = write_model(folder, family, **changes)
    tokenizer = Tokenizer(models.WordLevel({text_of([number]): number for number in range(VOCABULARY)}))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    return Model(path, attention="eager" if family == "gemma2" else "sdpa")


def made(model: Model, **settings: Any) -> embedded.EmbeddedGenerator:
    return embedded.build(embedded.Config(device="cpu", **settings), model=model, seed=0)


def oracle(model: Model) -> Callable[[Mapping[str, Tensor], Sequence[int], float], list[float]]:
    """A plain forward pass of the whole sequence, in float64, without a cache."""
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float64, attn_implementation="eager").eval()

    loaded = []

    @torch.no_grad()
    def score(weights: Mapping[str, Tensor], tokens: Sequence[int], temperature: float) -> list[float]:
        if loaded != [id(weights)]:
            plain.load_state_dict(weights)
            loaded[:] = [id(weights)]
        logits = plain(torch.tensor([list(tokens)]), use_cache=False).logits[0] / (temperature or 1.0)
        return [0.0, *logits.log_softmax(-1)[:-1].gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()]

    return score


def weights_of(model: Model) -> dict[str, Tensor]:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float64).state_dict()
