"""Small models with random weights, and tokenizers with a few tokens, for tasks that a model learns on a CPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["VISION_TOKENS", "word_tokenizer", "write_small_model", "write_small_vision_model"]

_SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 256,
}
_PATCHES = {"patch_size": 4, "temporal_patch_size": 2}
VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
"""The special tokens of `write_small_vision_model`."""

_MERGED = 2  # patches along height and width that are one feature
_MAX_PIXELS = 128 * 128


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
    folder: Path, tokenizer: PreTrainedTokenizerFast, *, seed: int, max_length: int, **shape: float
) -> None:
    """Write a Qwen3 model of two layers with random weights from `seed`, and its `tokenizer`, into `folder`.

    It has about 150,000 parameters, and takes sequences of at most `max_length` tokens. `shape` replaces numbers of its
    configuration, such as `hidden_size` and `initializer_range`.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**_SIZES | shape, **_text(tokenizer, max_length))
    _write(Qwen3ForCausalLM, config, folder, tokenizer, seed)


def write_small_vision_model(folder: Path, tokenizer: PreTrainedTokenizerFast, *, seed: int, max_length: int) -> None:
    """Write a Qwen2-VL model with random weights from `seed`, its `tokenizer` and its processor, into `folder`.

    It has about 170,000 parameters. An image has a token for each square of 8 x 8 pixels. `tokenizer` has the special
    tokens of `VISION_TOKENS`, and takes sequences of at most `max_length` tokens.
    """
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    names = {"vision_start_token_id": 0, "vision_end_token_id": 1, "image_token_id": 2, "video_token_id": 3}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    text = _SIZES | {"head_dim": 16, "rope_parameters": rope} | _text(tokenizer, max_length)
    vision = {"depth": 1, "embed_dim": 32, "num_heads": 2, "mlp_ratio": 4, "hidden_size": _SIZES["hidden_size"]}
    std = _SIZES["hidden_size"] ** -0.5  # with the default, the vision tower starts to learn much later
    scale = {"initializer_range": std}
    config = Qwen2VLConfig(
        text_config=text | scale,
        vision_config=vision | scale | _PATCHES | {"spatial_merge_size": _MERGED},
        tie_word_embeddings=False,
        **scale,
        **{name: tokenizer.convert_tokens_to_ids(VISION_TOKENS[index]) for name, index in names.items()},
    )
    _write(Qwen2VLForConditionalGeneration, config, folder, tokenizer, seed)
    pixels = {"shortest_edge": 64, "longest_edge": _MAX_PIXELS}
    processor = {"image_processor_type": "Qwen2VLImageProcessor", "size": pixels, "merge_size": _MERGED, **_PATCHES}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


def _text(tokenizer: PreTrainedTokenizerFast, max_length: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": max_length,
        "tie_word_embeddings": False,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }


def _write(cls: Any, config: Any, folder: Path, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    import torch

    from purerl.backends.hf.decoder.loading import no_progress_bars

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with no_progress_bars():
            cls(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
