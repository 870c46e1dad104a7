"""Helpers: a tokenizer of every kind that the library `tokenizers` can build, trained on a few sentences."""

from __future__ import annotations

from functools import cache
from typing import Any

__all__ = ["KINDS", "tokenizer_of"]

_TEXTS = [
    "2+3=5 and 12*3=36.\n\nThe sky is blue, isn't it?\n",
    "a b ab abc  aab 1 2 3 23 235\n",
    "é ü 东京 \t playing played <s> user: assistant:",
    "\n\n",
    "b\n\nc",
] * 4
_SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]


def _models() -> dict[str, Any]:
    """Functions that make a model and its trainer."""
    from tokenizers import models, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bytes_ = [f"<0x{k:02X}>" for k in range(256)]
    known: dict[str, Any] = {"special_tokens": _SPECIAL, "show_progress": False}
    return {
        "bpe": lambda: (models.BPE(unk_token="<unk>"), trainers.BpeTrainer(vocab_size=220, **known)),
        "bytes": lambda: (models.BPE(), trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, **known)),
        "fallback": lambda: (
            models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True),
            trainers.BpeTrainer(vocab_size=420, **{**known, "special_tokens": _SPECIAL + bytes_}),
        ),
        "unigram": lambda: (models.Unigram(), trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", **known)),
        "wordpiece": lambda: (models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer(vocab_size=220, **known)),
        "wordlevel": lambda: (models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer(vocab_size=220, **known)),
    }


def _splits() -> dict[str, Any]:
    """Functions that make a normalizer, a pre-tokenizer and a decoder, or None."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    def metaspace(scheme: Any, *, split: bool = True) -> Any:
        options: dict[str, Any] = {"prepend_scheme": scheme, "split": split}
        return lambda: (None, pre_tokenizers.Metaspace(**options), decoders.Metaspace(**options))

    def byte_level(*before: Any, first: bool = False, normalizer: Any = None) -> Any:
        parts = [*before, pre_tokenizers.ByteLevel(add_prefix_space=first)]
        return lambda: (normalizer, pre_tokenizers.Sequence(parts), decoders.ByteLevel())

    to_space, to_text = decoders.Replace("▁", " "), [decoders.ByteFallback(), decoders.Fuse()]
    from_space, prepend = normalizers.Replace(" ", "▁"), normalizers.Prepend("▁")
    bert = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    return {
        "byte-level": byte_level(),
        "byte-level, space first": byte_level(first=True),
        "digits": byte_level(pre_tokenizers.Digits(individual_digits=True), normalizer=normalizers.NFC()),
        "metaspace always": metaspace("always"),
        "metaspace first": metaspace("first"),
        "metaspace never": metaspace("never"),
        "metaspace, one word": metaspace("first", split=False),
        "prepend": lambda: (
            normalizers.Sequence([prepend, from_space]),
            None,
            decoders.Sequence([to_space, *to_text, decoders.Strip(" ", 1, 0)]),
        ),
        "replace": lambda: (from_space, None, decoders.Sequence([to_space, *to_text])),
        "bert": lambda: (*bert, decoders.WordPiece(cleanup=False)),
        "characters": lambda: (None, pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"), decoders.Fuse()),
    }


KINDS = (
    ("bytes", "byte-level"), ("bytes", "byte-level, space first"), ("bytes", "digits"), ("bpe", "metaspace always"),
    ("bpe", "metaspace first"), ("bpe", "metaspace never"), ("fallback", "prepend"), ("fallback", "replace"),
    ("fallback", "metaspace, one word"), ("unigram", "metaspace always"), ("unigram", "metaspace first"),
    ("unigram", "metaspace, one word"), ("unigram", "byte-level"), ("wordpiece", "bert"), ("wordlevel", "characters"),
)  # fmt: skip
"""The model, and how text is split before it."""


@cache
def _trained(model: str, split: str) -> str:
    from tokenizers import Tokenizer

    made, trainer = _models()[model]()
    backend = Tokenizer(made)
    normalizer, pre_tokenizer, decoder = _splits()[split]()
    for name, part in (("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer), ("decoder", decoder)):
        if part is not None:
            setattr(backend, name, part)
    backend.train_from_iterator(_TEXTS, trainer)
    return backend.to_str()


@cache
def tokenizer_of(model: str, split: str, added: str = "", template: str | None = None) -> Any:
    """The tokenizer of this kind. `added` is what it adds to a text: "bos", "eos", "both", or nothing."""
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(_trained(model, split))
    first, last = "<s> " * (added in ("bos", "both")), " </s>" * (added in ("eos", "both"))
    if added:
        ids = [(token, backend.token_to_id(token)) for token in ("<s>", "</s>")]
        backend.post_processor = TemplateProcessing(single=f"{first}$A{last}", special_tokens=ids)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>",
        chat_template=template, clean_up_tokenization_spaces=False,
    )  # fmt: skip
