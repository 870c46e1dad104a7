"""A tokenizer for a chat template that comes without a model: bytes, and a token for each tag that the template writes.

Tags are texts such as ``<|im_end|>``, ``[INST]`` and ``<think>``. Those that delimit messages are special tokens, and
those of thoughts and calls are not, as in the tokenizers of models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from purerl.templates.conversations import ANSWER, CALL, QUESTION, RESULT, SECOND, TOOL
from purerl.templates.proof import open_raw, said

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["stop_tokens_of", "tokenizer_of_template"]

_SPECIAL = ("<pad>", "<bos>", "<eos>")
# Such as those of ChatML and DeepSeek (with a wide bar); of sentences and turns; of Mistral; of thoughts and calls.
_TAGS = re.compile(r"</?[|\uff5c][^\s<>'\"]*>|</?[^\s<>'\"]*[|\uff5c]>|</?[A-Za-z_][\w:]*>|\[/?g?[A-Z_]{3,}\]")
_DELIMITERS = re.compile(r"[|\uff5c\[]|</?s>|_of_|<sop>")


def tokenizer_of_template(template: str) -> PreTrainedTokenizerBase:
    """The tokenizer with `template`: byte-level, with the tags of `template`, BOS and EOS as added tokens.

    Line breaks that follow each other are one token, and so are a space and the letter after it, so that a token of a
    whole text can cross the border of a prompt and an answer.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = [chr(code) for code in range(ord("0"), ord("z") + 1) if chr(code).isalnum()]
    merges = [("Ċ", "Ċ"), *(("Ġ", letter) for letter in letters)]
    tokens = [*_SPECIAL, *alphabet, *("".join(pair) for pair in merges)]
    backend = Tokenizer(models.BPE({token: k for k, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    result = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", chat_template=template
    )
    tags = dict.fromkeys(_TAGS.findall("".join([template, *_rendered(result)])))
    result.add_tokens([_added_token(tag) for tag in tags if tag not in _SPECIAL])
    return result


def _added_token(tag: str) -> Any:
    from tokenizers import AddedToken

    return AddedToken(tag, special=bool(_DELIMITERS.search(tag)), normalized=False)


def _rendered(tokenizer: Any) -> Iterator[str]:
    """Conversations as the template renders them: it may compose tags of parts, such as the role."""
    for messages in ([QUESTION, ANSWER, SECOND], [QUESTION, CALL, RESULT, ANSWER]):
        if raw := open_raw(tokenizer, {"tools": [dict(TOOL)]}, messages):
            yield raw(messages, prompts=True)


def stop_tokens_of(tokenizer: Any) -> tuple[int, ...]:
    """The tokens that end an answer or a call at the end of a conversation with the chat template of `tokenizer`.

    If nothing ends them, these are the tokens that begin the message that follows.
    """
    found = []
    for turn, new, kwargs in ((ANSWER, SECOND, {}), (CALL, RESULT, {"tools": [dict(TOOL)]})):
        if raw := open_raw(tokenizer, kwargs, [QUESTION, turn]):
            ends = _special_tokens(tokenizer, _after(raw([QUESTION, turn]), said(turn)[-1]))
            begins: list[int] = []
            with suppress(Exception):  # the template may refuse the message that follows
                begins = _special_tokens(tokenizer, _after(raw([QUESTION, turn, new]), said(turn)[-1]))
            found += ends[-1:] or begins[:1]
    return tuple(dict.fromkeys(found))


def _after(text: str, last: str) -> str:
    return text.rpartition(last)[2] if last in text else ""


def _special_tokens(tokenizer: Any, text: str) -> list[int]:
    added = tokenizer.added_tokens_decoder
    return [
        token
        for token in tokenizer(text, add_special_tokens=False)["input_ids"]
        if token in added and added[token].special
    ]
