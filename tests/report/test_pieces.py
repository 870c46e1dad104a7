"""The text of each token: together they are the text of all, and no character is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from purerl.report.pieces import decoder, pieces
from tests.report.made import bytes_tokenizer, hand_made


@pytest.mark.parametrize("text", ["plain", "naïve 中文 🙂", "👩‍👩‍👧 x", " leading and trailing ", "\x00\x1b[31m"])
def test_the_pieces_of_bytes_are_the_text(text: str) -> None:
    tokenizer = bytes_tokenizer()
    found = pieces(tokenizer.decode, tokenizer.encode(text).ids)
    assert len(found) == len(text.encode())
    assert "".join(found) == text


def test_a_character_is_the_last_of_its_tokens() -> None:
    tokenizer = bytes_tokenizer()
    assert pieces(tokenizer.decode, tokenizer.encode("a🙂b").ids) == ["a", "", "", "", "🙂", "b"]


def test_bytes_that_are_no_text_end_after_four_tokens() -> None:
    stray = bytes_tokenizer().encode("é").ids[1:] * 9
    assert [piece != "" for piece in pieces(bytes_tokenizer().decode, stray)] == [False, False, False, True] * 2 + [
        True
    ]


def test_a_space_that_a_decoder_drops_at_the_beginning_is_kept_within() -> None:
    tokenizer = Tokenizer(models.WordLevel({"▁the": 0, "▁cat": 1, "s": 2}, unk_token="s"))
    tokenizer.decoder = decoders.Metaspace()
    assert tokenizer.decode([1]) == "cat"
    assert pieces(tokenizer.decode, [0, 1, 2]) == ["the", " cat", "s"]


def test_without_a_tokenizer_a_token_is_its_number(tmp_path: Path) -> None:
    assert pieces(decoder(tmp_path), [5, 17]) == ["[5]", "[17]"]


def test_the_run_brings_its_tokenizer_special_tokens_included(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run")
    ids = [*bytes_tokenizer().encode("ok").ids, bytes_tokenizer().token_to_id("<end>")]
    assert pieces(decoder(run), ids) == ["o", "k", "<end>"]
