"""Small models with random weights, and tokenizers with a few tokens, for tasks that a model learns on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from purerl.backends.hf.model import no_progress_bars

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["word_tokenizer", "write_small_model"]


def word_tokenizer(words: Sequence[str], pattern: str = ".") -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each of `words`, and the special tokens ``<pad>`` and ``<eos>``.

    A text is split into the matches of the regular expression `pattern`, by default characters. A match that is none
    of `words` becomes ``<pad>``.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate(["<pad>", "<eos>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def write_small_model(
    folder: Path, tokenizer: PreTrainedTokenizerFast, *, seed: int, max_length: int, **shape: int
) -> None:
    """Write a Qwen3 model of two layers with random weights from `seed`, and its `tokenizer`, into `folder`.

    It has about 150,000 parameters, and takes sequences of at most `max_length` tokens. `shape` replaces sizes of its
    configuration, such as `hidden_size`.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 256,
    }
    config = Qwen3Config(
        **sizes | shape,
        vocab_size=len(tokenizer),
        max_position_embeddings=max_length,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with no_progress_bars():
            Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
