"""Decoding of single tokens: the strings of all tokens concatenate to the text, and no character is split."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from purerl.data.pieces import decode_tokens
from purerl.report.decoding import load_decoder
from tests.report.sample_runs import make_byte_tokenizer, make_run


@pytest.mark.parametrize("text", ["plain", "naïve 中文 🙂", "👩‍👩‍👧 x", " leading and trailing ", "\x00\x1b[31m"])
def test_strings_of_byte_tokens_concatenate_to_the_text(text: str) -> None:
    tokenizer = make_byte_tokenizer()
    strings = decode_tokens(tokenizer.decode, tokenizer.encode(text).ids)
    assert len(strings) == len(text.encode())
    assert "".join(strings) == text


def test_character_of_several_tokens_belongs_to_the_last_one() -> None:
    tokenizer = make_byte_tokenizer()
    assert decode_tokens(tokenizer.decode, tokenizer.encode("a🙂b").ids) == ["a", "", "", "", "🙂", "b"]


def test_invalid_bytes_are_decoded_after_four_tokens() -> None:
    tokenizer = make_byte_tokenizer()
    continuation_bytes = tokenizer.encode("é").ids[1:] * 9
    strings = decode_tokens(tokenizer.decode, continuation_bytes)
    assert [string != "" for string in strings] == [False, False, False, True] * 2 + [True]


def test_space_before_a_word_is_kept_within_the_text() -> None:
    tokenizer = Tokenizer(models.WordLevel({"▁the": 0, "▁cat": 1, "s": 2}, unk_token="s"))
    tokenizer.decoder = decoders.Metaspace()
    assert tokenizer.decode([1]) == "cat"
    assert decode_tokens(tokenizer.decode, [0, 1, 2]) == ["the", " cat", "s"]


def test_token_without_a_tokenizer_is_its_id(tmp_path: Path) -> None:
    assert decode_tokens(load_decoder(tmp_path), [5, 17]) == ["[5]", "[17]"]


def test_special_tokens_are_decoded(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    ids = [*make_byte_tokenizer().encode("ok").ids, make_byte_tokenizer().token_to_id("<end>")]
    assert decode_tokens(load_decoder(run), ids) == ["o", "k", "<end>"]
