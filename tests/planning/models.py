"""Models with random weights whose activations are not negligible, and micro-batches of full rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from purerl.backends.hf.decoder.loading import no_progress_bars
from purerl.recipes.addition import character_tokenizer
from purerl.settings import Model
from purerl.system.memory_use import Workload

WORKLOAD = Workload(rows=16, group_size=4, minibatches=1, prompt_tokens=24, completion_tokens=40, ranks=1)


def write_model(folder: Path, family: str = "llama", **changes: Any) -> Model:
    """Write a model of `family` with about half a million parameters."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, Any] = dict(
        vocab_size=1024,
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=256,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(), no_progress_bars():
        AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes | changes)).save_pretrained(folder)
        character_tokenizer().save_pretrained(folder)
    return Model(str(folder))
