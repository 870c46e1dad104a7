"""The decode function of the tokenizer of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from purerl.data.pieces import Decode
from purerl.errors import DataError

__all__ = ["decode_to_numbers", "load_decoder"]


def load_decoder(run: Path) -> Decode:
    """Return the decode function of the tokenizer in the run directory. Special tokens are kept.

    Without a tokenizer, an id is decoded to its number in brackets.

    Raises: DataError if the file of the tokenizer cannot be read.
    """
    path = run / "tokenizer" / "tokenizer.json"
    if not path.exists():
        return decode_to_numbers
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises no class of its own
        raise DataError(f"{str(path)!r} cannot be read", got=error, need="a tokenizer") from error
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


def decode_to_numbers(ids: Sequence[int]) -> str:
    """Return the numbers of all ids in brackets."""
    return "".join(f"[{number}]" for number in ids)
