"""Classifiers whose scores are rewards, for runs in tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from attrs import evolve

from purerl.backends.fake.model import BIGRAM, export_weights
from purerl.config.schema import Role, RunConfig
from purerl.recipes.addition import character_tokenizer
from purerl.rewards.settings import Reward
from tests.data.made import HEADERS, tokenizer


def write_scores(
    folder: Path,
    scores: Callable[[str], float] = lambda character: character in "02468",
    *,
    template: str | None = None,
) -> str:
    """Write a fake classifier: the score of a text is a function of its last character, and -1 if that is no digit."""
    own = character_tokenizer()
    own.eos_token, own.chat_template = None, template  # of plain text, the EOS token would be the last one
    own.save_pretrained(folder)
    characters = own.convert_ids_to_tokens(range(14))
    weight = torch.tensor([scores(c) if c.isdecimal() else -1.0 for c in characters])
    export_weights({BIGRAM: torch.zeros(14, 14), "score.weight": weight}, folder)
    return str(folder)


def parity(text: str) -> float:
    return float(text[-1] in "02468") if text[-1:].isdecimal() else -1.0


def with_models(
    config: RunConfig, settings: Mapping[str, Any] = MappingProxyType({}), weight: float = 1.0, **models: str
) -> RunConfig:
    """`config` with models whose scores are rewards of this weight, by name; `settings` are those of each role."""
    roles = {name: Role(model=path, **settings) for name, path in models.items()}
    rewards = [Reward(role=name, weight=weight) for name in models]
    return evolve(config, roles={"rewards": roles}, rewards=(*config.rewards, *rewards))


def write_classifier(
    folder: Path, template: str | None = HEADERS, own: Any = None, kind: str = "Sequence", **changes: Any
) -> str:
    """Write a random classifier with a chat template, and a tokenizer, that are not the policy's."""
    import transformers

    own = own or tokenizer(template)
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, head_dim=8)
    settings = dict(num_key_value_heads=1, num_labels=1, initializer_range=0.5, max_position_embeddings=256)
    settings |= {"vocab_size": len(own), "pad_token_id": own.pad_token_id, **sizes, **changes}
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**settings)
    getattr(transformers, f"Qwen3For{kind}Classification")(config).save_pretrained(folder)
    own.save_pretrained(folder)
    return str(folder)
